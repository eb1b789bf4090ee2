// The largest of nine values that lie DILATION apart: one thread for each result. NaN counts as the largest.
extern "C" __global__ void __launch_bounds__(THREADS) max_pool(const float* __restrict__ x, float* __restrict__ out) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= (long long)PLANES * OUT_HEIGHT * OUT_WIDTH) return;
  const int column = int(at % OUT_WIDTH), row = int(at / OUT_WIDTH % OUT_HEIGHT);
  const float* from = x + at / OUT_WIDTH / OUT_HEIGHT * HEIGHT * WIDTH;
  float best = __int_as_float(0xff800000);
  for (int k = 0; k < 9; ++k) {
    const int r = row - 1 + k / 3 * DILATION, c = column - 1 + k % 3 * DILATION;
    if (r < 0 || r >= HEIGHT || c < 0 || c >= WIDTH) continue;
    const float v = from[r * WIDTH + c];
    best = v > best || v != v ? v : best;
  }
  out[at] = best;
}
