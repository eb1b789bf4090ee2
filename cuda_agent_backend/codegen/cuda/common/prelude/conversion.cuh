// ---- construction and conversion ----------------------------------------------------------------------------

template <class T, int L> CA_INLINE vec<T, L> splat(T v) { vec<T, L> r; CA_LANES r.v[i] = v; return r; }
// One value for all lanes, or a vector as it is.
template <int L, class T, int M> CA_INLINE vec<T, L> splat(vec<T, M> v) {
  vec<T, L> r; CA_LANES r.v[i] = v.v[M == 1 ? 0 : i]; return r;
}
template <class To, class From, int L> CA_INLINE vec<To, L> to(vec<From, L> a) {
  vec<To, L> r;
  CA_LANES {
    if constexpr (is_bool<To>) r.v[i] = a.v[i] != From(0); else r.v[i] = static_cast<To>(a.v[i]);
  }
  return r;
}
template <class T, int L> CA_INLINE vec<T, L> like(vec<T, L>, double value) { return splat<T, L>(static_cast<T>(value)); }
