// The average of the 7x7 values around each, as far as they are inside: one thread for each result.
extern "C" __global__ void __launch_bounds__(THREADS) box_filter(const float* __restrict__ x, float* __restrict__ out) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= (long long)PLANES * HEIGHT * WIDTH) return;
  const int column = int(at % WIDTH), row = int(at / WIDTH % HEIGHT);
  const float* plane = x + at / WIDTH / HEIGHT * HEIGHT * WIDTH;
  const int left = max(column - 3, 0), right = min(column + 3, WIDTH - 1);
  const int top = max(row - 3, 0), bottom = min(row + 3, HEIGHT - 1);
  float sum = 0.f;
  for (int r = top; r <= bottom; ++r)
    for (int c = left; c <= right; ++c) sum += plane[r * WIDTH + c];
  out[at] = sum / float((right - left + 1) * (bottom - top + 1));
}
