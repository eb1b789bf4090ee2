// ---- scans --------------------------------------------------------------------------------------------------
// Float sums and products run in double, as in PyTorch's CPU kernels.

template <class T> struct scan_type { typedef std::conditional_t<std::is_same_v<T, float>, double, T> type; };
template <class T> using scan_t = typename scan_type<T>::type;

struct scan_sum {
  template <class T> static constexpr T identity() { return T(0); }
  template <class V> static CA_INLINE V combine(V a, V b) { return add(a, b); }
};
struct scan_prod {
  template <class T> static constexpr T identity() { return T(1); }
  template <class V> static CA_INLINE V combine(V a, V b) { return mul(a, b); }
};
struct scan_max {
  template <class T> static constexpr T identity() { return lowest<T>(); }
  template <class V> static CA_INLINE V combine(V a, V b) { return maximum(a, b); }
};
struct scan_min {
  template <class T> static constexpr T identity() { return highest<T>(); }
  template <class V> static CA_INLINE V combine(V a, V b) { return minimum(a, b); }
};
// Lanes moved up by N, the identity moving in.
template <int N, class T, int L> CA_INLINE vec<T, L> shift_up(vec<T, L> a, T fill) {
  vec<T, L> r = splat<T, L>(fill);
  for (int i = N; i < L; ++i) r.x[i] = a.x[i - N];
  return r;
}
// Inclusive scan along the lanes, continuing `carry`, which becomes the last value.
template <class Op, class T, int L> CA_INLINE vec<T, L> scan_lanes(vec<T, L> v, T& carry) {
  if constexpr (L == 1) {
    carry = Op::combine(vec<T, 1>{carry}, v).x;
    return {carry};
  } else {
    const T none = Op::template identity<T>();
    v = Op::combine(shift_up<1>(v, none), v);
    if constexpr (L > 2) v = Op::combine(shift_up<2>(v, none), v);
    if constexpr (L > 4) v = Op::combine(shift_up<4>(v, none), v);
    if constexpr (L > 8) v = Op::combine(shift_up<8>(v, none), v);
    const T before = carry;
    carry = Op::combine(vec<T, 1>{before}, vec<T, 1>{lane(v, L - 1)}).x;
    return Op::combine(splat<T, L>(before), v);
  }
}
