// Quotients of whole numbers, and truths in order. A processor traps where the smallest number is divided by -1, and the process dies of it;
// eager's floored quotients and rests wrap round there. Over zero eager raises, which a kernel cannot: it gives zero.
namespace ca {

template <class T> CA_INLINE T quotient_of(T a, T b) {
  if (b == T(0)) return T(0);
  if (std::is_signed_v<T> && b == T(-1)) return static_cast<T>(std::make_unsigned_t<T>(0) - std::make_unsigned_t<T>(a));
  return T(a / b);
}
template <class T> CA_INLINE T rest_of(T a, T b) {
  return b == T(0) || (std::is_signed_v<T> && b == T(-1)) ? T(0) : T(a % b);
}
#define CA_QUOTIENT(NAME, RESULT)                                                       \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a, vec<T, L> b) {        \
    vec<T, L> r{};                                                                      \
    for (int i = 0; i < L; ++i) {                                                       \
      const T v = lane(a, i), w = lane(b, i), rest = rest_of(v, w);                     \
      (void)rest;                                                                       \
      set_lane(r, i, T(RESULT));                                                        \
    }                                                                                   \
    return r;                                                                           \
  }                                                                                     \
  template <class T, class U, int L, class = std::enable_if_t<!std::is_same_v<T, U>>>   \
  CA_INLINE auto NAME(vec<T, L> a, vec<U, L> b) {                                       \
    typedef std::common_type_t<T, U> C;                                                 \
    return NAME(to<C>(a), to<C>(b));                                                    \
  }
CA_QUOTIENT(safe_fmod, rest)
CA_QUOTIENT(safe_remainder, rest != 0 && ((w < 0) != (rest < 0)) ? rest + w : rest)
CA_QUOTIENT(safe_truncdiv, quotient_of(v, w))
CA_QUOTIENT(safe_floordiv, quotient_of(v, w) - (rest != 0 && ((w < 0) != (v < 0))))
#undef CA_QUOTIENT

// Lanes hold -1 for true, which is less than 0.
template <int L> CA_INLINE vec<bool, L> safe_lt(vec<bool, L> a, vec<bool, L> b) { return logical_and(logical_not(a), b); }
template <int L> CA_INLINE vec<bool, L> safe_gt(vec<bool, L> a, vec<bool, L> b) { return safe_lt(b, a); }
template <int L> CA_INLINE vec<bool, L> safe_le(vec<bool, L> a, vec<bool, L> b) { return logical_not(safe_lt(b, a)); }
template <int L> CA_INLINE vec<bool, L> safe_ge(vec<bool, L> a, vec<bool, L> b) { return safe_le(b, a); }

}  // namespace ca
