// A template: the body of the kernel that combines what blocks came to, one thread for each result.
// ---
constexpr int L = 1, features = $features;
const int at = blockIdx.x * $threads + threadIdx.x;
if (at >= $elements) return;
const int batch = at / features, $feature = at % features;
$batch_loops
$scaling
float top = -INFINITY, mass = 0.f, all = 0.f;
for (int k = 0; k < $segments; ++k) top = higher(top, $top[batch * $segments + k]);
#pragma unroll 4
for (int k = 0; k < $segments; ++k) {
  const int block = batch * $segments + k;
  const float by = factor($top[block], top);
  mass = fmaf(by, $mass[block], mass);
  all = fmaf(by, $part[block * features + $feature], all);
}
const auto total = ca::splat<float, 1>(all / mass);
$tail_lines
