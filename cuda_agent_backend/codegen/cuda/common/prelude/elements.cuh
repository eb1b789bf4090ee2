// ---- element by element -----------------------------------------------------------------------------------------

#define CA_UNARY(NAME, EXPR)                                                                                          \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a) {                                                   \
    vec<T, L> r; CA_LANES { const T x = a.v[i]; r.v[i] = T(EXPR); } return r;                                         \
  }
#define CA_BINARY(NAME, EXPR)                                                                                         \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a, vec<T, L> b) {                                      \
    vec<T, L> r; CA_LANES { const T x = a.v[i], y = b.v[i]; r.v[i] = T(EXPR); } return r;                             \
  }                                                                                                                   \
  template <class T, class U, int L> CA_INLINE auto NAME(vec<T, L> a, vec<U, L> b) {                                  \
    return NAME(to<common<T, U>>(a), to<common<T, U>>(b));                                                            \
  }
#define CA_COMPARE(NAME, OP)                                                                                          \
  template <class T, class U, int L> CA_INLINE vec<bool, L> NAME(vec<T, L> a, vec<U, L> b) {                          \
    typedef common<T, U> C;                                                                                           \
    vec<bool, L> r; CA_LANES r.v[i] = C(a.v[i]) OP C(b.v[i]); return r;                                               \
  }
#define CA_LOGICAL(NAME, OP)                                                                                          \
  template <class T, class U, int L> CA_INLINE vec<bool, L> NAME(vec<T, L> a, vec<U, L> b) {                          \
    vec<bool, L> r; CA_LANES r.v[i] = (a.v[i] != T(0)) OP (b.v[i] != U(0)); return r;                                 \
  }
CA_COMPARE(eq, ==) CA_COMPARE(ne, !=) CA_COMPARE(lt, <) CA_COMPARE(le, <=) CA_COMPARE(gt, >) CA_COMPARE(ge, >=)
CA_LOGICAL(logical_and, &&) CA_LOGICAL(logical_or, ||) CA_LOGICAL(logical_xor, !=)
template <class T, int L> CA_INLINE vec<bool, L> logical_not(vec<T, L> a) {
  vec<bool, L> r; CA_LANES r.v[i] = a.v[i] == T(0); return r;
}
template <class T, int L> CA_INLINE vec<bool, L> isnan(vec<T, L> a) { return ne(a, a); }
template <class T, int L> CA_INLINE vec<bool, L> isinf(vec<T, L> a) {
  vec<bool, L> r;
  CA_LANES { if constexpr (is_real<T>) r.v[i] = ::fabs(a.v[i]) == limits<T>::inf(); else r.v[i] = false; }
  return r;
}
template <class T, int L> CA_INLINE vec<bool, L> signbit(vec<T, L> a) {
  vec<bool, L> r;
  CA_LANES {
    if constexpr (same<T, float>::value) r.v[i] = __float_as_int(a.v[i]) < 0;
    else if constexpr (same<T, double>::value) r.v[i] = __double_as_longlong(a.v[i]) < 0;
    else r.v[i] = a.v[i] < T(0);
  }
  return r;
}
template <class T, class U, int L> CA_INLINE auto where(vec<bool, L> m, vec<T, L> a, vec<U, L> b) {
  vec<common<T, U>, L> r; CA_LANES r.v[i] = m.v[i] ? common<T, U>(a.v[i]) : common<T, U>(b.v[i]); return r;
}
// What the body yields where the mask, the same in all lanes, holds; it is skipped elsewhere.
template <int L, class F> CA_INLINE auto when(vec<bool, L> m, double other, F body) {
  auto r = like(decltype(body())(), other);
  if (m.v[0]) r = body();
  return r;
}

// Scalar pieces that overload by type.
template <class T> CA_INLINE T max_(T a, T b) {
  if constexpr (same<T, float>::value) {
#if __CUDA_ARCH__ >= 800
    float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;
#endif
  }
  return a > b || a != a ? a : b;
}
template <class T> CA_INLINE T min_(T a, T b) {
  if constexpr (same<T, float>::value) {
#if __CUDA_ARCH__ >= 800
    float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;
#endif
  }
  return a < b || a != a ? a : b;
}
template <class T> CA_INLINE T fmod_(T x, T y) {
  if constexpr (is_real<T>) return ::fmod(x, y); else return y != T(0) ? T(x % y) : T(0);
}
template <class T> CA_INLINE T remainder_(T x, T y) {
  const T m = fmod_(x, y);
  return m != T(0) && ((y < T(0)) != (m < T(0))) ? T(m + y) : m;
}
template <class T> CA_INLINE T truncdiv_(T x, T y) {
  if constexpr (is_real<T>) return ::trunc(x / y); else return y != T(0) ? T(x / y) : T(0);
}
template <class T> CA_INLINE T floordiv_(T x, T y) {
  if constexpr (is_real<T>) return ::floor(x / y);
  else return y == T(0) ? T(0) : T(x / y - (x % y != T(0) && ((x < T(0)) != (y < T(0)))));
}
// By as many bits as there are, or by less than none: what eager has.
template <class T> CA_INLINE T left_shift_(T x, T y) {
  return y < T(0) || y >= T(8 * sizeof(T)) ? T(0) : T((unsigned long long)(x) << y);
}
template <class T> CA_INLINE T right_shift_(T x, T y) {
  constexpr T most = T(8 * sizeof(T) - is_signed<T>);
  return T(x >> (y < T(0) || y >= most ? most : y));
}
template <class T> CA_INLINE T pow_(T x, T y) {
  if constexpr (is_real<T>) {
    return ::pow(x, y);
  } else {
    if (y < T(0)) return x == T(1) ? T(1) : x == T(-1) ? (y % T(2) ? T(-1) : T(1)) : T(0);
    T product = T(1);
    for (; y; y = y / T(2), x = T(x * x)) if (y % T(2)) product = T(product * x);
    return product;
  }
}
template <class T> CA_INLINE T sum_(T x, T y) { if constexpr (is_bool<T>) return x || y; else return T(x + y); }
template <class T> CA_INLINE T product_(T x, T y) { if constexpr (is_bool<T>) return x && y; else return T(x * y); }
// Never merged with what is added.
template <class T> CA_INLINE T rounded_product_(T x, T y) { return product_(x, y); }
CA_INLINE float rounded_product_(float x, float y) { return __fmul_rn(x, y); }
CA_INLINE double rounded_product_(double x, double y) { return __dmul_rn(x, y); }
template <class T> CA_INLINE T inverse_(T x) { if constexpr (is_bool<T>) return !x; else return T(~x); }
template <class T> CA_INLINE T abs_(T x) {
  if constexpr (is_real<T>) return ::fabs(x); else return x < T(0) ? T(-x) : x;
}
template <class T> CA_INLINE T sign_(T x) { return T((x > T(0)) - (x < T(0))); }
// A quotient by what it left over. A rest of zero would turn -0 into 0, one that is not finite says nothing.
CA_INLINE float corrected_(float near, float rest, float share) {
  return rest != 0.0f && ::fabs(rest) <= 3.402823466e38f ? ::fma(rest, share, near) : near;
}
// 1 / x but for its last bit, where both are normal. A rounded division has a slow routine behind a branch, which holds
// up all loads after it.
CA_INLINE float rough_reciprocal_(float x) {
#if __CUDA_ARCH__ >= 800
  float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
#else
  const float r = __fdividef(1.0f, x);
#endif
  return r;
}
// 1 / x for x from 1 to 2.
CA_INLINE float reciprocal_near_one_(float x) {
  const float r = rough_reciprocal_(x);
  return ::fma(::fma(-x, r, 1.0f), r, r);
}
// By exp(-|x|), which neither overflows nor makes a denominator above 2.
template <class T> CA_INLINE T sigmoid_(T x) {
  if constexpr (same<T, float>::value) {
    const float below = ::exp(-::fabs(x)), share = reciprocal_near_one_(1.0f + below);
    return x >= 0.0f ? share : below * share;
  } else {
    return T(1) / (T(1) + ::exp(-x));
  }
}
// a / (1 + exp(-x)), rounded like a division. Where exp(-x) is beyond a float, infinities by it make NaN.
CA_INLINE float over_logistic_(float a, float x) {
  const float small = ::exp(-::fabs(x)), below = small < 2.94e-39f ? 0.0f : small;
  const float by = 1.0f + below, share = reciprocal_near_one_(by);
  const float over = x >= 0.0f ? a : a * below, near = over * share, rest = ::fma(-near, by, over);
  return corrected_(near, rest, share);
}
template <class T> CA_INLINE T rsqrt_(T x) { return ::rsqrt(x); }
// Rounded square roots of zeros take a slow routine: 359 instead of 248 us where half of 60 million distances are clamped.
template <class T> CA_INLINE T sqrt_(T x) { return ::sqrt(x); }
CA_INLINE float sqrt_(float x) {
  const float root = ::sqrt(x == 0.0f ? 1.0f : x);
  return x == 0.0f ? x : root;
}
// log(1 + f) for f from -1/4 to 1/2, by a minimax polynomial; its own error is 5e-9 of the result.
CA_INLINE float log_near_one_(float f) {
  float r = ::fma(-0x1.7140b6p-5f, f, 0x1.ac90bep-4f);
  r = ::fma(r, f, -0x1.0d8a90p-3f); r = ::fma(r, f, 0x1.28847cp-3f); r = ::fma(r, f, -0x1.54efdcp-3f);
  r = ::fma(r, f, 0x1.9969b0p-3f); r = ::fma(r, f, -0x1.000040p-2f); r = ::fma(r, f, 0x1.5555a4p-2f);
  return ::fma(::fma(r, f, -0.5f), f * f, f);
}
// The power of two by which x is divided to lie between 3/4 and 3/2, as its exponent's bits.
CA_INLINE unsigned bits_(float x) { return unsigned(__float_as_int(x)); }
CA_INLINE unsigned scale_bits_(float x) { return (bits_(x) - 0x3f400000u) & 0xff800000u; }
constexpr float LOG_OF_SCALE = 0x1.62e430p-24f;  // log(2) / 2^23
// For numbers that are normal and positive: as accurate as ::log, in two thirds of its instructions.
CA_INLINE float usual_log_(float x) {
  const unsigned scale = scale_bits_(x);
  return ::fma(float(int(scale)), LOG_OF_SCALE, log_near_one_(__int_as_float(int(bits_(x) - scale)) - 1.0f));
}
CA_INLINE bool has_usual_log_(float x) { return bits_(x) - 0x00800000u < 0x7f000000u; }
// The same of log1p, where 1 + x is normal and below 2^125.
CA_INLINE float usual_log1p_(float x) {
  const unsigned scale = scale_bits_(1.0f + x);
  const float by = __int_as_float(int(0x3f800000u - scale)), f = ::fma(x, by, by - 1.0f);
  return ::copysign(::fma(float(int(scale)), LOG_OF_SCALE, log_near_one_(f)), x);
}
CA_INLINE bool has_usual_log1p_(float x) { return bits_(1.0f + x) - 0x00800000u < 0x7d800000u; }
#define CA_LOG(NAME)                                                                                                  \
  template <class T> CA_INLINE T NAME##_(T x) {                                                                       \
    if constexpr (same<T, float>::value) { if (has_usual_##NAME##_(x)) return usual_##NAME##_(x); }                   \
    return T(::NAME(x));                                                                                              \
  }                                                                                                                   \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a) {                                                   \
    vec<T, L> r;                                                                                                      \
    if constexpr (same<T, float>::value) {                                                                            \
      bool usual = true;                                                                                              \
      CA_LANES { usual = usual && has_usual_##NAME##_(a.v[i]); r.v[i] = usual_##NAME##_(a.v[i]); }                    \
      if (usual) return r;                                                                                            \
    }                                                                                                                 \
    CA_LANES r.v[i] = T(::NAME(a.v[i]));                                                                              \
    return r;                                                                                                         \
  }
CA_LOG(log) CA_LOG(log1p)
#undef CA_LOG
// x to the power N / 4, for N of 1, 3, 5 and 6, as a product of roots: a third of the instructions of ::pow.
template <int N, class T> CA_INLINE T pow_quarters_(T x) {
  if constexpr (same<T, float>::value) {
    const float inf = limits<float>::inf(), a = x == -inf ? inf : x + 0.0f, root = sqrt_(a);
    return N == 1 ? sqrt_(root) : N == 3 ? root * sqrt_(root) : N == 5 ? a * sqrt_(root) : a * root;
  } else {
    return T(::pow(x, T(N) / T(4)));
  }
}
template <int N, class T, int L> CA_INLINE vec<T, L> pow_quarters(vec<T, L> a) {
  vec<T, L> r; CA_LANES r.v[i] = pow_quarters_<N>(a.v[i]); return r;
}

CA_BINARY(add, sum_(x, y)) CA_BINARY(sub, x - y) CA_BINARY(mul, product_(x, y)) CA_BINARY(truediv, x / y)
CA_BINARY(mul_rounded, rounded_product_(x, y))
CA_BINARY(maximum, max_(x, y)) CA_BINARY(minimum, min_(x, y)) CA_BINARY(fmod, fmod_(x, y))
CA_BINARY(remainder, remainder_(x, y)) CA_BINARY(truncdiv, truncdiv_(x, y)) CA_BINARY(floordiv, floordiv_(x, y))
CA_BINARY(pow, pow_(x, y)) CA_BINARY(atan2, ::atan2(x, y)) CA_BINARY(hypot, ::hypot(x, y))
CA_BINARY(copysign, ::copysign(x, y)) CA_BINARY(bitwise_and, x & y) CA_BINARY(bitwise_or, x | y)
CA_BINARY(bitwise_xor, x ^ y) CA_BINARY(left_shift, left_shift_(x, y)) CA_BINARY(right_shift, right_shift_(x, y))
CA_UNARY(neg, -x) CA_UNARY(abs, abs_(x)) CA_UNARY(square, product_(x, x)) CA_UNARY(reciprocal, T(1) / x)
CA_UNARY(relu, max_(x, T(0))) CA_UNARY(sign, sign_(x)) CA_UNARY(bitwise_not, inverse_(x))
CA_UNARY(exp, ::exp(x)) CA_UNARY(exp2, ::exp2(x)) CA_UNARY(expm1, ::expm1(x))
CA_UNARY(log2, ::log2(x)) CA_UNARY(log10, ::log10(x)) CA_UNARY(sqrt, sqrt_(x))
CA_UNARY(rsqrt, rsqrt_(x)) CA_UNARY(sin, ::sin(x)) CA_UNARY(cos, ::cos(x)) CA_UNARY(tan, ::tan(x))
CA_UNARY(asin, ::asin(x)) CA_UNARY(acos, ::acos(x)) CA_UNARY(atan, ::atan(x)) CA_UNARY(sinh, ::sinh(x))
CA_UNARY(cosh, ::cosh(x)) CA_UNARY(tanh, ::tanh(x)) CA_UNARY(asinh, ::asinh(x)) CA_UNARY(acosh, ::acosh(x))
CA_UNARY(atanh, ::atanh(x)) CA_UNARY(erf, ::erf(x)) CA_UNARY(erfc, ::erfc(x)) CA_UNARY(lgamma, ::lgamma(x))
CA_UNARY(sigmoid, sigmoid_(x))
template <class T, class U, int L> CA_INLINE auto over_logistic(vec<T, L> a, vec<U, L> x) {
  if constexpr (same<T, float>::value && same<U, float>::value) {
    vec<float, L> r; CA_LANES r.v[i] = over_logistic_(a.v[i], x.v[i]); return r;
  } else {
    return mul(a, sigmoid(x));
  }
}
// Division by a number; share: its inverse.
template <class T, int L> CA_INLINE auto divide_by(vec<T, L> a, float by, float share) {
  if constexpr (same<T, float>::value) {
    vec<float, L> r;
    CA_LANES { const float near = a.v[i] * share; r.v[i] = corrected_(near, ::fma(-near, by, a.v[i]), share); }
    return r;
  } else {
    return truediv(a, splat<float, L>(by));
  }
}
#define CA_ROUND(NAME, CALL)                                                                                          \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a) {                                                   \
    if constexpr (is_real<T>) { vec<T, L> r; CA_LANES r.v[i] = CALL(a.v[i]); return r; } else return a;               \
  }
CA_ROUND(floor, ::floor) CA_ROUND(ceil, ::ceil) CA_ROUND(trunc, ::trunc) CA_ROUND(round, ::rint)
// Division by a value that a whole row shares: one reciprocal for the row, and for each element what it left over, so
// that what divides exactly does so here too. Without a branch, behind which all loads would wait: divisors that are not
// normal, or whose reciprocals are not, are scaled, and what is divided with them. What overflows by that does anyway.
struct row_divisor {
  float by, scale, share;
  CA_INLINE explicit row_divisor(float b) {
    const float size = ::fabs(b);
    scale = size < 1.2e-38f ? 0x1p32f : size > 8e37f ? 0x1p-32f : 1.0f;
    by = b * scale;
    const float rough = rough_reciprocal_(by), rest = ::fma(-by, rough, 1.0f);
    share = ::fabs(rest) < 1.0f ? ::fma(rest, rough, rough) : rough;  // zero and infinity leave NaN over
  }
  CA_INLINE float operator()(float a) const {
    const float scaled = a * scale, near = scaled * share;
    return corrected_(near, ::fma(-near, by, scaled), share);
  }
};
template <class T, class U, int L> CA_INLINE auto divide_row(vec<T, L> a, vec<U, L> b) {
  if constexpr (same<T, float>::value && same<U, float>::value) {
    vec<float, L> r;
    CA_LANES r.v[i] = row_divisor(b.v[i])(a.v[i]);
    return r;
  } else {
    return truediv(a, b);
  }
}
template <class T, int L> CA_INLINE vec<T, L> fma(vec<T, L> a, vec<T, L> b, vec<T, L> c) {
  vec<T, L> r; CA_LANES r.v[i] = ::fma(a.v[i], b.v[i], c.v[i]); return r;
}
#undef CA_UNARY
#undef CA_BINARY
#undef CA_COMPARE
#undef CA_LOGICAL
#undef CA_ROUND
