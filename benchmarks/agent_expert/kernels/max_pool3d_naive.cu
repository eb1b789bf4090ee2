// The largest of 3x3x3 values at every second place: one thread for each result. NaN counts as the largest.
extern "C" __global__ void __launch_bounds__(THREADS) max_pool(const float* __restrict__ x, float* __restrict__ out) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= (long long)VOLUMES * OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH) return;
  const int column = int(at % OUT_WIDTH), row = int(at / OUT_WIDTH % OUT_HEIGHT);
  const int deep = int(at / OUT_WIDTH / OUT_HEIGHT % OUT_DEPTH);
  const float* from = x + at / OUT_WIDTH / OUT_HEIGHT / OUT_DEPTH * DEPTH * HEIGHT * WIDTH;
  float best = __int_as_float(0xff800000);
  for (int k = 0; k < 27; ++k) {
    const int d = 2 * deep + k / 9 - 1, r = 2 * row + k / 3 % 3 - 1, c = 2 * column + k % 3 - 1;
    if (d < 0 || d >= DEPTH || r < 0 || r >= HEIGHT || c < 0 || c >= WIDTH) continue;
    const float v = from[(d * HEIGHT + r) * WIDTH + c];
    best = v > best || v != v ? v : best;
  }
  out[at] = best;
}
