// Products of many small matrices. Matrices lie one behind the other, so a block copies TOGETHER of them to shared memory
// in words of 16 bytes; a thread makes a tile of HIGH x WIDE results in registers; results go back the same way.
constexpr int TALL = (ROWS + HIGH - 1) / HIGH;
constexpr int BROAD = (COLUMNS + WIDE - 1) / WIDE;
constexpr int WORKERS = TALL * BROAD;
constexpr int SIZE_A = ROWS * INNER, SIZE_B = INNER * COLUMNS, SIZE_C = ROWS * COLUMNS;
constexpr int WORDS_A = TOGETHER * SIZE_A / 4, WORDS_B = TOGETHER * SIZE_B / 4, WORDS_C = TOGETHER * SIZE_C / 4;
static_assert(TOGETHER % 4 == 0 && BATCH % TOGETHER == 0 && THREADS >= TOGETHER * WORKERS, "");
static_assert(SIZE_C <= SIZE_A + SIZE_B, "");

template <int WORDS>
inline __device__ void fetch(float* to, const float* from) {
  constexpr int EACH = (WORDS + THREADS - 1) / THREADS;
  float4 held[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int q = i * THREADS + threadIdx.x;
    if (q < WORDS) held[i] = reinterpret_cast<const float4*>(from)[q];
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int q = i * THREADS + threadIdx.x;
    if (q < WORDS) reinterpret_cast<float4*>(to)[q] = held[i];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) products(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out) {
  __shared__ __align__(16) float held[TOGETHER * (SIZE_A + SIZE_B)];
  float* held_b = held + TOGETHER * SIZE_A;
  const long long first = (long long)blockIdx.x * TOGETHER;
  fetch<WORDS_A>(held, a + first * SIZE_A);
  fetch<WORDS_B>(held_b, b + first * SIZE_B);
  __syncthreads();
  const int batch = threadIdx.x / WORKERS, worker = threadIdx.x % WORKERS;
  const int row = worker / BROAD * HIGH, column = worker % BROAD * WIDE;
  float sums[HIGH][WIDE];
#pragma unroll
  for (int i = 0; i < HIGH; ++i)
#pragma unroll
    for (int j = 0; j < WIDE; ++j) sums[i][j] = 0.f;
  if (batch < TOGETHER) {
#pragma unroll
    for (int k = 0; k < INNER; ++k) {
      float left[HIGH], right[WIDE];
#pragma unroll
      for (int i = 0; i < HIGH; ++i) left[i] = held[batch * SIZE_A + min(row + i, ROWS - 1) * INNER + k];
#pragma unroll
      for (int j = 0; j < WIDE; ++j) right[j] = held_b[batch * SIZE_B + k * COLUMNS + min(column + j, COLUMNS - 1)];
#pragma unroll
      for (int i = 0; i < HIGH; ++i)
#pragma unroll
        for (int j = 0; j < WIDE; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
    }
  }
  __syncthreads();
  if (batch < TOGETHER) {
#pragma unroll
    for (int i = 0; i < HIGH; ++i)
#pragma unroll
      for (int j = 0; j < WIDE; ++j)
        if (row + i < ROWS && column + j < COLUMNS) held[batch * SIZE_C + (row + i) * COLUMNS + column + j] = sums[i][j];
  }
  __syncthreads();
  for (int q = threadIdx.x; q < WORDS_C; q += THREADS)
    reinterpret_cast<float4*>(out + first * SIZE_C)[q] = reinterpret_cast<const float4*>(held)[q];
}
