// The largest value so far along each row: a block goes along a row in tiles and carries what was largest.
inline __device__ float larger(float a, float b) { return a > b || a != a ? a : b; }

extern "C" __global__ void __launch_bounds__(THREADS) running_maximum(const float* __restrict__ x, float* __restrict__ out) {
  __shared__ float of_warp[THREADS / 32];
  const long long row = (long long)blockIdx.x * COLUMNS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float least = __int_as_float(0xff800000);
  float carry = least;
  for (int base = 0; base < COLUMNS; base += THREADS) {
    const int column = base + threadIdx.x;
    float best = column < COLUMNS ? x[row + column] : least;
    for (int by = 1; by < 32; by *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, best, by);
      if (lane >= by) best = larger(best, other);
    }
    __syncthreads();  // the maxima of the tile before have been read
    if (lane == 31) of_warp[warp] = best;
    __syncthreads();
    float all = carry;
    for (int other = 0; other < THREADS / 32; ++other) {
      if (other == warp) best = larger(best, all);
      all = larger(all, of_warp[other]);
    }
    carry = all;
    if (column < COLUMNS) out[row + column] = best;
  }
}
