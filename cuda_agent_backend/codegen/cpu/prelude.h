// Lanes for the cpu target: ca::vec<T, L> is L lanes of T in GCC's vector extension, or a plain T for L == 1.
// Every function here has the same meaning as PyTorch's operator of that name, NaN and infinities included.
// Coefficients of the polynomials were fitted for this file (weighted minimax on the stated interval).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <limits>
#include <type_traits>
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace ca {

#define CA_INLINE inline __attribute__((always_inline))

template <class T, int L> struct raw { typedef T type __attribute__((vector_size(sizeof(T) * L))); };
template <class T> struct raw<T, 1> { typedef T type; };
template <class T, int L> struct vec { typename raw<T, L>::type x; };
// Truth values are int32 lanes holding 0 or -1, whatever was compared.
template <int L> struct vec<bool, L> { typename raw<int32_t, L>::type x; };
template <> struct vec<bool, 1> { bool x; };
template <int W> using lanes = std::integral_constant<int, W>;

struct bf16 { uint16_t bits; };
struct f16 { _Float16 value; };

template <int Bytes> struct integer_of;
template <> struct integer_of<1> { typedef int8_t type; };
template <> struct integer_of<2> { typedef int16_t type; };
template <> struct integer_of<4> { typedef int32_t type; };
template <> struct integer_of<8> { typedef int64_t type; };

template <class T> struct limits {
  static constexpr T inf() { return std::numeric_limits<T>::infinity(); }
  static constexpr T nan() { return std::numeric_limits<T>::quiet_NaN(); }
};
// Smallest and largest values, infinities where the type has them.
template <class T> constexpr T lowest() {
  return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}
template <class T> constexpr T highest() {
  return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
}

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

// ---- memory -------------------------------------------------------------------------------------------------

template <class S> struct compute { typedef S type; };
template <> struct compute<bf16> { typedef float type; };
template <> struct compute<f16> { typedef float type; };
template <class S> using compute_t = typename compute<S>::type;

CA_INLINE float widen(bf16 v) { return bits_of<float>(uint32_t(v.bits) << 16); }
CA_INLINE float widen(f16 v) { return float(v.value); }
template <class S> CA_INLINE S widen(S v) { return v; }
template <class S, class T> CA_INLINE S narrow(T v) {
  if constexpr (std::is_same_v<S, bf16>) {
    const uint32_t u = bits_of<uint32_t>(float(v));
    const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return {uint16_t(float(v) != float(v) ? (u >> 16) | 0x40 : rounded)};
  } else if constexpr (std::is_same_v<S, f16>) {
    return {static_cast<_Float16>(float(v))};
  } else {
    return static_cast<S>(v);
  }
}

template <int L, class S> CA_INLINE vec<compute_t<S>, L> load(const S* p) {
  typedef compute_t<S> T;
  vec<T, L> r;
  if constexpr (L == 1) {
    r.x = widen(*p);
  } else if constexpr (std::is_same_v<S, bool>) {
    typename raw<int8_t, L>::type b;
    memcpy(&b, p, L);
    r.x = -__builtin_convertvector(b, typename raw<int32_t, L>::type);
  } else if constexpr (std::is_same_v<S, bf16>) {
    typename raw<uint16_t, L>::type b;
    memcpy(&b, p, sizeof(b));
    r.x = (typename raw<float, L>::type)(__builtin_convertvector(b, typename raw<uint32_t, L>::type) << 16);
  } else if constexpr (std::is_same_v<S, f16>) {
    for (int i = 0; i < L; ++i) r.x[i] = widen(p[i]);
  } else {
    memcpy(&r.x, p, sizeof(r.x));
  }
  return r;
}
template <int L, class S> CA_INLINE vec<compute_t<S>, L> broadcast(const S* p) {
  return splat<compute_t<S>, L>(widen(*p));
}
template <class T, int L> CA_INLINE T lane(vec<T, L> a, int i) {
  if constexpr (L == 1) return a.x; else return static_cast<T>(a.x[i]);
}
template <class T, int L> CA_INLINE void set_lane(vec<T, L>& a, int i, T v) {
  if constexpr (L == 1) a.x = v;
  else if constexpr (std::is_same_v<T, bool>) a.x[i] = -int32_t(v);
  else a.x[i] = v;
}
template <int L, class S> CA_INLINE vec<compute_t<S>, L> load_strided(const S* p, int64_t step) {
  vec<compute_t<S>, L> r{};
  for (int i = 0; i < L; ++i) set_lane(r, i, compute_t<S>(widen(p[i * step])));
  return r;
}
// Integers as indices; negative ones count from the end where that is asked for.
template <bool Check, bool Wrap, class T, int L> CA_INLINE vec<int64_t, L> place(vec<T, L> x, int64_t size) {
  static_assert(!Check);
  vec<int64_t, L> r = to<int64_t>(x);
  for (int i = 0; Wrap && i < L; ++i) set_lane(r, i, lane(r, i) < 0 ? lane(r, i) + size : lane(r, i));
  return r;
}
template <int L, class S> CA_INLINE vec<compute_t<S>, L> gather(const S* p, vec<int64_t, L> at) {
  vec<compute_t<S>, L> r{};
  for (int i = 0; i < L; ++i) set_lane(r, i, compute_t<S>(widen(p[lane(at, i)])));
  return r;
}
template <int L, class S> CA_INLINE vec<compute_t<S>, L> gather_masked(const S* p, vec<int64_t, L> at, vec<bool, L> m) {
  vec<compute_t<S>, L> r{};
  for (int i = 0; i < L; ++i) if (lane(m, i)) set_lane(r, i, compute_t<S>(widen(p[lane(at, i)])));
  return r;
}

template <int L, class S, class T> CA_INLINE void store(S* p, vec<T, L> v) {
  if constexpr (L == 1) {
    *p = narrow<S>(v.x);
  } else if constexpr (std::is_same_v<S, bool>) {
    typename raw<int8_t, L>::type b = __builtin_convertvector(-to<bool>(v).x, typename raw<int8_t, L>::type);
    memcpy(p, &b, L);
  } else if constexpr (std::is_same_v<S, bf16> || std::is_same_v<S, f16>) {
    for (int i = 0; i < L; ++i) p[i] = narrow<S>(lane(v, i));
  } else {
    auto c = to<S>(v);
    memcpy(p, &c.x, sizeof(c.x));
  }
}
// Past the caches where the address allows it: an output that is not read again need not evict what is.
template <int L, class S, class T> CA_INLINE void store_stream(S* p, vec<T, L> v) {
#if defined(__AVX__)
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, float> && L == 8) {
    if ((reinterpret_cast<uintptr_t>(p) & 31) == 0) { _mm256_stream_ps(p, (__m256)v.x); return; }
  }
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, float> && L == 4) {
    if ((reinterpret_cast<uintptr_t>(p) & 15) == 0) { _mm_stream_ps(p, (__m128)v.x); return; }
  }
#endif
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, float> && L == 16) {
    if ((reinterpret_cast<uintptr_t>(p) & 63) == 0) { _mm512_stream_ps(p, (__m512)v.x); return; }
  }
#endif
  store<L>(p, v);
}
CA_INLINE void stream_fence() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}
template <int L, class S, class T> CA_INLINE void store_scalar(S* p, vec<T, L> v) { *p = narrow<S>(lane(v, 0)); }
template <int L, class S, class T> CA_INLINE void store_strided(S* p, int64_t step, vec<T, L> v) {
  for (int i = 0; i < L; ++i) p[i * step] = narrow<S>(lane(v, i));
}
template <int L, class S, class T> CA_INLINE void scatter(S* p, vec<int64_t, L> at, vec<T, L> v) {
  for (int i = 0; i < L; ++i) p[lane(at, i)] = narrow<S>(lane(v, i));
}

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

// ---- reductions ---------------------------------------------------------------------------------------------
// An accumulator takes vectors with `update`, is closed with `flush` now and then (sums cascade: short runs are
// added to a second level, so that the error grows with the run, not with the row), and joins others with `merge`.

template <class T, int L> struct sum_acc {
  vec<T, L> run = splat<T, L>(T(0)), total = splat<T, L>(T(0)), lost = splat<T, L>(T(0));
  CA_INLINE void update(vec<T, L> v, int64_t) { run = add(run, v); }
  // The second level keeps what rounding loses (two-sum), so only the short runs decide the error.
  CA_INLINE void flush() {
    if constexpr (std::is_floating_point_v<T>) {
      const auto sum = add(total, run), from_run = sub(sum, total);
      lost = add(lost, add(sub(total, sub(sum, from_run)), sub(run, from_run)));
      total = sum;
    } else {
      total = add(total, run);
    }
    run = splat<T, L>(T(0));
  }
  CA_INLINE vec<T, L> result() {
    flush();
    if constexpr (std::is_floating_point_v<T>) return where(eq(lost, lost), add(total, lost), total);  // inf - inf
    else return total;
  }
  CA_INLINE void merge(sum_acc o) { run = add(run, o.result()); flush(); }
  static CA_INLINE T combine(T a, T b) { return a + b; }
};
template <class T, int L> struct prod_acc {
  vec<T, L> total = splat<T, L>(T(1));
  CA_INLINE void update(vec<T, L> v, int64_t) { total = mul(total, v); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(prod_acc o) { total = mul(total, o.total); }
  CA_INLINE vec<T, L> result() { return total; }
  static CA_INLINE T combine(T a, T b) { return a * b; }
};
template <class T, int L> struct max_acc {
  vec<T, L> total = splat<T, L>(lowest<T>());
  CA_INLINE void update(vec<T, L> v, int64_t) { total = maximum(v, total); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(max_acc o) { total = maximum(total, o.total); }
  CA_INLINE vec<T, L> result() { return total; }
  static CA_INLINE T combine(T a, T b) { return maximum(vec<T, 1>{a}, vec<T, 1>{b}).x; }
};
template <class T, int L> struct min_acc {
  vec<T, L> total = splat<T, L>(highest<T>());
  CA_INLINE void update(vec<T, L> v, int64_t) { total = minimum(v, total); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(min_acc o) { total = minimum(total, o.total); }
  CA_INLINE vec<T, L> result() { return total; }
  static CA_INLINE T combine(T a, T b) { return minimum(vec<T, 1>{a}, vec<T, 1>{b}).x; }
};
template <class T, int L> struct any_acc {
  vec<bool, L> total = splat<bool, L>(false);
  CA_INLINE void update(vec<T, L> v, int64_t) { total = logical_or(total, v); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(any_acc o) { total = logical_or(total, o.total); }
  CA_INLINE vec<bool, L> result() { return total; }
  static CA_INLINE bool combine(bool a, bool b) { return a || b; }
};
template <class T, int L> struct xor_sum_acc {
  vec<T, L> total = splat<T, L>(T(0));
  CA_INLINE void update(vec<T, L> v, int64_t) { total = bitwise_xor(total, v); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(xor_sum_acc o) { total = bitwise_xor(total, o.total); }
  CA_INLINE vec<T, L> result() { return total; }
  static CA_INLINE T combine(T a, T b) { return a ^ b; }
};
// One value out of a vector's lanes and the accumulator of the scalar tail.
template <template <class, int> class Acc, class T, int L> CA_INLINE auto across(Acc<T, L> a, Acc<T, 1> tail) {
  auto v = a.result();
  auto r = tail.result();
  for (int i = 0; i < L; ++i) r.x = Acc<T, 1>::combine(r.x, lane(v, i));
  return r;
}

// Position of the first extreme value; NaN beats every number, as in PyTorch. Positions fit 32 bits.
template <class T, int L, bool Max> struct arg_acc {
  vec<T, L> best = splat<T, L>(Max ? lowest<T>() : highest<T>());
  vec<int32_t, L> at = splat<int32_t, L>(0x7fffffff);
  CA_INLINE void take(vec<T, L> v, vec<int32_t, L> where_) {
    vec<bool, L> better = Max ? gt(v, best) : lt(v, best);
    if constexpr (std::is_floating_point_v<T>)
      better = logical_and(logical_not(Max ? le(v, best) : ge(v, best)), eq(best, best));
    best = where(better, v, best);
    at = where(better, where_, at);
  }
  // `position` is that of lane 0; `Step` apart along the lanes (0: one row per lane)
  template <int Step = 1> CA_INLINE void update(vec<T, L> v, int64_t position) {
    vec<int32_t, L> p = splat<int32_t, L>(int32_t(position));
    if constexpr (L > 1 && Step) for (int i = 0; i < L; ++i) p.x[i] = int32_t(position) + i * Step;
    take(v, p);
  }
  CA_INLINE void flush() {}
  static CA_INLINE bool before(T a, int32_t ia, T b, int32_t ib) {
    if (a != a || b != b) return a != a && (b == b || ia < ib);
    if (a == b) return ia < ib;
    return Max ? a > b : a < b;
  }
  CA_INLINE void merge(arg_acc o) {
    for (int i = 0; i < L; ++i)
      if (before(lane(o.best, i), lane(o.at, i), lane(best, i), lane(at, i))) {
        set_lane(best, i, lane(o.best, i));
        set_lane(at, i, lane(o.at, i));
      }
  }
  CA_INLINE vec<int64_t, L> result() {
    // never updated: every value was the worst one, so the first is as good as any
    return to<int64_t>(where(eq(at, splat<int32_t, L>(0x7fffffff)), splat<int32_t, L>(0), at));
  }
};
template <class T, int L> struct argmax_acc : arg_acc<T, L, true> {};
template <class T, int L> struct argmin_acc : arg_acc<T, L, false> {};
// For a mean that is then subtracted: what rounding loses here comes back in every difference. Runs are shorter
// (loop_nest.py's MEAN_RUNS), and what they add up to is kept whole until the end.
template <class T, int L> struct mean_sum_acc : sum_acc<T, L> {
  CA_INLINE void merge(mean_sum_acc o) {
    o.flush();
    this->run = add(this->run, o.total);
    this->flush();
    this->lost = add(this->lost, o.lost);
  }
};
template <class T, int L> CA_INLINE vec<T, 1> across(mean_sum_acc<T, L> a, mean_sum_acc<T, 1> tail) {
  a.flush();
  tail.flush();
  const auto whole = [](T total, T lost) { return lost == lost ? double(total) + double(lost) : double(total); };  // inf - inf
  double sum = whole(tail.total.x, tail.lost.x);
  for (int i = 0; i < L; ++i) sum += whole(lane(a.total, i), lane(a.lost, i));
  return {T(sum)};
}
template <class T, int L> CA_INLINE vec<bool, L> finite(vec<T, L> a) { return eq(sub(a, a), splat<T, L>(T(0))); }
template <class T, int L> CA_INLINE bool all_finite(vec<T, L> a) {
  const auto differences = sub(a, a);
  T sum = T(0);
  for (int i = 0; i < L; ++i) sum += lane(differences, i);
  return sum == T(0);
}
// The mean of numbers whose sum overflows, as a whole or on the way: in double, and of doubles that are scaled by a
// power of two.
template <class T, int L> struct far_mean_acc {
  static constexpr double scale = std::is_same_v<T, double> ? 0x1p-64 : 1.0;
  vec<double, L> total = splat<double, L>(0.0);
  CA_INLINE void update(vec<T, L> v) { total = add(total, mul(to<double>(v), splat<double, L>(scale))); }
  CA_INLINE vec<T, L> mean(double count) {
    return to<T>(mul(truediv(total, splat<double, L>(count)), splat<double, L>(1.0 / scale)));
  }
};
// `total` divided by `count`. Where that is not finite the values are added up once more, by `again`, to a `far_mean_acc`:
// a sum may overflow where the mean does not, and one part of it to each infinity.
template <class T, int L, class Again> CA_INLINE vec<T, L> mean_of(vec<T, L> total, int64_t count, Again again) {
  const auto mean = truediv(total, splat<T, L>(T(count)));
  if (__builtin_expect(all_finite(mean), 1)) return mean;
  far_mean_acc<T, L> far;
  again(far);
  return where(finite(mean), mean, far.mean(double(count)));
}
// A sum whose terms may cancel: rounded terms are added up in double, where no product can be merged with its addition.
template <class T, int L> struct wide_sum_acc {
  vec<double, L> total = splat<double, L>(0.0);
  CA_INLINE void update(vec<T, L> v, int64_t) { total = add(total, to<double>(v)); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(wide_sum_acc o) { total = add(total, o.total); }
  CA_INLINE vec<T, L> result() { return to<T>(total); }
};
template <class T, int L> CA_INLINE vec<T, 1> across(wide_sum_acc<T, L> a, wide_sum_acc<T, 1> tail) {
  double sum = tail.total.x;
  for (int i = 0; i < L; ++i) sum += lane(a.total, i);
  return {T(sum)};
}
template <class T, int L, bool Max> CA_INLINE vec<int64_t, 1> across_arg(arg_acc<T, L, Max> a, arg_acc<T, 1, Max> tail) {
  for (int i = 0; i < L; ++i) tail.merge({{lane(a.best, i)}, {lane(a.at, i)}});
  return tail.result();
}
template <class T, int L> CA_INLINE auto across(argmax_acc<T, L> a, argmax_acc<T, 1> t) { return across_arg<T, L, true>(a, t); }
template <class T, int L> CA_INLINE auto across(argmin_acc<T, L> a, argmin_acc<T, 1> t) { return across_arg<T, L, false>(a, t); }

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

}  // namespace ca
