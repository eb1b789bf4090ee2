// The few CUDA driver functions that launching needs, found in libcuda.so.1 at first use.
//
// Prototypes are declared here so that the extension builds on machines without a CUDA toolkit. Types and numbers are
// those of the driver's stable C interface (12.0 and up).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ca::cuda {

using Result = int;
using Device = int;
using Context = struct ContextTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;
using Stream = void*;

constexpr int kCooperative = 2;                        // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
constexpr int kClusterDimension = 4;                   // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
constexpr int kProgrammaticSerialization = 6;          // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr int kCapturesProgrammatic = 12030;           // version from which stream capture takes such launches
constexpr int kMaxDynamicShared = 8;                   // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kNonPortableClusterAllowed = 14;         // CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
constexpr int kSharedBytes = 1, kLocalBytes = 3, kRegisters = 4;  // CU_FUNC_ATTRIBUTE_*

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int cooperative;
    int programmatic_serialization;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72, "CUlaunchAttribute");

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56, "CUlaunchConfig");

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};
constexpr int kNotInterleaved = 0, kSwizzle128 = 3, kPromoteLines = 2, kZerosBeyond = 0;  // CU_TENSOR_MAP_*

struct Driver {
  Result (*init)(unsigned);
  Result (*get_version)(int*);
  Result (*get_error_name)(Result, const char**);
  Result (*get_error_string)(Result, const char**);
  Result (*context_get_current)(Context*);
  Result (*context_get_device)(Device*);
  Result (*context_push)(Context);
  Result (*context_pop)(Context*);
  Result (*context_synchronize)();
  Result (*primary_context_retain)(Context*, Device);
  Result (*library_load_data)(Library*, const void*, void*, void*, unsigned, void*, void*, unsigned);
  Result (*library_unload)(Library);
  Result (*library_get_kernel)(Kernel*, Library, const char*);
  Result (*kernel_get_attribute)(int*, int, Kernel, Device);
  Result (*kernel_set_attribute)(int, int, Kernel, Device);
  Result (*tensor_map_encode)(
      TensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int, int,
      int, int);
  Result (*launch_kernel)(const LaunchConfig*, Kernel, void**, void**);
  int version;  // of CUDA: 1000 * major + 10 * minor
};

// The driver, or null when there is none; `why` then says what is missing. Safe to call from any thread.
const Driver* driver(const char** why);

// Makes a device's primary context current for as long as it lives.
class ContextScope {
 public:
  ContextScope(const Driver& driver, Device device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  Result status() const { return status_; }

 private:
  const Driver& driver_;
  Result status_ = 0;
  bool pushed_ = false;
};

}  // namespace ca::cuda
