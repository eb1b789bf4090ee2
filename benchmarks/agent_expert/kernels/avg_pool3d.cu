// The average of 4x3x3 values that overlap in depth. A thread makes four neighbouring results, twelve columns in three words
// of 16 bytes, and goes through the planes of PLANES_OUT of them: the sum of two planes serves two results, so
// everything is read once but where two threads' planes meet.
constexpr int WORDS = WIDTH / 4;
constexpr int GROUPS = (OUT_WIDTH + 3) / 4;
constexpr int PARTS = (OUT_DEPTH + PLANES_OUT - 1) / PLANES_OUT;
constexpr int AREA = HEIGHT * WIDTH;
static_assert(WIDTH % 4 == 0 && OUT_WIDTH % 2 == 0, "");

struct Four { float v[4]; };

// Sums over three rows of two planes, of the columns of four results.
inline __device__ Four of_planes(const float* plane, int group) {
  Four sums{{0.f, 0.f, 0.f, 0.f}};
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    const float4* near = reinterpret_cast<const float4*>(plane + i / 3 * AREA + i % 3 * WIDTH) + 3 * group;
    const float4 none{0.f, 0.f, 0.f, 0.f};
    const float4 a = near[0];
    const float4 b = 3 * group + 1 < WORDS ? near[1] : none;
    const float4 c = 3 * group + 2 < WORDS ? near[2] : none;
    sums.v[0] += a.x + a.y + a.z;
    sums.v[1] += a.w + b.x + b.y;
    sums.v[2] += b.z + b.w + c.x;
    sums.v[3] += c.y + c.z + c.w;
  }
  return sums;
}

extern "C" __global__ void __launch_bounds__(THREADS) avg_pool(const float* __restrict__ x, float* __restrict__ out) {
  const int at = blockIdx.x * THREADS + threadIdx.x;
  if (at >= VOLUMES * PARTS * OUT_HEIGHT * GROUPS) return;
  const int group = at % GROUPS, row = at / GROUPS % OUT_HEIGHT;
  const int part = at / GROUPS / OUT_HEIGHT % PARTS, volume = at / GROUPS / OUT_HEIGHT / PARTS;
  const float* from = x + (long long)volume * DEPTH * AREA + 3 * row * WIDTH;
  const int first = part * PLANES_OUT, last = min(first + PLANES_OUT, OUT_DEPTH);
  float* to = out + ((long long)volume * OUT_DEPTH * OUT_HEIGHT + row) * OUT_WIDTH + 4 * group;
  Four before = of_planes(from + 2 * first * AREA, group);
#pragma unroll AHEAD
  for (int deep = first; deep < last; ++deep) {
    const Four after = of_planes(from + (2 * deep + 2) * AREA, group);
    float2* place = reinterpret_cast<float2*>(to + (long long)deep * OUT_HEIGHT * OUT_WIDTH);
    place[0] = float2{(before.v[0] + after.v[0]) / 36.f, (before.v[1] + after.v[1]) / 36.f};
    if (4 * group + 2 < OUT_WIDTH)
      place[1] = float2{(before.v[2] + after.v[2]) / 36.f, (before.v[3] + after.v[3]) / 36.f};
    before = after;
  }
}
