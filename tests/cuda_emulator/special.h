// CUDA's functions that the C library lacks, by the standard one or by definition; NaN and infinities as CUDA has them.
#include <cmath>
#include <limits>
inline double erfcx(double x) {
  if (x < 100.0) return x < -26.7 ? INFINITY : double(std::exp((long double)x * x) * std::erfc((long double)x));
  const double t = 1.0 / (2.0 * x * x);  // asymptotic, to 1e-16 from 100 on
  const double f = 1.0 - 7.0 * t * (1.0 - 9.0 * t);
  return (1.0 - t * (1.0 - 3.0 * t * (1.0 - 5.0 * t * f))) / (x * 1.7724538509055160273);
}
inline float erfcxf(float x) { return float(erfcx(double(x))); }
inline double erfinv(double y) {
  if (!(std::fabs(y) < 1.0)) return y == 1.0 ? INFINITY : y == -1.0 ? -INFINITY : NAN;
  long double low = 0.0L, high = 7.0L, want = std::fabs(y);
  for (int i = 0; i < 90; ++i) {
    const long double middle = (low + high) / 2;
    (std::erfc(middle) > 1.0L - want ? low : high) = middle;
  }
  return std::fabs(y) < 1e-9 ? y * 0.88622692545275801365 : std::copysign(double(low), y);
}
inline float erfinvf(float y) { return float(erfinv(double(y))); }
