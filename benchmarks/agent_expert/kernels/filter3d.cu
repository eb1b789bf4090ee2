// A 5x3x3 filter for each channel of a volume. A block goes through the planes of a strip of rows: the plane lies in
// shared memory, with the next one under way in registers; a thread makes four columns of one row and carries the five
// planes of results that a plane has a part in. So everything is read from memory once but for the strips' edges.
constexpr int WORDS = WIDTH / 4;
constexpr int PITCH = WIDTH + 8;
constexpr int STRIPS = (HEIGHT + STRIP - 1) / STRIP;
constexpr int THREADS = WORDS * STRIP;
constexpr int AREA = HEIGHT * WIDTH;
static_assert(WIDTH % 4 == 0 && THREADS >= 2 * WORDS, "");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) filter_volumes(
    const float* __restrict__ x, const float* __restrict__ weights, const float* __restrict__ bias,
    float* __restrict__ out) {
  __shared__ __align__(16) float held[2][STRIP + 2][PITCH];
  __shared__ float taps[45];
  __shared__ int strange;
  const int volume = blockIdx.x / STRIPS, channel = volume % CHANNELS;
  const int first = int(blockIdx.x % STRIPS) * STRIP;
  const int word = threadIdx.x % WORDS, line = threadIdx.x / WORDS, row = first + line;
  const float* from = x + (long long)volume * DEPTH * AREA;
  float* to = out + (long long)volume * DEPTH * AREA + row * WIDTH + 4 * word;
  if (threadIdx.x == 0) strange = 0;
  for (int i = threadIdx.x; i < 2 * (STRIP + 2) * 8; i += THREADS) {
    const int at = i % 8 < 4 ? i % 8 : WIDTH + i % 8;
    held[i / 8 / (STRIP + 2)][i / 8 % (STRIP + 2)][at] = 0.f;
  }
  __syncthreads();
  for (int k = threadIdx.x; k < 45; k += THREADS) {
    const float w = weights[channel * 45 + k];
    taps[k] = w;
    if (!(fabsf(w) <= 3.402823466e38f)) atomicAdd(&strange, 1);
  }
  __syncthreads();
  const float start = bias[channel];
  if (strange) {
    // A tap beside the volume is no term: zero times an infinite weight would be NaN.
    for (int deep = 0; row < HEIGHT && deep < DEPTH; ++deep)
      for (int j = 0; j < 4; ++j) {
        float sum = start;
        for (int k = 0; k < 45; ++k) {
          const int d = deep + k / 9 - 2, r = row + k / 3 % 3 - 1, c = 4 * word + j + k % 3 - 1;
          if (d >= 0 && d < DEPTH && r >= 0 && r < HEIGHT && c >= 0 && c < WIDTH)
            sum = fmaf(from[d * AREA + r * WIDTH + c], taps[k], sum);
        }
        to[deep * AREA + j] = sum;
      }
    return;
  }
  float w[45];
#pragma unroll
  for (int k = 0; k < 45; ++k) w[k] = taps[k];
  // The own word of the plane, and for some threads one of the rows above and below the strip.
  const bool mine = row < HEIGHT, edge = int(threadIdx.x) < 2 * WORDS;
  const int other = line == 0 ? first - 1 : first + STRIP;
  const bool also = edge && other >= 0 && other < HEIGHT;
  const float* own = from + row * WIDTH + 4 * word;
  const float* beside = from + other * WIDTH + 4 * word;
  float* own_place = &held[0][1 + line][4 + 4 * word];
  float* beside_place = &held[0][line == 0 ? 0 : STRIP + 1][4 + 4 * word];
  constexpr int NEXT = (STRIP + 2) * PITCH;
  const float4 none{0.f, 0.f, 0.f, 0.f};
  float4 got = mine ? *reinterpret_cast<const float4*>(own) : none;
  float4 more = also ? *reinterpret_cast<const float4*>(beside) : none;
  float sums[5][4];
#pragma unroll
  for (int o = 0; o < 5; ++o)
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[o][j] = start;
#pragma unroll 1
  for (int d = 0; d < DEPTH + 2; ++d) {
    if (d < DEPTH) {
      const int half = d % 2 * NEXT;
      *reinterpret_cast<float4*>(own_place + half) = got;
      if (edge) *reinterpret_cast<float4*>(beside_place + half) = more;
      __syncthreads();  // of two halves, so that the other one may still be read
      if (d + 1 < DEPTH) {
        if (mine) got = *reinterpret_cast<const float4*>(own + (d + 1) * AREA);
        if (also) more = *reinterpret_cast<const float4*>(beside + (d + 1) * AREA);
      }
#pragma unroll
      for (int r = 0; r < 3; ++r) {
        const float* near = &held[d % 2][line + r][4 * word + 4];
        const float4 four = *reinterpret_cast<const float4*>(near);
        const float v[6] = {near[-1], four.x, four.y, four.z, four.w, near[4]};
#pragma unroll
        for (int o = 0; o < 5; ++o)  // results of plane d - 2 + o, by the tap 4 - o of the depth
#pragma unroll
          for (int k = 0; k < 3; ++k)
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[o][j] = fmaf(v[j + k], w[(4 - o) * 9 + r * 3 + k], sums[o][j]);
      }
    }
    if (d >= 2 && mine)
      *reinterpret_cast<float4*>(to + (d - 2) * AREA) = float4{sums[0][0], sums[0][1], sums[0][2], sums[0][3]};
#pragma unroll
    for (int o = 0; o < 4; ++o)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[o][j] = sums[o + 1][j];
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[4][j] = start;
  }
}
