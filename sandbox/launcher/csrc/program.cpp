#include "program.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "cuda_driver.h"

namespace ca {
namespace {

constexpr int kInvalidValue = 1;  // CUDA_ERROR_INVALID_VALUE

thread_local std::string error_text;

int fail(int code, std::string text) {
  error_text = std::move(text);
  return code;
}

class CpuProgram final : public Program {
 public:
  using Entry = void (*)(void* const*);

  CpuProgram(const std::string& path, const std::string& entry) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
    entry_ = reinterpret_cast<Entry>(dlsym(handle_, entry.c_str()));
    if (entry_ != nullptr) return;
    dlclose(handle_);
    throw std::runtime_error("no extern \"C\" function named " + entry);
  }
  ~CpuProgram() override { dlclose(handle_); }

  int launch(void* const* buffers, void*, int32_t) override {
    entry_(buffers);
    return 0;
  }
  std::map<std::string, std::map<std::string, int>> facts(int32_t) override { return {}; }

 private:
  void* handle_ = nullptr;
  Entry entry_ = nullptr;
};

std::string describe(const cuda::Driver& driver, cuda::Result status) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.get_error_name(status, &name) != 0 || name == nullptr) name = "unknown CUDA error";
  if (driver.get_error_string(status, &text) != 0 || text == nullptr) text = "";
  return std::string(name) + " (" + std::to_string(status) + "): " + text;
}

const cuda::Driver& need_driver() {
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  if (driver == nullptr) throw std::runtime_error(why);
  return *driver;
}

class CudaProgram final : public Program {
 public:
  CudaProgram(const std::string& image, std::vector<Step> steps)
      : driver_(need_driver()), image_(image), steps_(std::move(steps)) {
    check(driver_.library_load_data(&library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "loading");
    for (const Step& step : steps_) {
      cuda::Kernel kernel = nullptr;
      const cuda::Result status = driver_.library_get_kernel(&kernel, library_, step.kernel.c_str());
      if (status != 0) driver_.library_unload(library_);
      check(status, step.kernel);
      kernels_.push_back(kernel);
    }
  }

  // Judging replaces programs, and a launch may still be running then. At process exit the driver may be gone already;
  // both calls then only return an error.
  ~CudaProgram() override {
    driver_.context_synchronize();
    driver_.library_unload(library_);
  }

  int launch(void* const* buffers, void* stream, int32_t device) override {
    const cuda::ContextScope scope(driver_, device);
    if (scope.status() != 0) return fail(scope.status(), "selecting the device: " + describe(driver_, scope.status()));
    if (const cuda::Result status = prepare(device)) return status;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const cuda::Result status = launch_step(i, buffers, stream);
      if (status != 0) return fail(status, "kernel " + steps_[i].kernel + ": " + describe(driver_, status));
    }
    return 0;
  }

  std::map<std::string, std::map<std::string, int>> facts(int32_t device) override {
    std::map<std::string, std::map<std::string, int>> result;
    const cuda::ContextScope scope(driver_, device);
    check(scope.status(), "selecting the device");
    for (size_t i = 0; i < steps_.size(); ++i) {
      auto& entry = result[steps_[i].kernel];
      check(driver_.kernel_get_attribute(&entry["registers"], cuda::kRegisters, kernels_[i], device), "registers");
      check(driver_.kernel_get_attribute(&entry["shared_bytes"], cuda::kSharedBytes, kernels_[i], device), "shared");
      check(driver_.kernel_get_attribute(&entry["local_bytes"], cuda::kLocalBytes, kernels_[i], device), "local");
    }
    return result;
  }

 private:
  void check(cuda::Result status, const std::string& what) const {
    if (status != 0) throw std::runtime_error(what + ": " + describe(driver_, status));
  }

  // Opt-ins are per kernel and device, so they are made at a device's first launch.
  cuda::Result prepare(int32_t device) {
    const uint64_t bit = uint64_t{1} << (static_cast<unsigned>(device) & 63u);
    if ((prepared_.load(std::memory_order_acquire) & bit) != 0) return 0;
    const std::lock_guard<std::mutex> guard(mutex_);
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (const cuda::Result status = opt_in(i, device)) {
        return fail(status, "kernel " + steps_[i].kernel + ": " + describe(driver_, status));
      }
    }
    prepared_.fetch_or(bit, std::memory_order_release);
    return 0;
  }

  // The same kernel may stand in several steps; the largest request must win.
  cuda::Result opt_in(size_t index, int32_t device) {
    constexpr unsigned kDefaultShared = 48 * 1024, kPortableCluster = 8;
    unsigned shared = 0, cluster = 0;
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (kernels_[i] != kernels_[index]) continue;
      const auto& c = steps_[i].cluster;
      shared = std::max(shared, steps_[i].shared_bytes);
      cluster = std::max(cluster, c[0] * c[1] * c[2]);
    }
    cuda::Result status = 0;
    if (shared > kDefaultShared) {
      const int bytes = static_cast<int>(shared);
      status = driver_.kernel_set_attribute(cuda::kMaxDynamicShared, bytes, kernels_[index], device);
    }
    if (status == 0 && cluster > kPortableCluster) {
      status = driver_.kernel_set_attribute(cuda::kNonPortableClusterAllowed, 1, kernels_[index], device);
    }
    return status;
  }

  // The address changes from call to call, and describing it anew takes less than a microsecond.
  cuda::Result encode(const Mapped& mapped, void* buffer, cuda::TensorMap* out) const {
    constexpr std::array<uint32_t, 5> kEachElement{1, 1, 1, 1, 1};
    return driver_.tensor_map_encode(
        out, mapped.type, static_cast<uint32_t>(mapped.shape.size()), static_cast<char*>(buffer) + mapped.offset,
        mapped.shape.data(), mapped.strides.data(), mapped.box.data(), kEachElement.data(), cuda::kNotInterleaved,
        cuda::kSwizzle128, cuda::kPromoteLines, cuda::kZerosBeyond);
  }

  cuda::Result launch_step(size_t index, void* const* buffers, void* stream) {
    constexpr size_t kMaxArguments = 512, kMaxMaps = 4;
    const Step& step = steps_[index];
    std::array<void*, kMaxArguments> parameters;
    std::array<cuda::TensorMap, kMaxMaps> maps;
    size_t used = 0;
    for (size_t i = 0; i < step.arguments.size(); ++i) {
      const Argument& argument = step.arguments[i];
      const void* value = argument.bytes.data();
      if (argument.mapped) {
        if (used == kMaxMaps) return kInvalidValue;
        if (const cuda::Result status = encode(*argument.mapped, buffers[argument.buffer], &maps[used])) return status;
        value = &maps[used++];
      } else if (argument.buffer >= 0) {
        value = &buffers[argument.buffer];
      }
      parameters[i] = const_cast<void*>(value);
    }
    std::array<cuda::LaunchAttribute, 3> attributes{};
    unsigned count = 0;
    if (step.has_cluster) {
      cuda::LaunchAttribute& attribute = attributes[count++];
      attribute.id = cuda::kClusterDimension;
      attribute.value.cluster = {step.cluster[0], step.cluster[1], step.cluster[2]};
    }
    if (step.cooperative) {
      cuda::LaunchAttribute& attribute = attributes[count++];
      attribute.id = cuda::kCooperative;
      attribute.value.cooperative = 1;
    }
    if (step.dependent && driver_.version >= cuda::kCapturesProgrammatic) {
      cuda::LaunchAttribute& attribute = attributes[count++];
      attribute.id = cuda::kProgrammaticSerialization;
      attribute.value.programmatic_serialization = 1;
    }
    const cuda::LaunchConfig config{
        step.grid[0],  step.grid[1],      step.grid[2], step.block[0],     step.block[1],
        step.block[2], step.shared_bytes, stream,       attributes.data(), count};
    return driver_.launch_kernel(&config, kernels_[index], parameters.data(), nullptr);
  }

  const cuda::Driver& driver_;
  const std::string image_;
  const std::vector<Step> steps_;
  cuda::Library library_ = nullptr;
  std::vector<cuda::Kernel> kernels_;
  std::atomic<uint64_t> prepared_{0};
  std::mutex mutex_;
};

int launch_program(void* program, void* const* buffers, void* stream, int32_t device) {
  return static_cast<Program*>(program)->launch(buffers, stream, device);
}
void retain_program(void* program) { static_cast<Program*>(program)->retain(); }
void release_program(void* program) { static_cast<Program*>(program)->release(); }

}  // namespace

Program* load_cpu(const std::string& path, const std::string& entry) { return new CpuProgram(path, entry); }

Program* load_cuda(const std::string& image, std::vector<Step> steps) {
  return new CudaProgram(image, std::move(steps));
}

const char* last_error() { return error_text.c_str(); }

const CaLauncher& launcher_abi() {
  static const CaLauncher abi{launch_program, retain_program, release_program, last_error};
  return abi;
}

}  // namespace ca
