// A filter along each row: one thread for each result.
extern "C" __global__ void __launch_bounds__(THREADS) filter_rows(
    const float* __restrict__ x, const float* __restrict__ weights, float* __restrict__ out) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= (long long)ROWS * LENGTH) return;
  const int place = int(at % LENGTH), channel = int(at / LENGTH % CHANNELS);
  const float* row = x + at / LENGTH * LENGTH;
  float sum = 0.f;
  for (int k = 0; k < TAPS; ++k) {
    const int from = place - TAPS / 2 + k;
    if (from >= 0 && from < LENGTH) sum = fmaf(row[from], weights[channel * TAPS + k], sum);
  }
  out[at] = sum;
}
