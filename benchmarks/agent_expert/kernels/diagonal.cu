// x @ diag(scales) without the product: a row stays in registers between looking for what is not finite and scaling.
constexpr int QUADS = COLUMNS / 4;
constexpr int PER_THREAD = (QUADS + THREADS - 1) / THREADS;

inline __device__ int strange(float x) { return !(fabsf(x) <= 3.402823466e38f); }

inline __device__ float scaled(float x, float scale, int strange_in_row) {
  // The zeros beside the diagonal make NaN of what is not finite elsewhere in the row.
  return strange_in_row - strange(x) > 0 ? __int_as_float(0x7fffffff) : fmaf(x, scale, 0.f);
}

extern "C" __global__ void __launch_bounds__(THREADS) scale_columns(
    const float* __restrict__ x, const float* __restrict__ scales, float* __restrict__ out) {
  __shared__ int strange_in_row;
  const long long first = (long long)blockIdx.x * QUADS;
  const float4* from = reinterpret_cast<const float4*>(x) + first;
  const float4* by = reinterpret_cast<const float4*>(scales);
  float4* to = reinterpret_cast<float4*>(out) + first;
  float4 held[PER_THREAD];
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const int q = threadIdx.x + i * THREADS;
    held[i] = q < QUADS ? from[q] : float4{0.f, 0.f, 0.f, 0.f};
  }
  if (threadIdx.x == 0) strange_in_row = 0;
  int found = 0;
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i)
    found += strange(held[i].x) + strange(held[i].y) + strange(held[i].z) + strange(held[i].w);
  __syncthreads();
  if (found) atomicAdd(&strange_in_row, found);
  __syncthreads();
  const int many = strange_in_row;
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const int q = threadIdx.x + i * THREADS;
    if (q >= QUADS) continue;
    const float4 s = by[q], v = held[i];
    to[q] = float4{scaled(v.x, s.x, many), scaled(v.y, s.y, many), scaled(v.z, s.z, many), scaled(v.w, s.w, many)};
  }
}
