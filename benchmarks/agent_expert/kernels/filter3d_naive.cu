// A 5x3x3 filter for each channel of a volume: one thread for each result.
extern "C" __global__ void __launch_bounds__(THREADS) filter_volumes(
    const float* __restrict__ x, const float* __restrict__ weights, const float* __restrict__ bias,
    float* __restrict__ out) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= (long long)VOLUMES * DEPTH * HEIGHT * WIDTH) return;
  const int column = int(at % WIDTH), row = int(at / WIDTH % HEIGHT), deep = int(at / WIDTH / HEIGHT % DEPTH);
  const long long volume = at / WIDTH / HEIGHT / DEPTH;
  const int channel = int(volume % CHANNELS);
  const float* from = x + volume * DEPTH * HEIGHT * WIDTH;
  float sum = 0.f;
  for (int k = 0; k < 45; ++k) {
    const int d = deep + k / 9 - 2, r = row + k / 3 % 3 - 1, c = column + k % 3 - 1;
    if (d >= 0 && d < DEPTH && r >= 0 && r < HEIGHT && c >= 0 && c < WIDTH)
      sum = fmaf(from[(d * HEIGHT + r) * WIDTH + c], weights[channel * 45 + k], sum);
  }
  out[at] = sum + bias[channel];
}
