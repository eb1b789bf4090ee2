// Running sums of long rows: sums of chunks, then every chunk from the sums before it. A chunk is in the registers of its
// block, read in words of 16 bytes. The second kernel takes the chunks backwards: those that the first one read last
// are still in the L2 cache.
constexpr int CHUNKS = (COLUMNS + CHUNK - 1) / CHUNK;
constexpr int QUADS = CHUNK / 4;
constexpr int WARPS = THREADS / 32;
constexpr int PIECES = (QUADS + THREADS - 1) / THREADS;
static_assert(COLUMNS % 4 == 0 && CHUNK % 4 == 0, "");

inline __device__ float4 word(const float* from, int q, int many) {
  return 4 * q < many ? reinterpret_cast<const float4*>(from)[q] : float4{0.f, 0.f, 0.f, 0.f};
}

extern "C" __global__ void __launch_bounds__(THREADS) chunk_sums(const float* __restrict__ x, float* __restrict__ sums) {
  __shared__ float of_warp[WARPS];
  const int row = blockIdx.x / CHUNKS, chunk = blockIdx.x % CHUNKS;
  const float* from = x + (long long)row * COLUMNS + chunk * CHUNK;
  const int many = min(CHUNK, COLUMNS - chunk * CHUNK);
  float4 held[PIECES];
#pragma unroll
  for (int i = 0; i < PIECES; ++i) held[i] = word(from, i * THREADS + threadIdx.x, many);
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) sum += (held[i].x + held[i].y) + (held[i].z + held[i].w);
#pragma unroll
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float all = 0.f;
  for (int warp = 0; warp < WARPS; ++warp) all += of_warp[warp];
  sums[blockIdx.x] = all;
}

extern "C" __global__ void __launch_bounds__(THREADS) running_sums(
    const float* __restrict__ x, const float* __restrict__ sums, float* __restrict__ out) {
  __shared__ float of_warp[WARPS];
  __shared__ float before_warp[WARPS];
  const int block = gridDim.x - 1 - blockIdx.x;
  const int row = block / CHUNKS, chunk = block % CHUNKS;
  const long long first = (long long)row * COLUMNS + chunk * CHUNK;
  const int many = min(CHUNK, COLUMNS - chunk * CHUNK);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float4 held[PIECES];
#pragma unroll
  for (int i = 0; i < PIECES; ++i) held[i] = word(x + first, (warp * PIECES + i) * 32 + lane, many);
  // Chunks before this one, a part in each warp.
  float part = 0.f;
  for (int other = threadIdx.x; other < chunk; other += THREADS) part += sums[row * CHUNKS + other];
#pragma unroll
  for (int by = 16; by > 0; by /= 2) part += __shfl_xor_sync(0xffffffffu, part, by);
  float so_far = 0.f;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    held[i].y += held[i].x;
    held[i].z += held[i].y;
    held[i].w += held[i].z;
    float sum = held[i].w;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, sum, by);
      if (lane >= by) sum += other;
    }
    float before = __shfl_up_sync(0xffffffffu, sum, 1);
    before = so_far + (lane == 0 ? 0.f : before);
    so_far += __shfl_sync(0xffffffffu, sum, 31);
    held[i].x += before;
    held[i].y += before;
    held[i].z += before;
    held[i].w += before;
  }
  if (lane == 0) {
    of_warp[warp] = so_far;
    before_warp[warp] = part;
  }
  __syncthreads();
  float before = 0.f;
  for (int other = 0; other < WARPS; ++other) before += before_warp[other];
  for (int other = 0; other < warp; ++other) before += of_warp[other];
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const int q = (warp * PIECES + i) * 32 + lane;
    if (4 * q < many)
      reinterpret_cast<float4*>(out + first)[q] =
          float4{held[i].x + before, held[i].y + before, held[i].z + before, held[i].w + before};
  }
}
