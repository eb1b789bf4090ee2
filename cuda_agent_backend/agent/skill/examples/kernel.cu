// out[r, c] = x[r, c] * w[c] / (1 + mean over c of |x[r, c]|), x float32[4096, 2048].
//
// One block of 256 threads makes one row. A row is read from memory once, 16 bytes a thread and load, stays in
// registers while the block adds up its absolute values, and is written once: the least traffic there can be.

constexpr int COLUMNS = 2048;
constexpr int THREADS = 256;
constexpr int VECTORS = COLUMNS / (4 * THREADS);  // float4 of each thread

extern "C" __global__ void __launch_bounds__(THREADS) kernel(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ out) {
  __shared__ float partial[THREADS / 32];
  const long long row = blockIdx.x;
  const float4* from = reinterpret_cast<const float4*>(x + row * COLUMNS);
  const float4* scale = reinterpret_cast<const float4*>(w);
  float4* to = reinterpret_cast<float4*>(out + row * COLUMNS);

  float4 kept[VECTORS];
  float sum = 0.0f;
  #pragma unroll
  for (int i = 0; i < VECTORS; ++i) {  // all loads are under way before the first is used
    kept[i] = from[threadIdx.x + i * THREADS];
  }
  #pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    sum += fabsf(kept[i].x) + fabsf(kept[i].y) + fabsf(kept[i].z) + fabsf(kept[i].w);
  }

  #pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0f;
  #pragma unroll
  for (int i = 0; i < THREADS / 32; ++i) sum += partial[i];

  const float below = 1.0f + sum / COLUMNS;
  #pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    const float4 s = scale[threadIdx.x + i * THREADS];
    float4 y;
    y.x = kept[i].x * s.x / below;
    y.y = kept[i].y * s.y / below;
    y.z = kept[i].z * s.z / below;
    y.w = kept[i].w * s.w / below;
    to[threadIdx.x + i * THREADS] = y;
  }
}
