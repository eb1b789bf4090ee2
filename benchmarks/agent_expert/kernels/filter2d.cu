// A 9x9 filter for each channel, padded to the same size. A strip of a plane lies in shared memory with zeros beside it;
// a thread makes HIGH rows of four columns and goes through the rows that they read, each value used up to 9 * HIGH times.
constexpr int PAD = TAPS / 2;
constexpr int WORDS = (WIDTH + 3) / 4;
constexpr int PITCH = 4 * WORDS + 8;
constexpr int STRIPS = (HEIGHT + STRIP - 1) / STRIP;
constexpr int HELD = STRIP + TAPS - 1;
static_assert(TAPS == 9 && WIDTH % 2 == 0 && STRIP % HIGH == 0 && THREADS >= WORDS * (STRIP / HIGH), "");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) filter_planes(
    const float* __restrict__ x, const float* __restrict__ weights, const float* __restrict__ bias,
    float* __restrict__ out) {
  extern __shared__ __align__(16) float held[];
  __shared__ __align__(16) float taps[TAPS][12];
  __shared__ int strange;
  const int plane = blockIdx.x / STRIPS, channel = plane % CHANNELS;
  const int first = int(blockIdx.x % STRIPS) * STRIP;
  const float* from = x + (long long)plane * HEIGHT * WIDTH;
  float* to = out + (long long)plane * HEIGHT * WIDTH;
  if (threadIdx.x == 0) strange = 0;
  __syncthreads();
  for (int k = threadIdx.x; k < TAPS * TAPS; k += THREADS) {
    const float w = weights[channel * TAPS * TAPS + k];
    taps[k / TAPS][k % TAPS] = w;
    if (!(fabsf(w) <= 3.402823466e38f)) atomicAdd(&strange, 1);
  }
  for (int i = threadIdx.x; i < HELD * (PITCH / 2); i += THREADS) {
    const int row = first - PAD + i / (PITCH / 2), column = i % (PITCH / 2) * 2 - PAD;
    const bool there = row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH;
    *reinterpret_cast<float2*>(&held[2 * i]) =
        there ? *reinterpret_cast<const float2*>(from + row * WIDTH + column) : float2{0.f, 0.f};
  }
  __syncthreads();
  const float start = bias[channel];
  if (strange) {
    // A tap beside the image is no term: zero times an infinite weight would be NaN.
    for (int i = threadIdx.x; i < STRIP * WIDTH; i += THREADS) {
      const int row = first + i / WIDTH, column = i % WIDTH;
      if (row >= HEIGHT) continue;
      float sum = start;
      for (int r = 0; r < TAPS; ++r)
        for (int c = 0; c < TAPS; ++c) {
          const int y = row + r - PAD, z = column + c - PAD;
          if (y >= 0 && y < HEIGHT && z >= 0 && z < WIDTH) sum = fmaf(from[y * WIDTH + z], taps[r][c], sum);
        }
      to[row * WIDTH + column] = sum;
    }
    return;
  }
  const int word = threadIdx.x % WORDS, group = threadIdx.x / WORDS;
  if (group >= STRIP / HIGH) return;
  float sums[HIGH][4];
#pragma unroll
  for (int o = 0; o < HIGH; ++o)
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[o][j] = start;
#pragma unroll
  for (int r = 0; r < HIGH + TAPS - 1; ++r) {
    float v[12];
    const float4* near = reinterpret_cast<const float4*>(&held[(group * HIGH + r) * PITCH + 4 * word]);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const float4 four = near[i];
      v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
    }
#pragma unroll
    for (int o = 0; o < HIGH; ++o) {
      if (r - o < 0 || r - o >= TAPS) continue;
#pragma unroll
      for (int k = 0; k < TAPS; ++k)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[o][j] = fmaf(v[j + k], taps[r - o][k], sums[o][j]);
    }
  }
#pragma unroll
  for (int o = 0; o < HIGH; ++o) {
    const int row = first + group * HIGH + o;
    if (row >= HEIGHT) continue;
    float2* place = reinterpret_cast<float2*>(to + row * WIDTH + 4 * word);
    place[0] = float2{sums[o][0], sums[o][1]};
    if (4 * word + 2 < WIDTH) place[1] = float2{sums[o][2], sums[o][3]};
  }
}
