// A KxK filter for each channel, padded to the same size: one thread for each result.
extern "C" __global__ void __launch_bounds__(THREADS) filter_planes(
    const float* __restrict__ x, const float* __restrict__ weights, const float* __restrict__ bias,
    float* __restrict__ out) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= (long long)PLANES * HEIGHT * WIDTH) return;
  const int column = int(at % WIDTH), row = int(at / WIDTH % HEIGHT);
  const int channel = int(at / WIDTH / HEIGHT % CHANNELS);
  const float* plane = x + at / WIDTH / HEIGHT * HEIGHT * WIDTH;
  float sum = 0.f;
  for (int i = 0; i < TAPS; ++i)
    for (int j = 0; j < TAPS; ++j) {
      const int r = row + i - TAPS / 2, c = column + j - TAPS / 2;
      if (r >= 0 && r < HEIGHT && c >= 0 && c < WIDTH)
        sum = fmaf(plane[r * WIDTH + c], weights[(channel * TAPS + i) * TAPS + j], sum);
    }
  out[at] = sum + bias[channel];
}
