// ---- comparisons and selection ------------------------------------------------------------------------------

#define CA_COMPARE(NAME, OP)                                                                        \
  template <class T, int L> CA_INLINE vec<bool, L> NAME(vec<T, L> a, vec<T, L> b) {                 \
    if constexpr (L == 1) return {a.x OP b.x};                                                      \
    else return {__builtin_convertvector(a.x OP b.x, typename raw<int32_t, L>::type)};              \
  }
CA_COMPARE(eq, ==) CA_COMPARE(ne, !=) CA_COMPARE(lt, <) CA_COMPARE(le, <=) CA_COMPARE(gt, >) CA_COMPARE(ge, >=)
#undef CA_COMPARE

template <class T, int L> CA_INLINE vec<T, L> where(vec<bool, L> m, vec<T, L> a, vec<T, L> b) {
  if constexpr (L == 1) {
    return {m.x ? a.x : b.x};
  } else if constexpr (std::is_same_v<T, bool>) {
    return {(m.x & a.x) | (~m.x & b.x)};
  } else {
    typedef typename integer_of<sizeof(T)>::type I;
    auto wide = __builtin_convertvector(m.x, typename raw<I, L>::type);
    return {wide ? a.x : b.x};
  }
}
template <class T, int L> CA_INLINE vec<bool, L> truth(vec<T, L> a) { return to<bool>(a); }
template <class T, class U, int L> CA_INLINE vec<bool, L> logical_and(vec<T, L> a, vec<U, L> b) {
  if constexpr (L == 1) return {truth(a).x && truth(b).x}; else return {truth(a).x & truth(b).x};
}
template <class T, class U, int L> CA_INLINE vec<bool, L> logical_or(vec<T, L> a, vec<U, L> b) {
  if constexpr (L == 1) return {truth(a).x || truth(b).x}; else return {truth(a).x | truth(b).x};
}
template <class T, class U, int L> CA_INLINE vec<bool, L> logical_xor(vec<T, L> a, vec<U, L> b) {
  if constexpr (L == 1) return {truth(a).x != truth(b).x}; else return {truth(a).x ^ truth(b).x};
}
template <class T, int L> CA_INLINE vec<bool, L> logical_not(vec<T, L> a) {
  if constexpr (L == 1) return {!truth(a).x}; else return {~truth(a).x};
}
template <class T, int L> CA_INLINE vec<bool, L> isnan(vec<T, L> a) {
  if constexpr (std::is_floating_point_v<T>) return ne(a, a); else return splat<bool, L>(false);
}
