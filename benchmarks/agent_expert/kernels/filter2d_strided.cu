// Two 5x5 filters with stride 2 for each channel. What a strip of results reads lies in shared memory, with zeros beside
// the image, both filters in registers; a thread makes HIGH rows of one column for both.
constexpr int PITCH = 2 * OUT_WIDTH + 4;
constexpr int STRIP = HIGH * GROUPS;
constexpr int STRIPS = (OUT_HEIGHT + STRIP - 1) / STRIP;
constexpr int HELD = 2 * STRIP + 3;
static_assert(WIDTH % 2 == 0 && THREADS >= OUT_WIDTH * GROUPS, "");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) filter_planes(
    const float* __restrict__ x, const float* __restrict__ weights, const float* __restrict__ bias,
    float* __restrict__ out) {
  __shared__ __align__(16) float held[HELD][PITCH];
  __shared__ float taps[2 * 25];
  __shared__ int strange;
  const int plane = blockIdx.x / STRIPS, channel = plane % CHANNELS;
  const int first = int(blockIdx.x % STRIPS) * STRIP;
  const float* from = x + (long long)plane * HEIGHT * WIDTH;
  float* to = out + (long long)2 * plane * OUT_HEIGHT * OUT_WIDTH;
  if (threadIdx.x == 0) strange = 0;
  __syncthreads();
  for (int k = threadIdx.x; k < 2 * 25; k += THREADS) {
    const float w = weights[2 * channel * 25 + k];
    taps[k] = w;
    if (!(fabsf(w) <= 3.402823466e38f)) atomicAdd(&strange, 1);
  }
  for (int i = threadIdx.x; i < HELD * (PITCH / 2); i += THREADS) {
    const int line = i / (PITCH / 2), pair = i % (PITCH / 2);
    const int row = 2 * first - 2 + line, column = 2 * pair - 2;
    const bool there = row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH;
    *reinterpret_cast<float2*>(&held[line][2 * pair]) =
        there ? *reinterpret_cast<const float2*>(from + row * WIDTH + column) : float2{0.f, 0.f};
  }
  __syncthreads();
  const int column = threadIdx.x % OUT_WIDTH, group = threadIdx.x / OUT_WIDTH;
  if (group >= GROUPS) return;
  const float start[2] = {bias[2 * channel], bias[2 * channel + 1]};
  float sums[HIGH][2];
#pragma unroll
  for (int o = 0; o < HIGH; ++o) sums[o][0] = start[0], sums[o][1] = start[1];
  if (strange) {
    // A tap beside the image is no term: zero times an infinite weight would be NaN.
    for (int o = 0; o < HIGH; ++o)
      for (int m = 0; m < 2; ++m) {
        const int row = first + group * HIGH + o;
        if (row >= OUT_HEIGHT) continue;
        float sum = start[m];
        for (int k = 0; k < 25; ++k) {
          const int y = 2 * row + k / 5 - 2, z = 2 * column + k % 5 - 2;
          if (y >= 0 && y < HEIGHT && z >= 0 && z < WIDTH) sum = fmaf(from[y * WIDTH + z], taps[m * 25 + k], sum);
        }
        to[(m * OUT_HEIGHT + row) * OUT_WIDTH + column] = sum;
      }
    return;
  }
  float w[2 * 25];
#pragma unroll
  for (int k = 0; k < 2 * 25; ++k) w[k] = taps[k];
#pragma unroll
  for (int r = 0; r < 2 * HIGH + 3; ++r) {
    const float2* near = reinterpret_cast<const float2*>(&held[2 * group * HIGH + r][2 * column]);
    const float2 a = near[0], b = near[1], c = near[2];
    const float v[5] = {a.x, a.y, b.x, b.y, c.x};
#pragma unroll
    for (int o = 0; o < HIGH; ++o) {
      const int i = r - 2 * o;
      if (i < 0 || i >= 5) continue;
#pragma unroll
      for (int k = 0; k < 5; ++k) {
        sums[o][0] = fmaf(v[k], w[5 * i + k], sums[o][0]);
        sums[o][1] = fmaf(v[k], w[25 + 5 * i + k], sums[o][1]);
      }
    }
  }
#pragma unroll
  for (int o = 0; o < HIGH; ++o) {
    const int row = first + group * HIGH + o;
    if (row >= OUT_HEIGHT) continue;
    to[row * OUT_WIDTH + column] = sums[o][0];
    to[(OUT_HEIGHT + row) * OUT_WIDTH + column] = sums[o][1];
  }
}
