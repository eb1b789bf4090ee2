// The largest value so far along each row. A whole row is in the registers of its block: each warp has a run of it, in
// pieces of 32 words of 16 bytes, all read before the first is used. Warps scan their pieces side by side and meet once.
constexpr int QUADS = COLUMNS / 4;
constexpr int WARPS = THREADS / 32;
constexpr int PIECES = (QUADS + THREADS - 1) / THREADS;
static_assert(COLUMNS % 4 == 0, "");

inline __device__ float larger(float a, float b) {
#ifdef __CUDA_ARCH__
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a > b || a != a ? a : b;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) running_maximum(const float* __restrict__ x, float* __restrict__ out) {
  __shared__ float of_warp[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float4* from = reinterpret_cast<const float4*>(x) + (long long)blockIdx.x * QUADS;
  float4* to = reinterpret_cast<float4*>(out) + (long long)blockIdx.x * QUADS;
  const float least = __int_as_float(0xff800000);
  float4 held[PIECES];
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const int q = (warp * PIECES + i) * 32 + lane;
    held[i] = q < QUADS ? from[q] : float4{least, least, least, least};
  }
  float so_far = least;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    held[i].y = larger(held[i].y, held[i].x);
    held[i].z = larger(held[i].z, held[i].y);
    held[i].w = larger(held[i].w, held[i].z);
    float best = held[i].w;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, best, by);
      if (lane >= by) best = larger(best, other);
    }
    float before = __shfl_up_sync(0xffffffffu, best, 1);
    before = larger(so_far, lane == 0 ? least : before);
    so_far = larger(so_far, __shfl_sync(0xffffffffu, best, 31));
    held[i].x = larger(held[i].x, before);
    held[i].y = larger(held[i].y, before);
    held[i].z = larger(held[i].z, before);
    held[i].w = larger(held[i].w, before);
  }
  if (lane == 0) of_warp[warp] = so_far;
  __syncthreads();
  float before = least;
  for (int other = 0; other < warp; ++other) before = larger(before, of_warp[other]);
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const int q = (warp * PIECES + i) * 32 + lane;
    if (q < QUADS)
      to[q] = float4{larger(held[i].x, before), larger(held[i].y, before), larger(held[i].z, before), larger(held[i].w, before)};
  }
}
