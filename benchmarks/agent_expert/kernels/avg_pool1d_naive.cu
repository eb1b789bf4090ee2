// The average of eleven values at every second place, zeros beside the row: one thread for each result.
extern "C" __global__ void __launch_bounds__(THREADS) avg_pool(const float* __restrict__ x, float* __restrict__ out) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= (long long)ROWS * OUT_LENGTH) return;
  const float* row = x + at / OUT_LENGTH * LENGTH;
  const int middle = 2 * int(at % OUT_LENGTH);
  float sum = 0.f;
  for (int i = max(middle - 5, 0); i <= min(middle + 5, LENGTH - 1); ++i) sum += row[i];
  out[at] = sum / 11.f;
}
