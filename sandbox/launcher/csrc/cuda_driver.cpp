#include "cuda_driver.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>

namespace ca::cuda {
namespace {

constexpr int kMaxDevices = 64;

struct Loaded {
  Driver functions{};
  bool ready = false;
  std::string why;
};

template <typename Function>
bool find(void* library, const char* name, Function* out, std::string* why) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  if (*out == nullptr) *why = std::string("the CUDA driver has no ") + name + "; 12.0 or newer is needed";
  return *out != nullptr;
}

Loaded load() {
  Loaded result;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    result.why = "no CUDA driver (libcuda.so.1) on this machine";
    return result;
  }
  Driver& f = result.functions;
  std::string* why = &result.why;
  const bool found = find(library, "cuInit", &f.init, why) &&
      find(library, "cuDriverGetVersion", &f.get_version, why) &&
      find(library, "cuGetErrorName", &f.get_error_name, why) &&
      find(library, "cuGetErrorString", &f.get_error_string, why) &&
      find(library, "cuCtxGetCurrent", &f.context_get_current, why) &&
      find(library, "cuCtxGetDevice", &f.context_get_device, why) &&
      find(library, "cuCtxPushCurrent_v2", &f.context_push, why) &&
      find(library, "cuCtxPopCurrent_v2", &f.context_pop, why) &&
      find(library, "cuCtxSynchronize", &f.context_synchronize, why) &&
      find(library, "cuDevicePrimaryCtxRetain", &f.primary_context_retain, why) &&
      find(library, "cuLibraryLoadData", &f.library_load_data, why) &&
      find(library, "cuLibraryUnload", &f.library_unload, why) &&
      find(library, "cuLibraryGetKernel", &f.library_get_kernel, why) &&
      find(library, "cuKernelGetAttribute", &f.kernel_get_attribute, why) &&
      find(library, "cuKernelSetAttribute", &f.kernel_set_attribute, why) &&
      find(library, "cuTensorMapEncodeTiled", &f.tensor_map_encode, why) &&
      find(library, "cuLaunchKernelEx", &f.launch_kernel, why);
  if (!found) return result;
  Result status = f.init(0);
  if (status == 0) status = f.get_version(&f.version);
  result.ready = status == 0;
  if (!result.ready) result.why = "cuInit failed with CUDA error " + std::to_string(status);
  return result;
}

// Primary contexts are retained once and for the life of the process, as torch does too.
Result primary_context(const Driver& driver, Device device, Context* out) {
  static std::array<std::atomic<Context>, kMaxDevices> contexts{};
  static std::mutex mutex;
  if (device < 0 || device >= kMaxDevices) return 101;  // CUDA_ERROR_INVALID_DEVICE
  *out = contexts[device].load(std::memory_order_acquire);
  if (*out != nullptr) return 0;
  const std::lock_guard<std::mutex> guard(mutex);
  const Result status = driver.primary_context_retain(out, device);
  if (status == 0) contexts[device].store(*out, std::memory_order_release);
  return status;
}

}  // namespace

const Driver* driver(const char** why) {
  static const Loaded loaded = load();
  if (why != nullptr) *why = loaded.why.c_str();
  return loaded.ready ? &loaded.functions : nullptr;
}

ContextScope::ContextScope(const Driver& driver, Device device) : driver_(driver) {
  Context wanted = nullptr;
  status_ = primary_context(driver, device, &wanted);
  if (status_ != 0) return;
  Context current = nullptr;
  status_ = driver.context_get_current(&current);
  if (status_ != 0 || current == wanted) return;
  status_ = driver.context_push(wanted);
  pushed_ = status_ == 0;
}

ContextScope::~ContextScope() {
  Context popped = nullptr;
  if (pushed_) driver_.context_pop(&popped);
}

}  // namespace ca::cuda
