// sandbox._launcher: loads compiled candidates and runs them. Knows neither torch nor the CUDA toolkit.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <stdexcept>

#include "cuda_driver.h"
#include "program.h"

namespace py = pybind11;

namespace {

// Owns one reference to a program.
class Handle {
 public:
  explicit Handle(ca::Program* program) : program_(program) {}
  ~Handle() { program_->release(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  ca::Program& program() const { return *program_; }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(program_); }

  void launch(const std::vector<uintptr_t>& buffers, uintptr_t stream, int32_t device) const {
    std::vector<void*> addresses;
    addresses.reserve(buffers.size());
    for (const uintptr_t buffer : buffers) addresses.push_back(reinterpret_cast<void*>(buffer));
    const py::gil_scoped_release unlocked;
    if (program_->launch(addresses.data(), reinterpret_cast<void*>(stream), device) != 0) {
      throw std::runtime_error(ca::last_error());
    }
  }

 private:
  ca::Program* program_;
};

ca::Argument make_argument(const py::handle& item) {
  ca::Argument argument;
  if (py::isinstance<py::int_>(item)) {
    argument.buffer = item.cast<int>();
    return argument;
  }
  if (py::isinstance<py::tuple>(item)) {
    const auto fields = item.cast<py::tuple>();
    argument.buffer = fields[0].cast<int>();
    argument.mapped = ca::Mapped{
        fields[1].cast<int64_t>(), fields[2].cast<int>(), fields[3].cast<std::vector<uint64_t>>(),
        fields[4].cast<std::vector<uint64_t>>(), fields[5].cast<std::vector<uint32_t>>()};
    const size_t rank = argument.mapped->shape.size();
    const bool fits = rank >= 1 && rank <= 5 && argument.mapped->strides.size() + 1 == rank;
    if (!fits || argument.mapped->box.size() != rank) throw std::invalid_argument("a tensor map of 1 to 5 dimensions");
    return argument;
  }
  const auto bytes = item.cast<std::string>();
  if (bytes.size() > argument.bytes.size()) throw std::invalid_argument("a constant has at most 8 bytes");
  std::memcpy(argument.bytes.data(), bytes.data(), bytes.size());
  return argument;
}

// (kernel, grid, block, shared bytes, cluster or None, dependent, cooperative, arguments: buffer index, constant bytes, or
// (buffer index, offset, type, shape, strides, box))
ca::Step make_step(const py::tuple& fields) {
  ca::Step step;
  step.kernel = fields[0].cast<std::string>();
  step.grid = fields[1].cast<std::array<unsigned, 3>>();
  step.block = fields[2].cast<std::array<unsigned, 3>>();
  step.shared_bytes = fields[3].cast<unsigned>();
  step.has_cluster = !fields[4].is_none();
  if (step.has_cluster) step.cluster = fields[4].cast<std::array<unsigned, 3>>();
  step.dependent = fields[5].cast<bool>();
  step.cooperative = fields[6].cast<bool>();
  if (step.cooperative && step.has_cluster) throw std::invalid_argument("a cooperative launch with a cluster");
  for (const auto& item : fields[7].cast<py::list>()) step.arguments.push_back(make_argument(item));
  if (step.arguments.size() > 512) throw std::invalid_argument("more than 512 kernel arguments");
  return step;
}

std::unique_ptr<Handle> load_cpu(const std::string& path, const std::string& entry) {
  const py::gil_scoped_release unlocked;
  return std::make_unique<Handle>(ca::load_cpu(path, entry));
}

std::unique_ptr<Handle> load_cuda(const py::bytes& image, const py::list& steps) {
  std::vector<ca::Step> made;
  for (const auto& step : steps) made.push_back(make_step(step.cast<py::tuple>()));
  std::string bytes = image;
  const py::gil_scoped_release unlocked;
  return std::make_unique<Handle>(ca::load_cuda(bytes, std::move(made)));
}

#if defined(__x86_64__) || defined(__aarch64__)
#define CA_CAN_FLUSH
// Evicts the memory's lines from the caches of all cores.
void flush(uintptr_t address, size_t bytes) {
  constexpr uintptr_t kLine = 64;
  const py::gil_scoped_release unlocked;
  for (uintptr_t line = address & ~(kLine - 1); line < address + bytes; line += kLine) {
#if defined(__x86_64__)
    __builtin_ia32_clflush(reinterpret_cast<const void*>(line));
#else
    asm volatile("dc civac, %0" ::"r"(line) : "memory");
#endif
  }
  __sync_synchronize();
}
#endif

std::string why_no_cuda() {
  const char* why = nullptr;
  return ca::cuda::driver(&why) == nullptr ? why : "";
}

}  // namespace

PYBIND11_MODULE(_launcher, m) {
  m.doc() = "Loads compiled candidates and launches them.";
  py::class_<Handle>(m, "Program")
      .def_property_readonly("address", &Handle::address, "Address of the program, for the operator library.")
      .def("launch", &Handle::launch, py::arg("buffers"), py::arg("stream") = 0, py::arg("device") = -1)
      .def("facts", [](const Handle& handle, int32_t device) { return handle.program().facts(device); });
  m.def("load_cpu", &load_cpu, py::arg("path"), py::arg("entry"));
  m.def("load_cuda", &load_cuda, py::arg("image"), py::arg("steps"));
#ifdef CA_CAN_FLUSH
  m.def("flush", &flush, py::arg("address"), py::arg("bytes"), "Evicts memory of this process from all caches.");
#endif
  m.def("why_no_cuda", &why_no_cuda, "Why there is no usable CUDA driver; empty if there is one.");
  m.def("abi_address", [] { return reinterpret_cast<uintptr_t>(&ca::launcher_abi()); });
}
