// Two 5x5 filters with stride 2 for each channel: one thread for each result.
extern "C" __global__ void __launch_bounds__(THREADS) filter_planes(
    const float* __restrict__ x, const float* __restrict__ weights, const float* __restrict__ bias,
    float* __restrict__ out) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= (long long)2 * PLANES * OUT_HEIGHT * OUT_WIDTH) return;
  const int column = int(at % OUT_WIDTH), row = int(at / OUT_WIDTH % OUT_HEIGHT);
  const long long made = at / OUT_WIDTH / OUT_HEIGHT;
  const int channel = int(made % (2 * CHANNELS));
  const float* plane = x + made / 2 * HEIGHT * WIDTH;
  float sum = 0.f;
  for (int i = 0; i < 5; ++i)
    for (int j = 0; j < 5; ++j) {
      const int r = 2 * row + i - 2, c = 2 * column + j - 2;
      if (r >= 0 && r < HEIGHT && c >= 0 && c < WIDTH)
        sum = fmaf(plane[r * WIDTH + c], weights[(channel * 5 + i) * 5 + j], sum);
    }
  out[at] = sum + bias[channel];
}
