// Library calls of a plan: see sandbox/plan/library_calls.py for what they mean.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ca {

struct View {
  int64_t buffer = 0, offset = 0;  // offset in elements
  int32_t dtype = 0;               // torch's code
  std::vector<int64_t> sizes, strides;
};

struct LibraryCall {
  bool convolution = false;
  View first, second, out;     // a and b, or x and weight
  std::optional<View> summand;  // c, or bias
  std::vector<int64_t> stride, padding, dilation, output_padding;
  int64_t groups = 1;
  bool transposed = false, benchmark = false;
};

// On addresses in plan order, on the device's current stream. Throws what torch throws. device: -1 is the cpu.
void run_library_call(const LibraryCall& call, void* const* buffers, int32_t device);

}  // namespace ca
