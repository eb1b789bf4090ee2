// Running sums along rows.
extern "C" void kernel(void* const* buffers) {
  const float* x = (const float*)buffers[0];
  float* out = (float*)buffers[1];
#pragma omp parallel for if (THREADED)
  for (long r = 0; r < ROWS; ++r) {
    double sum = 0.;
    for (long c = 0; c < COLUMNS; ++c) {
      sum += x[r * COLUMNS + c];
      out[r * COLUMNS + c] = float(sum);
    }
  }
}
