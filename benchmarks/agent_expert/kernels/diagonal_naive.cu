// x @ diag(scales) without the product: row by row, read twice.
inline __device__ int strange(float x) { return !(fabsf(x) <= 3.402823466e38f); }

extern "C" __global__ void __launch_bounds__(THREADS) scale_columns(
    const float* __restrict__ x, const float* __restrict__ scales, float* __restrict__ out) {
  __shared__ int strange_in_row;
  const long long row = (long long)blockIdx.x * COLUMNS;
  if (threadIdx.x == 0) strange_in_row = 0;
  __syncthreads();
  int found = 0;
  for (int c = threadIdx.x; c < COLUMNS; c += THREADS) found += strange(x[row + c]);
  if (found) atomicAdd(&strange_in_row, found);
  __syncthreads();
  for (int c = threadIdx.x; c < COLUMNS; c += THREADS) {
    const float value = x[row + c];
    // The zeros beside the diagonal make NaN of what is not finite elsewhere in the row.
    const bool spoilt = strange_in_row - strange(value) > 0;
    out[row + c] = spoilt ? __int_as_float(0x7fffffff) : fmaf(value, scales[c], 0.f);
  }
}
