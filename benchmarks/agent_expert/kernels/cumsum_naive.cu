// Running sums of long rows: sums of chunks, then every chunk from the sums before it, in tiles of one value a thread.
constexpr int CHUNKS = (COLUMNS + CHUNK - 1) / CHUNK;

extern "C" __global__ void __launch_bounds__(THREADS) chunk_sums(const float* __restrict__ x, float* __restrict__ sums) {
  __shared__ float of_warp[THREADS / 32];
  const int row = blockIdx.x / CHUNKS, chunk = blockIdx.x % CHUNKS;
  const float* from = x + (long long)row * COLUMNS + chunk * CHUNK;
  const int many = min(CHUNK, COLUMNS - chunk * CHUNK);
  float sum = 0.f;
  for (int i = threadIdx.x; i < many; i += THREADS) sum += from[i];
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float all = 0.f;
  for (int warp = 0; warp < THREADS / 32; ++warp) all += of_warp[warp];
  sums[blockIdx.x] = all;
}

extern "C" __global__ void __launch_bounds__(THREADS) running_sums(
    const float* __restrict__ x, const float* __restrict__ sums, float* __restrict__ out) {
  __shared__ float of_warp[THREADS / 32];
  const int row = blockIdx.x / CHUNKS, chunk = blockIdx.x % CHUNKS;
  const long long first = (long long)row * COLUMNS + chunk * CHUNK;
  const int many = min(CHUNK, COLUMNS - chunk * CHUNK);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float carry = 0.f;
  for (int other = 0; other < chunk; ++other) carry += sums[row * CHUNKS + other];
  for (int base = 0; base < many; base += THREADS) {
    const int i = base + threadIdx.x;
    float sum = i < many ? x[first + i] : 0.f;
    for (int by = 1; by < 32; by *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, sum, by);
      if (lane >= by) sum += other;
    }
    __syncthreads();  // the sums of the tile before have been read
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    float all = carry;
    for (int other = 0; other < THREADS / 32; ++other) {
      if (other == warp) sum += all;
      all += of_warp[other];
    }
    carry = all;
    if (i < many) out[first + i] = sum;
  }
}
