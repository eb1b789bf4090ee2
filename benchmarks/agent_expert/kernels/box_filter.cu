// The average of the 7x7 values around each, as far as they are inside. A block goes down a strip of a plane in steps of
// seven rows; a thread makes two columns. Sums along rows come from shared memory, of those the last seven are kept in
// registers and added up. Nothing is ever subtracted again, so that an infinity spoils its own windows only.
constexpr int PAIRS = WIDTH / 2;
constexpr int PITCH = WIDTH + 8;
constexpr int STRIPS = (HEIGHT + STRIP - 1) / STRIP;

extern "C" __global__ void __launch_bounds__(THREADS) box_filter(const float* __restrict__ x, float* __restrict__ out) {
  __shared__ __align__(16) float rows[7][PITCH];
  const int first = int(blockIdx.x % STRIPS) * STRIP, last = min(first + STRIP, HEIGHT);
  const long long plane = (long long)(blockIdx.x / STRIPS) * HEIGHT * WIDTH;
  const int column = 2 * int(threadIdx.x);
  const bool works = int(threadIdx.x) < PAIRS;
  const int many_x = min(column + 3, WIDTH - 1) - max(column - 3, 0) + 1;
  const int many_y = min(column + 4, WIDTH - 1) - max(column - 2, 0) + 1;
  const float part_x = 1.f / float(7 * many_x), part_y = 1.f / float(7 * many_y);
  for (int i = threadIdx.x; i < 7 * 8; i += THREADS) rows[i / 8][i % 8 < 4 ? i % 8 : WIDTH + i % 8] = 0.f;
  float2 sums[7];
#pragma unroll
  for (int k = 0; k < 7; ++k) sums[k] = float2{0.f, 0.f};
  for (int base = first - 3; base < last + 3; base += 7) {
    float2 got[7];
#pragma unroll
    for (int k = 0; k < 7; ++k) {
      const int row = base + k;
      const bool there = works && row >= 0 && row < HEIGHT;
      got[k] = there ? *reinterpret_cast<const float2*>(x + plane + row * WIDTH + column) : float2{0.f, 0.f};
    }
    __syncthreads();  // the rows before these have been read
    if (works) {
#pragma unroll
      for (int k = 0; k < 7; ++k) *reinterpret_cast<float2*>(&rows[k][4 + column]) = got[k];
    }
    __syncthreads();
    if (works) {
#pragma unroll
      for (int k = 0; k < 7; ++k) {
        const float2* near = reinterpret_cast<const float2*>(&rows[k][column]);
        const float2 a = near[0], b = near[1], c = near[2], d = near[3], e = near[4];
        const float middle = ((b.x + b.y) + (c.x + c.y)) + (d.x + d.y);
        sums[k] = float2{a.y + middle, middle + e.x};
        const int row = base + k - 3;
        if (row >= first && row < last) {
          const int high = min(row + 3, HEIGHT - 1) - max(row - 3, 0) + 1;
          float2 all = sums[0];
#pragma unroll
          for (int other = 1; other < 7; ++other) {
            all.x += sums[other].x;
            all.y += sums[other].y;
          }
          const bool whole = high == 7;
          const float2 mean{whole ? all.x * part_x : all.x / float(high * many_x),
                            whole ? all.y * part_y : all.y / float(high * many_y)};
          *reinterpret_cast<float2*>(out + plane + row * WIDTH + column) = mean;
        }
      }
    }
  }
}
