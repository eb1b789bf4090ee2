// ---- exp, log and their kin in single precision, about one unit in the last place ------------------------------

// Horner from the highest coefficient; FP contraction turns every step into one fused multiply-add.
template <int L, int N> CA_INLINE vec<float, L> horner(vec<float, L> x, const float (&c)[N]) {
  vec<float, L> p = splat<float, L>(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) p.x = p.x * x.x + c[i];
  return p;
}

template <int L> CA_INLINE vec<float, L> exp_float(vec<float, L> x) {
  typedef typename raw<float, L>::type F;
  typedef typename raw<int32_t, L>::type I;
  // exp(r) = 1 + r + r^2 P(r) on |r| <= ln(2) / 2
  static constexpr float c[] = {0.5f, 0.16666518f, 0.041666206f, 0.00836893f, 0.0013950551f};
  // Within [low, high] results are normal numbers, and the exponent can be added to p's bits.
  const auto low = splat<float, L>(-87.3365402f), high = splat<float, L>(88.7228394f);
  vec<float, L> y = where(lt(x, low), low, x);
  y = where(gt(y, high), high, y);
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  F z = y.x * 1.44269504f + magic;
  F n = z - magic;
  const F high_part = y.x - n * 0.693359375f;  // exact: the constant has 9 bits
  const vec<float, L> r = {high_part + n * 2.12194440e-4f};
  // What rounding took from r and from 1 + r comes back in with the small terms: half a unit instead of one.
  const F one_r = r.x + 1.0f;
  const F lost = (r.x - (one_r - 1.0f)) + ((high_part - r.x) + n * 2.12194440e-4f);
  F p = one_r + (horner(r, c).x * (r.x * r.x) + lost);
  vec<float, L> result = {(F)((I)p + ((I)z << 23))};  // the bits of magic leave the word
  result = where(lt(x, low), splat<float, L>(0.0f), result);  // below the normal range: 0
  result = where(gt(x, high), splat<float, L>(limits<float>::inf()), result);
  return where(ne(x, x), x, result);  // comparisons are false for NaN
}
template <> CA_INLINE vec<float, 1> exp_float<1>(vec<float, 1> x) {
  vec<float, 4> wide = splat<float, 4>(x.x);
  return {exp_float<4>(wide).x[0]};
}

template <int L> CA_INLINE vec<float, L> log_float(vec<float, L> x) {
  typedef typename raw<float, L>::type F;
  typedef typename raw<int32_t, L>::type I;
  // log(1 + f) = f - f^2/2 + f^3 P(f) on [sqrt(1/2) - 1, sqrt(2) - 1]
  static constexpr float c[] = {0.33333331f, -0.24999981f, 0.20000689f, -0.1666915f, 0.14251152f,
                                -0.1239673f, 0.11634725f, -0.11659751f, 0.07332139f};
  const vec<bool, L> tiny = lt(x, splat<float, L>(1.17549435e-38f));
  const vec<float, L> y = where(tiny, vec<float, L>{x.x * 8388608.0f}, x);
  I bits = (I)y.x;
  I e = ((bits - 0x3f3504f3) >> 23);  // exponent relative to sqrt(1/2)
  F m = (F)(bits - (e << 23));
  vec<float, L> f = {m - 1.0f};
  F k = __builtin_convertvector(e, F) - where(tiny, splat<float, L>(23.0f), splat<float, L>(0.0f)).x;
  F f2 = f.x * f.x;
  F p = horner(f, c).x * f2 * f.x + k * -2.12194440e-4f;
  p = p - 0.5f * f2 + f.x + k * 0.693359375f;
  vec<float, L> r = {p};
  const auto zero = splat<float, L>(0.0f);
  r = where(eq(x, zero), splat<float, L>(-limits<float>::inf()), r);
  r = where(eq(x, splat<float, L>(limits<float>::inf())), x, r);
  return where(logical_or(lt(x, zero), ne(x, x)), splat<float, L>(limits<float>::nan()), r);
}
template <> CA_INLINE vec<float, 1> log_float<1>(vec<float, 1> x) {
  return {log_float<4>(splat<float, 4>(x.x)).x[0]};
}

// exp(-y) for y in [0, 17] to about two units: for terms that are small beside what they are added to.
template <int L> CA_INLINE vec<float, L> exp_below_zero(vec<float, L> y) {
  typedef typename raw<float, L>::type F;
  typedef typename raw<int32_t, L>::type I;
  static constexpr float c[] = {0.5f, 0.16666518f, 0.041666206f, 0.00836893f, 0.0013950551f};
  const float magic = 12582912.0f;
  F z = y.x * -1.44269504f + magic;
  F n = z - magic;
  const vec<float, L> r = {n * -0.693147182f - y.x};
  F p = horner(r, c).x * (r.x * r.x) + r.x + 1.0f;
  if constexpr (L == 1) return {std::ldexp(p, int(n))};
  else return {(F)((I)p + ((I)z << 23))};
}
template <> CA_INLINE vec<float, 1> exp_below_zero<1>(vec<float, 1> y) {
  return {exp_below_zero<4>(splat<float, 4>(y.x)).x[0]};
}
// The smaller one; NaN where the first is NaN or both are not comparable.
template <int L> CA_INLINE vec<float, L> minimum_(vec<float, L> a, vec<float, L> b) { return where(gt(a, b), b, a); }

template <class T, int L> CA_INLINE vec<T, L> exp(vec<T, L> a) {
  if constexpr (std::is_same_v<T, float>) return exp_float<L>(a); else return exp_(a);
}
template <class T, int L> CA_INLINE vec<T, L> log(vec<T, L> a) {
  if constexpr (std::is_same_v<T, float>) return log_float<L>(a); else return log_(a);
}
template <class T, int L> CA_INLINE vec<T, L> log1p(vec<T, L> a) {
  if constexpr (std::is_same_v<T, float>) {
    // log(u) x / (u - 1) with u = 1 + x rounded: the rounding of u cancels (Kahan)
    const auto one = splat<float, L>(1.0f);
    const vec<float, L> u = add(one, a);
    const vec<float, L> r = {log(u).x * (a.x / (u.x - 1.0f))};
    return where(eq(u, one), a, where(eq(u, splat<float, L>(limits<float>::inf())), u, r));
  } else {
    return log1p_(a);
  }
}
template <class T, int L> CA_INLINE vec<T, L> expm1(vec<T, L> a) {
  if constexpr (std::is_same_v<T, float>) {
    const auto one = splat<float, L>(1.0f);
    const vec<float, L> u = exp(a), v = sub(u, one);
    const vec<float, L> r = {v.x * (a.x / log(u).x)};
    const auto plain = logical_or(gt(abs(a), splat<float, L>(17.0f)), ne(a, a));
    return where(plain, v, where(eq(u, one), a, r));
  } else {
    return expm1_(a);
  }
}
template <class T, int L> CA_INLINE vec<T, L> sigmoid(vec<T, L> a) { return {T(1) / (T(1) + exp(neg(a)).x)}; }
template <class T, int L> CA_INLINE vec<T, L> tanh(vec<T, L> a) {
  if constexpr (std::is_same_v<T, float>) {
    // tanh(x) = x + x^3 P(x^2) on |x| < 0.625, else 1 - 2 / (exp(2|x|) + 1)
    static constexpr float c[] = {-0.33333334f, 0.133333f, -0.053958785f, 0.021764753f, -0.008329603f, 0.0022759058f};
    const vec<float, L> m = abs(a), t = mul(a, a);
    const vec<float, L> small = {a.x + a.x * t.x * horner(t, c).x};
    const vec<float, L> e = exp(add(m, m));
    const vec<float, L> big = {1.0f - 2.0f / (e.x + 1.0f)};
    const vec<float, L> signed_big = where(lt(a, splat<float, L>(0.0f)), neg(big), big);
    return where(lt(m, splat<float, L>(0.625f)), small, where(ne(a, a), a, signed_big));
  } else {
    return tanh_(a);
  }
}
template <class T, int L> CA_INLINE vec<T, L> erf(vec<T, L> a) {
  if constexpr (std::is_same_v<T, float>) {
    // erf(x) = x + x P(x^2) on |x| < 0.95, else 1 - exp(-Q(|x|)) with Q = -log(erfc)
    static constexpr float p[] = {0.12837915f, -0.37612456f, 0.11281395f, -0.026750794f, 0.0049694981f, -0.0005868973f};
    static constexpr float q[] = {0.00023922273f, 1.1274958f, 0.63748497f, 0.103666f, -0.022098929f, 0.0030111184f,
                                  -0.00019266609f};
    const vec<float, L> m = minimum_(abs(a), splat<float, L>(4.0f)), t = mul(a, a);
    const vec<float, L> small = {a.x + a.x * horner(t, p).x};
    const vec<float, L> big = {1.0f - exp_below_zero(horner(m, q)).x};
    const vec<float, L> signed_big = where(lt(a, splat<float, L>(0.0f)), neg(big), big);
    return where(lt(m, splat<float, L>(0.95f)), small, where(ne(a, a), a, signed_big));
  } else {
    return erf_(a);
  }
}

// The line of memory that lanes from p on will be read from; p may lie beyond the end of what is there.
template <int L> CA_INLINE void fetch(const void* p) {
  if constexpr (L > 1) __builtin_prefetch(p);
}
