// The native implementation of cuda_agent::run_{n}_{m}: look the key up, check the inputs against the kernel's calling
// convention, allocate the outputs, launch on the current stream.
//
// Built at first use against the headers of the torch that is installed. Only torch's stable C interface is used, and no
// CUDA header: the same source serves CPU-only and CUDA builds. One boxed function stands behind all names.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi.h"
#include "library.h"

namespace {

constexpr int64_t kMaxInputs = 32, kMaxOutputs = 8, kMaxBuffers = 64;

// In the order of ITEM_SIZES in sandbox/task/specs.py.
using DtypeCode = int32_t (*)();
constexpr DtypeCode kDtypes[] = {
    aoti_torch_dtype_float64, aoti_torch_dtype_float32, aoti_torch_dtype_float16,       aoti_torch_dtype_bfloat16,
    aoti_torch_dtype_int64,   aoti_torch_dtype_int32,   aoti_torch_dtype_int16,         aoti_torch_dtype_int8,
    aoti_torch_dtype_uint8,   aoti_torch_dtype_bool,    aoti_torch_dtype_float8_e4m3fn, aoti_torch_dtype_float8_e5m2};

[[noreturn]] void fail(const std::string& text) { throw std::runtime_error("cuda_agent: " + text); }

void check(AOTITorchError status, const char* what) {
  if (status != AOTI_TORCH_SUCCESS) fail(std::string(what) + " failed");
}

struct Spec {
  int32_t dtype = 0;
  bool overlaps = false;
  std::vector<int64_t> sizes, strides;
};

// How to call one program. Decoded from the integers that sandbox/launcher/program.py `encode` writes:
// inputs, outputs, temporaries, cuda, alignment, temporary bytes, temporary offsets..., then per input and output
// dtype, overlaps, dimensions, sizes..., strides..., and last the number of steps, 0 where there is no library call. A
// step is 0 (kernels up to the next library call, a program of their own), or 1 and its call: see `read_call`.
struct PlanStep {
  void* program = nullptr;
  std::optional<ca::LibraryCall> call;  // in place of a program
};

struct Binding {
  CaLauncher launcher{};
  std::vector<void*> programs;  // one reference to each
  std::vector<PlanStep> steps;
  bool cuda = false;
  int64_t alignment = 1, temporary_bytes = 0;
  std::vector<int64_t> temporary_offsets;
  std::vector<Spec> inputs, outputs;

  // Gives each step of kernels its program.
  void take(void* const* given) {
    size_t next = 0;
    for (PlanStep& step : steps) {
      if (!step.call) step.program = given[next++];
    }
    if (steps.empty()) next = 1;
    for (size_t i = 0; i < next; ++i) {
      launcher.retain(given[i]);
      programs.push_back(given[i]);
    }
  }

  ~Binding() {
    for (void* program : programs) launcher.release(program);
  }
};

class Reader {
 public:
  Reader(const int64_t* words, int64_t count) : next_(words), end_(words + count) {}
  int64_t take() { return next_ < end_ ? *next_++ : throw std::out_of_range("binding is cut short"); }
  std::vector<int64_t> take(int64_t count) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(take());
    return values;
  }
  bool done() const { return next_ == end_; }

 private:
  const int64_t* next_;
  const int64_t* end_;
};

Spec read_spec(Reader& reader) {
  Spec spec;
  const auto code = static_cast<size_t>(reader.take());
  if (code >= std::size(kDtypes)) throw std::out_of_range("unknown dtype code");
  spec.dtype = kDtypes[code]();
  spec.overlaps = reader.take() != 0;
  const int64_t dimensions = reader.take();
  spec.sizes = reader.take(dimensions);
  spec.strides = reader.take(dimensions);
  return spec;
}

ca::View read_view(Reader& reader) {
  ca::View view;
  view.buffer = reader.take();
  view.offset = reader.take();
  const auto code = static_cast<size_t>(reader.take());
  if (view.buffer < 0 || view.buffer >= kMaxBuffers || code >= std::size(kDtypes)) throw std::out_of_range("a view");
  view.dtype = kDtypes[code]();
  const int64_t dimensions = reader.take();
  view.sizes = reader.take(dimensions);
  view.strides = reader.take(dimensions);
  return view;
}

// Whether it is a convolution, its views, whether there is a summand, that, and of a convolution the dimensions,
// stride..., padding..., dilation..., output padding..., groups, transposed, benchmark.
ca::LibraryCall read_call(Reader& reader) {
  ca::LibraryCall call;
  call.convolution = reader.take() != 0;
  call.first = read_view(reader);
  call.second = read_view(reader);
  call.out = read_view(reader);
  if (reader.take() != 0) call.summand = read_view(reader);
  if (!call.convolution) return call;
  const int64_t dimensions = reader.take();
  for (auto* numbers : {&call.stride, &call.padding, &call.dilation, &call.output_padding}) {
    *numbers = reader.take(dimensions);
  }
  call.groups = reader.take();
  call.transposed = reader.take() != 0;
  call.benchmark = reader.take() != 0;
  return call;
}

std::shared_ptr<Binding> read_binding(Reader reader) {
  auto binding = std::make_shared<Binding>();
  const int64_t inputs = reader.take(), outputs = reader.take(), temporaries = reader.take();
  if (inputs > kMaxInputs || outputs > kMaxOutputs || inputs + outputs + temporaries > kMaxBuffers) {
    throw std::out_of_range("too many buffers");
  }
  binding->cuda = reader.take() != 0;
  binding->alignment = reader.take();
  binding->temporary_bytes = reader.take();
  binding->temporary_offsets = reader.take(temporaries);
  for (int64_t i = 0; i < inputs; ++i) binding->inputs.push_back(read_spec(reader));
  for (int64_t i = 0; i < outputs; ++i) binding->outputs.push_back(read_spec(reader));
  const int64_t steps = reader.take();
  for (int64_t i = 0; i < steps; ++i) {
    PlanStep step;
    if (reader.take() != 0) step.call = read_call(reader);
    binding->steps.push_back(std::move(step));
  }
  if (!reader.done()) throw std::out_of_range("binding is too long");
  return binding;
}

using BindingRef = std::shared_ptr<const Binding>;
using Resolver = int (*)(int64_t key);
// Takes the inputs' handles, and leaves those of the outputs. Returns 0 where nothing stands in for the key, 1 where
// it is done, 2 where it failed and said why.
using StandIn = int (*)(int64_t key, void** handles, int64_t inputs);

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<int64_t, BindingRef> bindings;
  Resolver resolver = nullptr;
  StandIn stand_in = nullptr;
};

// Never destroyed: operators may run while the process ends.
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

BindingRef find(int64_t key) {
  Registry& r = registry();
  const std::shared_lock<std::shared_mutex> lock(r.mutex);
  const auto found = r.bindings.find(key);
  return found == r.bindings.end() ? nullptr : found->second;
}

// The resolver is Python and binds: it must run without our lock. Null where the kernel is not to be had.
BindingRef find_or_resolve(int64_t key) {
  BindingRef binding = find(key);
  if (binding == nullptr && registry().resolver != nullptr && registry().resolver(key) != 0) binding = find(key);
  return binding;
}

// Neither Python function raises, so the text is made here.
[[noreturn]] void fail_without_kernel(int64_t key) {
  fail("no kernel with key " + std::to_string(key) +
       " to be had in this process. Compiled code refers to kernels by key, and the kernel cache that is looked into does "
       "not have this one for this machine. Set CUDA_AGENT_CACHE_DIR to the folder of the cache that the code was "
       "compiled with, or to a copy of it. Or discard the code: compile a saved artifact anew here; after "
       "torch._dynamo.reset(), an empty TORCHINDUCTOR_CACHE_DIR does so for torch's caches.");
}

// An owned tensor.
struct Tensor {
  AtenTensorHandle handle = nullptr;

  Tensor() = default;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle != nullptr) aoti_torch_delete_tensor_object(handle);
  }
  AtenTensorHandle give_away() { return std::exchange(handle, nullptr); }
  void* address() const {
    void* result = nullptr;
    check(aoti_torch_get_data_ptr(handle, &result), "reading an address");
    return result;
  }
};

struct Device {
  int32_t type = 0, index = 0;
};

Device device_of(AtenTensorHandle tensor) {
  Device device;
  check(aoti_torch_get_device_type(tensor, &device.type), "reading a device");
  check(aoti_torch_get_device_index(tensor, &device.index), "reading a device");
  return device;
}

// Elements of memory from the first to the last of a tensor.
int64_t extent(const Spec& spec) {
  int64_t last = 0;
  for (size_t d = 0; d < spec.sizes.size(); ++d) last += (spec.sizes[d] - 1) * spec.strides[d];
  return last + 1;
}

// Whether an allocation failed for want of memory. Torch 2.11 keeps the reason to itself, so the driver is asked what it
// has left, by which time torch has given back all that it kept. A fault of an earlier kernel comes up there, too, and
// is no want of memory.
bool lacks_memory(int64_t bytes, Device device) {
  if (device.type == aoti_torch_device_type_cpu()) return true;
  using Function = int (*)(size_t*, size_t*);
  static const auto ask = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(driver, "cuMemGetInfo_v2"));
  }();
  constexpr size_t kGranule = size_t{32} << 20;  // what allocators round up to
  size_t free = 0, total = 0;
  return ask != nullptr && ask(&free, &total) == 0 && free < static_cast<size_t>(bytes) + kGranule;
}

// The words are those by which failures that say nothing of a kernel are known.
void check_allocation(AOTITorchError status, int64_t bytes, Device device, const char* what) {
  if (status == AOTI_TORCH_SUCCESS) return;
  const std::string size = std::to_string(bytes) + " bytes for " + what;
  if (!lacks_memory(bytes, device)) fail("allocating " + size + " failed");
  fail((device.type == aoti_torch_device_type_cpu() ? "out of memory: no " : "CUDA out of memory: no ") + size);
}

void allocate(const Spec& spec, Device device, Tensor* out) {
  const auto dimensions = static_cast<int64_t>(spec.sizes.size());
  check_allocation(
      aoti_torch_empty_strided(
          dimensions, spec.sizes.data(), spec.strides.data(), spec.dtype, device.type, device.index, &out->handle),
      extent(spec) * static_cast<int64_t>(aoti_torch_dtype_element_size(spec.dtype)), device, "a tensor");
}

std::string join(const int64_t* values, int64_t count) {
  std::string text = "(";
  for (int64_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + ")";
}

// Whether the strides are as wanted; those of sizes 0 and 1 do not matter.
bool same_strides(const Spec& spec, const int64_t* strides) {
  const size_t dimensions = spec.sizes.size();
  if (std::memcmp(spec.strides.data(), strides, dimensions * sizeof(int64_t)) == 0) return true;
  for (size_t d = 0; d < dimensions; ++d) {
    if (spec.sizes[d] == 0) return true;
  }
  for (size_t d = 0; d < dimensions; ++d) {
    if (spec.sizes[d] != 1 && spec.strides[d] != strides[d]) return false;
  }
  return true;
}

// The memory behind a tensor whose elements overlap, at an address that the allocator chooses.
void copy_memory(const Spec& spec, Device device, const Tensor& from, Tensor* to) {
  const int64_t size = extent(spec), stride = 1;
  Tensor line;
  check(
      aoti_torch__reinterpret_tensor(from.handle, 1, &size, &stride, 0, &line.handle), "looking at an input's memory");
  check_allocation(
      aoti_torch_empty_strided(1, &size, &stride, spec.dtype, device.type, device.index, &to->handle),
      size * static_cast<int64_t>(aoti_torch_dtype_element_size(spec.dtype)), device, "a copy of an input");
  check(aoti_torch_copy_(to->handle, line.handle, 1), "copying an input");
}

// Makes `tensor` what the kernel takes: itself, or a copy with the wanted strides and alignment. Returns its address.
void* fit(const Spec& spec, size_t index, Device device, int64_t alignment, Tensor* tensor) {
  int64_t dimensions = 0, *sizes = nullptr, *strides = nullptr;
  int32_t dtype = 0;
  check(aoti_torch_get_dim(tensor->handle, &dimensions), "reading a shape");
  check(aoti_torch_get_sizes(tensor->handle, &sizes), "reading a shape");
  check(aoti_torch_get_strides(tensor->handle, &strides), "reading strides");
  check(aoti_torch_get_dtype(tensor->handle, &dtype), "reading a dtype");
  const auto input = [index] { return "input " + std::to_string(index); };
  if (dtype != spec.dtype) fail(input() + " has another dtype than the kernel takes");
  const auto wanted = static_cast<int64_t>(spec.sizes.size());
  if (dimensions != wanted || !std::equal(spec.sizes.begin(), spec.sizes.end(), sizes)) {
    fail(input() + " has shape " + join(sizes, dimensions) + "; the kernel takes " + join(spec.sizes.data(), wanted));
  }
  void* address = tensor->address();
  const bool aligned = reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(alignment) == 0;
  const bool alike = same_strides(spec, strides);
  if (aligned && alike) return address;
  if (spec.overlaps && !alike) {
    fail(input() + " has strides " + join(strides, dimensions) + "; the kernel takes the overlapping layout " +
         join(spec.strides.data(), wanted) + ", which a copy cannot have");
  }
  Tensor copy;
  if (spec.overlaps) {
    copy_memory(spec, device, *tensor, &copy);
  } else {
    allocate(spec, device, &copy);
    check(aoti_torch_copy_(copy.handle, tensor->handle, 1), "copying an input");
  }
  std::swap(copy.handle, tensor->handle);
  return tensor->address();
}

void* current_stream(int32_t device) {
  using Function = AOTITorchError (*)(int32_t, void**);
  // Looked up, not linked: CPU-only builds of torch have no such library.
  static const auto get = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return library == nullptr ? nullptr
                              : reinterpret_cast<Function>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  if (get == nullptr) fail("this torch has no aoti_torch_get_current_cuda_stream");
  void* stream = nullptr;
  check(get(device, &stream), "reading the current stream");
  return stream;
}

// All inputs of a call must be on one device. On the CPU that is so already, or the dispatcher would have gone elsewhere.
Device common_device(const Tensor* inputs, size_t count) {
  const Device device = device_of(inputs[0].handle);
  for (size_t i = 1; i < count; ++i) {
    const Device other = device_of(inputs[i].handle);
    if (other.type != device.type || other.index != device.index) {
      fail("input " + std::to_string(i) + " is on another device than the first input");
    }
  }
  return device;
}

void allocate_bytes(int64_t size, Device device, Tensor* block) {
  const int64_t stride = 1;
  check_allocation(
      aoti_torch_empty_strided(1, &size, &stride, aoti_torch_dtype_uint8(), device.type, device.index, &block->handle),
      size, device, "temporaries");
}

// Memory for a call's temporaries. On the CPU one block outlives the calls, as large as any of them needed: the C
// library would return a large one to the system and map it anew, page by page, in each call. A call that finds the
// block taken, by another thread, allocates its own.
class Temporaries {
 public:
  Temporaries() = default;
  Temporaries(const Temporaries&) = delete;
  Temporaries& operator=(const Temporaries&) = delete;
  ~Temporaries() {
    if (borrowed_) kept().taken.store(false, std::memory_order_release);
  }

  void* get(int64_t bytes, Device device) {
    Kept& shared = kept();
    borrowed_ = device.type == aoti_torch_device_type_cpu() && !shared.taken.exchange(true, std::memory_order_acquire);
    if (!borrowed_) {
      allocate_bytes(bytes, device, &own_);
      return own_.address();
    }
    if (shared.bytes < bytes) {
      shared.bytes = 0;
      shared.block = std::make_unique<Tensor>();
      allocate_bytes(bytes, device, shared.block.get());
      shared.bytes = bytes;
    }
    return shared.block->address();
  }

 private:
  struct Kept {
    std::atomic<bool> taken{false};
    std::unique_ptr<Tensor> block;
    int64_t bytes = 0;
  };
  static Kept& kept() {
    static Kept* const one = new Kept;  // never destroyed: torch may be gone before this library's statics
    return *one;
  }

  Tensor own_;
  bool borrowed_ = false;
};

void check_call(const Binding& binding, bool cuda, size_t inputs, size_t outputs) {
  if (binding.cuda != cuda) fail(std::string("the kernel runs on ") + (binding.cuda ? "cuda" : "cpu"));
  if (binding.inputs.size() == inputs && binding.outputs.size() == outputs) return;
  fail("the kernel takes " + std::to_string(binding.inputs.size()) + " inputs and gives " +
       std::to_string(binding.outputs.size()) + " outputs; called with " + std::to_string(inputs) + " and " +
       std::to_string(outputs));
}

// What runs where the kernel is not to be had. The stack is as in `run`, but for its inputs, which are `inputs`.
void run_stand_in(int64_t key, Tensor* inputs, size_t input_count, StableIValue* stack, size_t output_count) {
  std::array<void*, kMaxInputs> handles{};
  static_assert(kMaxInputs >= kMaxOutputs);
  if (registry().stand_in == nullptr) fail_without_kernel(key);
  for (size_t i = 0; i < input_count; ++i) handles[i] = inputs[i].give_away();
  const int status = registry().stand_in(key, handles.data(), static_cast<int64_t>(input_count));
  if (status == 0) fail_without_kernel(key);
  if (status != 1) fail("what stands in for the kernel with key " + std::to_string(key) + " failed; the log has why");
  for (size_t i = 0; i < output_count; ++i) std::memcpy(&stack[i], &handles[i], sizeof(handles[i]));
}

int run_steps(const Binding& binding, void* const* buffers, void* stream, int32_t device) {
  for (const PlanStep& step : binding.steps) {
    if (step.call) {
      ca::run_library_call(*step.call, buffers, device);
    } else if (const int status = binding.launcher.launch(step.program, buffers, stream, device)) {
      return status;
    }
  }
  return 0;
}

// Boxed: stack[0] is the key, stack[1..] the inputs (owned by us from now on); the outputs go to stack[0..].
template <bool cuda>
void run(StableIValue* stack, uint64_t argument_count, uint64_t output_count) {
  const auto input_count = static_cast<size_t>(argument_count - 1);
  std::array<Tensor, kMaxInputs> inputs;
  std::array<Tensor, kMaxOutputs> outputs;
  Temporaries temporaries;
  std::array<void*, kMaxBuffers> addresses;
  int64_t key = 0;
  static_assert(sizeof(key) == sizeof(StableIValue) && sizeof(AtenTensorHandle) == sizeof(StableIValue));
  std::memcpy(&key, &stack[0], sizeof(key));
  for (size_t i = 0; i < input_count; ++i) std::memcpy(&inputs[i].handle, &stack[i + 1], sizeof(AtenTensorHandle));

  const BindingRef binding = find_or_resolve(key);
  if (binding == nullptr) return run_stand_in(key, inputs.data(), input_count, stack, output_count);
  check_call(*binding, cuda, input_count, output_count);
  const Device device = cuda ? common_device(inputs.data(), input_count) : Device{aoti_torch_device_type_cpu(), -1};
  void** next = addresses.data();
  for (size_t i = 0; i < input_count; ++i) *next++ = fit(binding->inputs[i], i, device, binding->alignment, &inputs[i]);
  for (size_t i = 0; i < output_count; ++i) {
    allocate(binding->outputs[i], device, &outputs[i]);
    *next++ = outputs[i].address();
  }
  if (binding->temporary_bytes > 0) {
    auto* base = static_cast<char*>(temporaries.get(binding->temporary_bytes, device));
    for (const int64_t offset : binding->temporary_offsets) *next++ = base + offset;
  }
  void* stream = cuda ? current_stream(device.index) : nullptr;
  const int status = binding->steps.empty()
                         ? binding->launcher.launch(binding->programs[0], addresses.data(), stream, device.index)
                         : run_steps(*binding, addresses.data(), stream, device.index);
  if (status != 0) {
    fail(binding->launcher.last_error());
  }
  for (size_t i = 0; i < output_count; ++i) {
    AtenTensorHandle result = outputs[i].give_away();
    std::memcpy(&stack[i], &result, sizeof(result));
  }
}

using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

int implement(const char* dispatch_key, Boxed function) {
  // The handle is kept for ever: deleting it would take the implementations away.
  TorchLibraryHandle library = nullptr;
  if (aoti_torch_library_init_impl("cuda_agent", dispatch_key, __FILE__, __LINE__, &library) != AOTI_TORCH_SUCCESS) {
    return 1;
  }
  for (int64_t n = 1; n <= kMaxInputs; ++n) {
    for (int64_t m = 1; m <= kMaxOutputs; ++m) {
      const std::string name = "run_" + std::to_string(n) + "_" + std::to_string(m);
      if (torch_library_impl(library, name.c_str(), function, TORCH_ABI_VERSION) != AOTI_TORCH_SUCCESS) return 1;
    }
  }
  return 0;
}

}  // namespace

extern "C" {

// Registers the implementation for the CPU and CUDA dispatch keys. Returns 0, or 1 on failure.
__attribute__((visibility("default"))) int ca_op_install(Resolver resolver, StandIn stand_in) {
  registry().resolver = resolver;
  registry().stand_in = stand_in;
  const int cpu = implement("CPU", run<false>);
  return cpu != 0 ? cpu : implement("CUDA", run<true>);
}

// programs: of the kernels between library calls, in order; one where there are no such calls.
// Returns 0, or 1 if the words do not describe a binding.
__attribute__((visibility("default"))) int ca_op_bind(
    int64_t key, const CaLauncher* launcher, void* const* programs, const int64_t* words, int64_t count) {
  try {
    const std::shared_ptr<Binding> binding = read_binding(Reader(words, count));
    binding->launcher = *launcher;
    binding->take(programs);
    BindingRef replaced = binding;
    {
      const std::unique_lock<std::shared_mutex> lock(registry().mutex);
      registry().bindings[key].swap(replaced);
    }
    return 0;  // what was replaced goes away here, without the lock
  } catch (const std::exception&) {
    return 1;
  }
}

__attribute__((visibility("default"))) void ca_op_unbind(int64_t key) {
  BindingRef removed;
  const std::unique_lock<std::shared_mutex> lock(registry().mutex);
  const auto found = registry().bindings.find(key);
  if (found == registry().bindings.end()) return;
  removed.swap(found->second);
  registry().bindings.erase(found);
}

}  // extern "C"
