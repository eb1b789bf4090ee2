// The largest of 3x3x3 values at every second place. A thread makes two neighbouring results and goes through the planes
// of PLANES_OUT of them: of a plane it reads three words of 16 bytes and the value to the left of each. The maxima of
// each plane serve up to two results, and blocks' neighbours find the rows that they share in the L1 cache.
constexpr int WORDS = WIDTH / 4;
constexpr int PARTS = (OUT_DEPTH + PLANES_OUT - 1) / PLANES_OUT;
constexpr int AREA = HEIGHT * WIDTH;
static_assert(WIDTH % 4 == 0 && OUT_WIDTH == WIDTH / 2 && DEPTH == 2 * OUT_DEPTH, "");

inline __device__ float larger(float a, float b) {
#ifdef __CUDA_ARCH__
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a > b || a != a ? a : b;
#endif
}

// The maxima of a plane's part in two results.
inline __device__ float2 of_plane(const float* plane, int row, int word) {
  const float least = __int_as_float(0xff800000);
  float2 best{least, least};
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int r = 2 * row + i - 1;
    if (r < 0 || r >= HEIGHT) continue;
    const float* near = plane + r * WIDTH + 4 * word;
    const float4 four = *reinterpret_cast<const float4*>(near);
    const float left = word > 0 ? near[-1] : least;
    best.x = larger(best.x, larger(left, larger(four.x, four.y)));
    best.y = larger(best.y, larger(four.y, larger(four.z, four.w)));
  }
  return best;
}

extern "C" __global__ void __launch_bounds__(THREADS) max_pool(const float* __restrict__ x, float* __restrict__ out) {
  const int at = blockIdx.x * THREADS + threadIdx.x;
  if (at >= VOLUMES * PARTS * OUT_HEIGHT * WORDS) return;
  const int word = at % WORDS, row = at / WORDS % OUT_HEIGHT;
  const int part = at / WORDS / OUT_HEIGHT % PARTS, volume = at / WORDS / OUT_HEIGHT / PARTS;
  const float* from = x + (long long)volume * DEPTH * AREA;
  const int first = part * PLANES_OUT, last = min(first + PLANES_OUT, OUT_DEPTH);
  float* to = out + ((long long)volume * OUT_DEPTH * OUT_HEIGHT + row) * OUT_WIDTH + 2 * word;
  const float least = __int_as_float(0xff800000);
  float2 before{least, least};
  if (first > 0) before = of_plane(from + (2 * first - 1) * AREA, row, word);
#pragma unroll AHEAD
  for (int deep = first; deep < last; ++deep) {
    const float2 here = of_plane(from + 2 * deep * AREA, row, word);
    const float2 after = of_plane(from + (2 * deep + 1) * AREA, row, word);
    *reinterpret_cast<float2*>(to + (long long)deep * OUT_HEIGHT * OUT_WIDTH) =
        float2{larger(before.x, larger(here.x, after.x)), larger(before.y, larger(here.y, after.y))};
    before = after;
  }
}
