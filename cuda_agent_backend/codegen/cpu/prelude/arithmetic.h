// ---- arithmetic ---------------------------------------------------------------------------------------------

#define CA_BINARY(NAME, OP) \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a, vec<T, L> b) { return {static_cast<decltype(a.x)>(a.x OP b.x)}; }
CA_BINARY(sub, -) CA_BINARY(bitwise_and_, &) CA_BINARY(bitwise_or_, |) CA_BINARY(bitwise_xor_, ^)
#undef CA_BINARY
template <class T, int L> CA_INLINE vec<T, L> add(vec<T, L> a, vec<T, L> b) {
  if constexpr (std::is_same_v<T, bool>) return logical_or(a, b);
  else return {static_cast<typename raw<T, L>::type>(a.x + b.x)};
}
template <class T, int L> CA_INLINE vec<T, L> mul(vec<T, L> a, vec<T, L> b) {
  if constexpr (std::is_same_v<T, bool>) return logical_and(a, b);
  else return {static_cast<typename raw<T, L>::type>(a.x * b.x)};
}
// Never merged with what is added.
template <class T, int L> CA_INLINE vec<T, L> mul_rounded(vec<T, L> a, vec<T, L> b) {
  auto r = mul(a, b);
  if constexpr (std::is_floating_point_v<T>) asm("" : "+m"(r.x));
  return r;
}
template <class T, int L> CA_INLINE vec<T, L> truediv(vec<T, L> a, vec<T, L> b) { return {a.x / b.x}; }
template <class T, int L> CA_INLINE vec<T, L> neg(vec<T, L> a) { return {static_cast<typename raw<T, L>::type>(-a.x)}; }
template <class T, int L> CA_INLINE vec<T, L> square(vec<T, L> a) { return mul(a, a); }
template <class T, int L> CA_INLINE vec<T, L> fma(vec<T, L> a, vec<T, L> b, vec<T, L> c) { return add(mul(a, b), c); }
template <class T, int L> CA_INLINE vec<T, L> reciprocal(vec<T, L> a) { return {T(1) / a.x}; }
template <class T, int L> CA_INLINE vec<T, L> bitwise_and(vec<T, L> a, vec<T, L> b) { return bitwise_and_(a, b); }
template <class T, int L> CA_INLINE vec<T, L> bitwise_or(vec<T, L> a, vec<T, L> b) { return bitwise_or_(a, b); }
template <class T, int L> CA_INLINE vec<T, L> bitwise_xor(vec<T, L> a, vec<T, L> b) { return bitwise_xor_(a, b); }
template <class T, int L> CA_INLINE vec<T, L> bitwise_not(vec<T, L> a) {
  if constexpr (std::is_same_v<T, bool>) return logical_not(a);
  else return {static_cast<typename raw<T, L>::type>(~a.x)};
}
template <class T, int L> CA_INLINE vec<T, L> maximum(vec<T, L> a, vec<T, L> b) {
  if constexpr (std::is_same_v<T, bool>) return logical_or(a, b);
  else if constexpr (std::is_floating_point_v<T>) return where(logical_or(gt(a, b), ne(a, a)), a, b);
  else return where(gt(a, b), a, b);
}
template <class T, int L> CA_INLINE vec<T, L> minimum(vec<T, L> a, vec<T, L> b) {
  if constexpr (std::is_same_v<T, bool>) return logical_and(a, b);
  else if constexpr (std::is_floating_point_v<T>) return where(logical_or(lt(a, b), ne(a, a)), a, b);
  else return where(lt(a, b), a, b);
}
template <class T, int L> CA_INLINE vec<T, L> relu(vec<T, L> a) { return maximum(a, splat<T, L>(T(0))); }
template <class T, int L> CA_INLINE vec<T, L> abs(vec<T, L> a) {
  if constexpr (std::is_same_v<T, float> && L > 1) {
    typedef typename raw<int32_t, L>::type I;
    return {(typename raw<float, L>::type)((I)a.x & 0x7fffffff)};
  } else if constexpr (std::is_floating_point_v<T> && L == 1) {
    return {std::fabs(a.x)};
  } else if constexpr (std::is_unsigned_v<T>) {
    return a;
  } else if constexpr (std::is_floating_point_v<T>) {
    typedef typename raw<int64_t, L>::type I;
    return {(typename raw<T, L>::type)((I)a.x & 0x7fffffffffffffffll)};
  } else {
    return where(lt(a, splat<T, L>(T(0))), neg(a), a);
  }
}
template <class T, int L> CA_INLINE vec<bool, L> isinf(vec<T, L> a) {
  if constexpr (std::is_floating_point_v<T>) return eq(abs(a), splat<T, L>(limits<T>::inf()));
  else return splat<bool, L>(false);
}
template <class T, int L> CA_INLINE vec<T, L> sign(vec<T, L> a) {
  const auto zero = splat<T, L>(T(0)), one = splat<T, L>(T(1));
  auto r = where(gt(a, zero), one, zero);
  if constexpr (!std::is_unsigned_v<T>) r = where(lt(a, zero), splat<T, L>(T(-1)), r);
  return r;
}

// Operands of two types meet in their common type, as in the scalar language.
#define CA_MIXED(NAME)                                                                                          \
  template <class T, class U, int L, class = std::enable_if_t<!std::is_same_v<T, U>>>                           \
  CA_INLINE auto NAME(vec<T, L> a, vec<U, L> b) {                                                               \
    typedef std::common_type_t<T, U> C;                                                                         \
    return NAME(to<C>(a), to<C>(b));                                                                            \
  }
CA_MIXED(add) CA_MIXED(sub) CA_MIXED(mul) CA_MIXED(mul_rounded) CA_MIXED(truediv) CA_MIXED(maximum) CA_MIXED(minimum)
CA_MIXED(eq) CA_MIXED(ne) CA_MIXED(lt) CA_MIXED(le) CA_MIXED(gt) CA_MIXED(ge)
#undef CA_MIXED
template <class T, class U, int L, class = std::enable_if_t<!std::is_same_v<T, U>>>
CA_INLINE auto where(vec<bool, L> m, vec<T, L> a, vec<U, L> b) {
  typedef std::common_type_t<T, U> C;
  return where(m, to<C>(a), to<C>(b));
}

// Lane by lane through the C library: exact, and slow enough that hot functions have their own code below.
#define CA_LANEWISE1(NAME, CALL)                                               \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a) {            \
    vec<T, L> r{};                                                             \
    for (int i = 0; i < L; ++i) { T v = lane(a, i); set_lane(r, i, T(CALL)); } \
    return r;                                                                  \
  }
CA_LANEWISE1(exp2, std::exp2(v)) CA_LANEWISE1(log10, std::log10(v)) CA_LANEWISE1(sin, std::sin(v))
CA_LANEWISE1(cos, std::cos(v)) CA_LANEWISE1(tan, std::tan(v)) CA_LANEWISE1(asin, std::asin(v))
CA_LANEWISE1(acos, std::acos(v)) CA_LANEWISE1(atan, std::atan(v)) CA_LANEWISE1(sinh, std::sinh(v))
CA_LANEWISE1(cosh, std::cosh(v)) CA_LANEWISE1(asinh, std::asinh(v)) CA_LANEWISE1(acosh, std::acosh(v))
CA_LANEWISE1(atanh, std::atanh(v)) CA_LANEWISE1(erfc, std::erfc(v)) CA_LANEWISE1(lgamma, std::lgamma(v))
CA_LANEWISE1(log2, std::log2(v))
CA_LANEWISE1(sqrt_, std::sqrt(v)) CA_LANEWISE1(floor_, std::floor(v)) CA_LANEWISE1(ceil_, std::ceil(v))
CA_LANEWISE1(trunc_, std::trunc(v)) CA_LANEWISE1(round_, std::nearbyint(v)) CA_LANEWISE1(exp_, std::exp(v))
CA_LANEWISE1(log_, std::log(v)) CA_LANEWISE1(log1p_, std::log1p(v)) CA_LANEWISE1(expm1_, std::expm1(v))
CA_LANEWISE1(tanh_, std::tanh(v)) CA_LANEWISE1(erf_, std::erf(v))
#undef CA_LANEWISE1
#define CA_LANEWISE2(NAME, CALL)                                                                        \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a, vec<T, L> b) {                        \
    vec<T, L> r{};                                                                                      \
    for (int i = 0; i < L; ++i) { T v = lane(a, i), w = lane(b, i); set_lane(r, i, T(CALL)); }          \
    return r;                                                                                           \
  }
CA_LANEWISE2(pow_, std::pow(v, w)) CA_LANEWISE2(atan2, std::atan2(v, w)) CA_LANEWISE2(hypot, std::hypot(v, w))
CA_LANEWISE2(copysign, std::copysign(v, w))
#undef CA_LANEWISE2

template <class T, int L> CA_INLINE vec<T, L> pow(vec<T, L> a, vec<T, L> b) {
  if constexpr (std::is_integral_v<T>) {
    vec<T, L> r{};
    for (int i = 0; i < L; ++i) {
      T base = lane(a, i), e = lane(b, i), product = 1;
      if (e < 0) product = base == 1 ? 1 : base == T(-1) ? ((-e) % 2 ? T(-1) : T(1)) : T(0);
      else for (; e; e >>= 1, base *= base) if (e & 1) product *= base;
      set_lane(r, i, product);
    }
    return r;
  } else {
    return pow_(a, b);
  }
}
template <class T, int L> CA_INLINE vec<T, L> fmod(vec<T, L> a, vec<T, L> b) {
  vec<T, L> r{};
  for (int i = 0; i < L; ++i) {
    const T v = lane(a, i), w = lane(b, i);
    if constexpr (std::is_floating_point_v<T>) set_lane(r, i, T(std::fmod(v, w)));
    else set_lane(r, i, T(w ? v % w : 0));
  }
  return r;
}
template <class T, int L> CA_INLINE vec<T, L> remainder(vec<T, L> a, vec<T, L> b) {
  vec<T, L> r{};
  for (int i = 0; i < L; ++i) {
    const T w = lane(b, i);
    T m;
    if constexpr (std::is_floating_point_v<T>) m = std::fmod(lane(a, i), w);
    else m = w ? lane(a, i) % w : 0;
    set_lane(r, i, T(m != 0 && ((w < 0) != (m < 0)) ? m + w : m));
  }
  return r;
}
// By as many bits as there are, or by less than none: what eager has.
template <class T, int L> CA_INLINE vec<T, L> left_shift(vec<T, L> a, vec<T, L> b) {
  vec<T, L> r{};
  for (int i = 0; i < L; ++i) {
    const T w = lane(b, i);
    set_lane(r, i, w < T(0) || w >= T(8 * sizeof(T)) ? T(0) : T(static_cast<unsigned long long>(lane(a, i)) << w));
  }
  return r;
}
template <class T, int L> CA_INLINE vec<T, L> right_shift(vec<T, L> a, vec<T, L> b) {
  constexpr T most = T(8 * sizeof(T) - std::is_signed_v<T>);
  vec<T, L> r{};
  for (int i = 0; i < L; ++i) {
    const T w = lane(b, i);
    set_lane(r, i, T(lane(a, i) >> (w < T(0) || w >= most ? most : w)));
  }
  return r;
}
template <class T, int L> CA_INLINE vec<T, L> truncdiv(vec<T, L> a, vec<T, L> b) {
  vec<T, L> r{};
  for (int i = 0; i < L; ++i) { const T w = lane(b, i); set_lane(r, i, T(w ? lane(a, i) / w : 0)); }
  return r;
}
template <class T, int L> CA_INLINE vec<T, L> floordiv(vec<T, L> a, vec<T, L> b) {
  vec<T, L> r{};
  for (int i = 0; i < L; ++i) {
    const T v = lane(a, i), w = lane(b, i);
    if constexpr (std::is_floating_point_v<T>) {
      set_lane(r, i, T(std::floor(v / w)));
    } else {
      const T q = w ? v / w : 0;
      set_lane(r, i, T(w && v % w != 0 && ((v < 0) != (w < 0)) ? q - 1 : q));
    }
  }
  return r;
}
template <class T, int L> CA_INLINE vec<bool, L> signbit(vec<T, L> a) {
  vec<bool, L> r{};
  for (int i = 0; i < L; ++i) {
    if constexpr (std::is_floating_point_v<T>) set_lane(r, i, std::signbit(lane(a, i)));
    else set_lane(r, i, lane(a, i) < 0);
  }
  return r;
}

template <class T, int L> CA_INLINE vec<T, L> sqrt(vec<T, L> a) {
#if defined(__AVX__)
  if constexpr (std::is_same_v<T, float> && L == 8) return {(typename raw<float, 8>::type)_mm256_sqrt_ps((__m256)a.x)};
#endif
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float> && L == 16) return {(typename raw<float, 16>::type)_mm512_sqrt_ps((__m512)a.x)};
#endif
  return sqrt_(a);
}
template <class T, int L> CA_INLINE vec<T, L> rsqrt(vec<T, L> a) { return reciprocal(sqrt(a)); }

#if defined(__AVX__)
#define CA_ROUND(NAME, MODE)                                                                                     \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a) {                                              \
    if constexpr (std::is_integral_v<T>) return a;                                                               \
    else if constexpr (std::is_same_v<T, float> && L == 8)                                                       \
      return {(typename raw<float, 8>::type)_mm256_round_ps((__m256)a.x, MODE | _MM_FROUND_NO_EXC)};             \
    else return NAME##_(a);                                                                                      \
  }
CA_ROUND(floor, _MM_FROUND_TO_NEG_INF) CA_ROUND(ceil, _MM_FROUND_TO_POS_INF)
CA_ROUND(trunc, _MM_FROUND_TO_ZERO) CA_ROUND(round, _MM_FROUND_TO_NEAREST_INT)
#else
#define CA_ROUND(NAME)                                                                                           \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a) {                                              \
    if constexpr (std::is_integral_v<T>) return a; else return NAME##_(a);                                       \
  }
CA_ROUND(floor) CA_ROUND(ceil) CA_ROUND(trunc) CA_ROUND(round)
#endif
#undef CA_ROUND
