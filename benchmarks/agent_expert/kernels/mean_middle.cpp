// The mean over the middle dimension: rows are added up as they lie in memory, in double, for a long sum of numbers of
// one sign would lose more than eager's does.
extern "C" void kernel(void* const* buffers) {
  const float* x = (const float*)buffers[0];
  float* out = (float*)buffers[1];
#pragma omp parallel for if (THREADED)
  for (long b = 0; b < BATCH; ++b) {
    double sums[FEATURES] = {};
    for (long l = 0; l < LENGTH; ++l) {
      const float* row = x + (b * LENGTH + l) * FEATURES;
      for (long f = 0; f < FEATURES; ++f) sums[f] += row[f];
    }
    for (long f = 0; f < FEATURES; ++f) out[b * FEATURES + f] = float(sums[f] / LENGTH);
  }
}
