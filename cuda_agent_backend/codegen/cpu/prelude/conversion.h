// ---- construction and conversion ----------------------------------------------------------------------------

template <class T, int L> CA_INLINE vec<T, L> splat(T v) {
  vec<T, L> r;
  if constexpr (std::is_same_v<T, bool> && L > 1) {
    r.x = typename raw<int32_t, L>::type{} - int32_t(v);
  } else if constexpr (L == 1) {
    r.x = v;
  } else {
    r.x = typename raw<T, L>::type{} + v;
    if constexpr (std::is_floating_point_v<T>)
      for (int i = 0; i < L; ++i) r.x[i] = v;  // keeps -0.0, which 0 + v would lose
  }
  return r;
}
template <int L, class T> CA_INLINE vec<T, L> splat(vec<T, 1> v) { return splat<T, L>(v.x); }

template <class To, class From, int L> CA_INLINE vec<To, L> to(vec<From, L> a) {
  vec<To, L> r;
  if constexpr (std::is_same_v<To, From>) {
    r = a;
  } else if constexpr (L == 1) {
    r.x = static_cast<To>(a.x);
  } else if constexpr (std::is_same_v<To, bool>) {
    r.x = __builtin_convertvector(a.x != From(0), typename raw<int32_t, L>::type);
  } else if constexpr (std::is_same_v<From, bool>) {
    r.x = __builtin_convertvector(-a.x, typename raw<To, L>::type);
  } else {
    r.x = __builtin_convertvector(a.x, typename raw<To, L>::type);
  }
  return r;
}
// The constant `value` in the type of `v`.
template <class T, int L> CA_INLINE vec<T, L> like(vec<T, L>, double value) { return splat<T, L>(static_cast<T>(value)); }

template <class To, class From> CA_INLINE To bits_of(From a) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  memcpy(&r, &a, sizeof(To));
  return r;
}

CA_INLINE int64_t idiv(int64_t a, int64_t b) { return a / b; }
CA_INLINE int64_t imod(int64_t a, int64_t b) { return a % b; }
CA_INLINE int64_t imax(int64_t a, int64_t b) { return a > b ? a : b; }
CA_INLINE int64_t imin(int64_t a, int64_t b) { return a < b ? a : b; }
template <int L> CA_INLINE vec<int64_t, L> iota(int64_t start) {
  vec<int64_t, L> r = splat<int64_t, L>(start);
  if constexpr (L > 1) for (int i = 0; i < L; ++i) r.x[i] = start + i;
  return r;
}
template <int L> CA_INLINE vec<int32_t, L> iota32(int64_t start) {
  vec<int32_t, L> r = splat<int32_t, L>(0);
  if constexpr (L > 1) for (int i = 0; i < L; ++i) r.x[i] = i;
  r.x = r.x + int32_t(start);
  return r;
}
template <int L> CA_INLINE vec<int64_t, L> idiv(vec<int64_t, L> a, int64_t b) { return {a.x / b}; }
template <int L> CA_INLINE vec<int64_t, L> imod(vec<int64_t, L> a, int64_t b) { return {a.x % b}; }
template <int L> CA_INLINE vec<int64_t, L> imin(vec<int64_t, L> a, vec<int64_t, L> b) {
  vec<int64_t, L> r = a;
  if constexpr (L == 1) r.x = imin(a.x, b.x); else r.x = a.x < b.x ? a.x : b.x;
  return r;
}
template <int L> CA_INLINE vec<int64_t, L> imax(vec<int64_t, L> a, vec<int64_t, L> b) {
  vec<int64_t, L> r = a;
  if constexpr (L == 1) r.x = imax(a.x, b.x); else r.x = a.x > b.x ? a.x : b.x;
  return r;
}
template <int L> CA_INLINE vec<int64_t, L> imin(int64_t a, vec<int64_t, L> b) { return imin(splat<int64_t, L>(a), b); }
template <int L> CA_INLINE vec<int64_t, L> imin(vec<int64_t, L> a, int64_t b) { return imin(a, splat<int64_t, L>(b)); }
template <int L> CA_INLINE vec<int64_t, L> imax(int64_t a, vec<int64_t, L> b) { return imax(splat<int64_t, L>(a), b); }
template <int L> CA_INLINE vec<int64_t, L> imax(vec<int64_t, L> a, int64_t b) { return imax(a, splat<int64_t, L>(b)); }
template <int L> CA_INLINE vec<int64_t, L> operator+(vec<int64_t, L> a, vec<int64_t, L> b) { return {a.x + b.x}; }
template <int L> CA_INLINE vec<int64_t, L> operator+(vec<int64_t, L> a, int64_t b) { return {a.x + b}; }
template <int L> CA_INLINE vec<int64_t, L> operator+(int64_t b, vec<int64_t, L> a) { return {a.x + b}; }
template <int L> CA_INLINE vec<int64_t, L> operator*(vec<int64_t, L> a, int64_t b) { return {a.x * b}; }
template <int L> CA_INLINE vec<int64_t, L> operator*(int64_t b, vec<int64_t, L> a) { return {a.x * b}; }
