#include "library.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/cudnn_convolution.h>
#include <ATen/ops/cudnn_convolution_transpose.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/DeviceGuard.h>

namespace ca {
namespace {

at::Tensor tensor(const View& view, void* const* buffers, at::Device device) {
  const auto options = at::TensorOptions(static_cast<at::ScalarType>(view.dtype)).device(device);
  auto* start = static_cast<char*>(buffers[view.buffer]) + view.offset * static_cast<int64_t>(options.dtype().itemsize());
  return at::for_blob(start, view.sizes).strides(view.strides).options(options).target_device(device).make_tensor();
}

void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, at::Tensor& out) {
  const bool single = a.dim() == 2;
  if (!c.defined()) {
    single ? at::mm_out(out, a, b) : at::bmm_out(out, a, b);
  } else {
    single ? at::addmm_out(out, c, a, b) : at::baddbmm_out(out, c, a, b);
  }
}

std::vector<int64_t> behind(bool line, int64_t value, const std::vector<int64_t>& numbers) {
  std::vector<int64_t> all(line ? 1 : 0, value);
  all.insert(all.end(), numbers.begin(), numbers.end());
  return all;
}

// cuDNN has no convolution of one dimension: it is one of two, with a first one of size 1.
void by_cudnn(const LibraryCall& call, at::Tensor x, at::Tensor weight, at::Tensor out) {
  const bool line = out.dim() == 3;
  if (line) {
    x = x.unsqueeze(2);
    weight = weight.unsqueeze(2);
    out = out.unsqueeze(2);
  }
  const auto stride = behind(line, 1, call.stride), padding = behind(line, 0, call.padding);
  const auto dilation = behind(line, 1, call.dilation), more = behind(line, 0, call.output_padding);
  const auto& context = at::globalContext();
  const bool exact = context.deterministicAlgorithms() || context.deterministicCuDNN(), users = context.benchmarkCuDNN();
  // Torch keeps one algorithm for each shape and these flags, and measures only where it has none yet: a call of the user's, or of
  // a baseline, before ours would decide for it, and ours for those after. Deterministic algorithms are kept apart from theirs.
  const bool apart = call.benchmark && !users && !exact;
  const bool benchmark = users || apart, deterministic = exact || apart;
  const bool tf32 = context.allowTF32CuDNN(at::Float32Op::CONV);
  if (call.transposed) {
    out.copy_(at::cudnn_convolution_transpose(
        x, weight, padding, more, stride, dilation, call.groups, benchmark, deterministic, tf32));
  } else {
    at::cudnn_convolution_out(
        out, x, weight, padding, stride, dilation, call.groups, benchmark, deterministic, tf32);
  }
}

void convolve(
    const LibraryCall& call, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& out) {
  if (x.is_cpu() || !at::globalContext().userEnabledCuDNN()) {
    const auto given = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
    out.copy_(at::convolution(
        x, weight, given, call.stride, call.padding, call.dilation, call.transposed, call.output_padding, call.groups));
    return;
  }
  by_cudnn(call, x, weight, out);
  if (!bias.defined()) return;
  std::vector<int64_t> shape(static_cast<size_t>(out.dim() - 1), 1);
  shape[0] = -1;
  out.add_(bias.view(shape));
}

}  // namespace

void run_library_call(const LibraryCall& call, void* const* buffers, int32_t device) {
  const at::AutoDispatchBelowAutograd no_gradients;
  // What the plan says is computed, in the dtypes that it says.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Device place = device < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<int8_t>(device));
  c10::OptionalDeviceGuard guard;
  if (device >= 0) guard.reset_device(place);
  const at::Tensor first = tensor(call.first, buffers, place), second = tensor(call.second, buffers, place);
  const at::Tensor summand = call.summand ? tensor(*call.summand, buffers, place) : at::Tensor();
  at::Tensor out = tensor(call.out, buffers, place);
  if (call.convolution) {
    convolve(call, first, second, summand, out);
  } else {
    multiply(first, second, summand, out);
  }
}

}  // namespace ca
