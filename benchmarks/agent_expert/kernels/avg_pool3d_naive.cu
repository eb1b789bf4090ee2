// The average of 4x3x3 values that overlap in depth: one thread for each result.
extern "C" __global__ void __launch_bounds__(THREADS) avg_pool(const float* __restrict__ x, float* __restrict__ out) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= (long long)VOLUMES * OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH) return;
  const int column = int(at % OUT_WIDTH), row = int(at / OUT_WIDTH % OUT_HEIGHT);
  const int deep = int(at / OUT_WIDTH / OUT_HEIGHT % OUT_DEPTH);
  const float* from = x + at / OUT_WIDTH / OUT_HEIGHT / OUT_DEPTH * DEPTH * HEIGHT * WIDTH;
  from += (2 * deep * HEIGHT + 3 * row) * WIDTH + 3 * column;
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < 36; ++k) sum += from[(k / 9 * HEIGHT + k / 3 % 3) * WIDTH + k % 3];
  out[at] = sum / 36.f;
}
