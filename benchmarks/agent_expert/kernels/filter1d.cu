// A filter along each row. A tile of the row lies in shared memory, the taps in registers; a thread makes four
// neighbouring results at a time and reads what they share once, in words of 16 bytes.
constexpr int PAD = TAPS / 2;
constexpr int LEFT = (PAD + 3) / 4 * 4;
constexpr int SHIFT = LEFT - PAD;
constexpr int WORDS = (TAPS + 3 + SHIFT + 3) / 4;
constexpr int HELD = TILE - 4 + 4 * WORDS;
constexpr int TILES = (LENGTH + TILE - 1) / TILE;

extern "C" __global__ void __launch_bounds__(THREADS) filter_rows(
    const float* __restrict__ x, const float* __restrict__ weights, float* __restrict__ out) {
  __shared__ __align__(16) float held[HELD];
  __shared__ float taps[TAPS];
  __shared__ int strange;
  const int row = blockIdx.x / TILES, tile = blockIdx.x % TILES, first = tile * TILE;
  const float* from = x + (long long)row * LENGTH;
  float* to = out + (long long)row * LENGTH;
  if (threadIdx.x == 0) strange = 0;
  __syncthreads();
  for (int k = threadIdx.x; k < TAPS; k += THREADS) {
    const float w = weights[row % CHANNELS * TAPS + k];
    taps[k] = w;
    if (!(fabsf(w) <= 3.402823466e38f)) atomicAdd(&strange, 1);
  }
  for (int q = threadIdx.x; q < HELD / 4; q += THREADS) {
    const int place = first - LEFT + 4 * q;  // LENGTH is a multiple of 4, so a word is inside or beside
    const bool there = place >= 0 && place < LENGTH;
    *reinterpret_cast<float4*>(&held[4 * q]) =
        there ? *reinterpret_cast<const float4*>(from + place) : float4{0.f, 0.f, 0.f, 0.f};
  }
  __syncthreads();
  if (strange && (tile == 0 || tile == TILES - 1)) {
    // A tap beside the row is no term: zero times an infinite weight would be NaN.
    for (int place = first + threadIdx.x; place < min(first + TILE, LENGTH); place += THREADS) {
      float sum = 0.f;
      for (int k = 0; k < TAPS; ++k)
        if (place + k >= PAD && place + k - PAD < LENGTH) sum = fmaf(from[place + k - PAD], taps[k], sum);
      to[place] = sum;
    }
    return;
  }
  float w[TAPS];
#pragma unroll
  for (int k = 0; k < TAPS; ++k) w[k] = taps[k];
  for (int q = threadIdx.x; q < TILE / 4 && first + 4 * q < LENGTH; q += THREADS) {
    float sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int word = 0; word < WORDS; ++word) {
      const float4 four = *reinterpret_cast<const float4*>(&held[4 * (q + word)]);
      const float v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          const int k = 4 * word + e - o - SHIFT;
          if (k >= 0 && k < TAPS) sums[o] = fmaf(v[e], w[k], sums[o]);
        }
    }
    *reinterpret_cast<float4*>(to + first + 4 * q) = float4{sums[0], sums[1], sums[2], sums[3]};
  }
}
