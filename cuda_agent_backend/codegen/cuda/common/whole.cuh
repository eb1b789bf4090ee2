// Quotients and rests of whole numbers by numbers that may be zero. C++ leaves x / 0 and the smallest number over -1
// open, and a compiler that takes them for impossible may change what is computed beside them. Here they are what a
// GPU's own routines give, and eager's kernels with them: over zero all ones, over -1 what wraps round.
namespace ca {

// Of 64 bits the lower half alone where nothing is in the other: such numbers are divided in 32 bits.
template <class T> CA_INLINE T over_zero_(T x) {
  if constexpr (sizeof(T) == 8) return (unsigned long long)(x) >> 32 ? T(-1) : T(0xffffffffull);
  else return T(-1);
}
template <class T> CA_INLINE T quotient_(T x, T y) {
  if (y == T(0)) return over_zero_(x);
  if (is_signed<T> && y == T(-1)) return T(0ull - (unsigned long long)(x));
  return T(x / y);
}
template <class T> CA_INLINE T rest_(T x, T y) {
  if (y == T(0)) return over_zero_(x);
  if (is_signed<T> && y == T(-1)) return T(0);
  return T(x % y);
}
template <class T> CA_INLINE T floored_quotient_(T x, T y) {
  const T q = quotient_(x, y);
  const T rest = T((unsigned long long)(x) - (unsigned long long)(q) * (unsigned long long)(y));
  return T(q - ((x < T(0)) != (y < T(0)) && rest != T(0)));
}
template <class T> CA_INLINE T floored_rest_(T x, T y) {
  const T rest = rest_(x, y);
  return rest != T(0) && ((y < T(0)) != (rest < T(0))) ? T(rest + y) : rest;
}
#define CA_QUOTIENT(NAME, CALL)                                                                                       \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a, vec<T, L> b) {                                      \
    vec<T, L> r; CA_LANES r.v[i] = CALL(a.v[i], b.v[i]); return r;                                                    \
  }                                                                                                                   \
  template <class T, class U, int L> CA_INLINE auto NAME(vec<T, L> a, vec<U, L> b) {                                  \
    return NAME(to<common<T, U>>(a), to<common<T, U>>(b));                                                            \
  }
CA_QUOTIENT(safe_truncdiv, quotient_) CA_QUOTIENT(safe_floordiv, floored_quotient_)
CA_QUOTIENT(safe_fmod, rest_) CA_QUOTIENT(safe_remainder, floored_rest_)
#undef CA_QUOTIENT

}  // namespace ca
