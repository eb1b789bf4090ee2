// Products of many small matrices: one thread for each result.
extern "C" __global__ void __launch_bounds__(THREADS) products(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= (long long)BATCH * ROWS * COLUMNS) return;
  const int column = int(at % COLUMNS);
  const long long row = at / COLUMNS, batch = row / ROWS;
  float sum = 0.f;
  for (int k = 0; k < INNER; ++k) sum = fmaf(a[row * INNER + k], b[(batch * INNER + k) * COLUMNS + column], sum);
  out[at] = sum;
}
