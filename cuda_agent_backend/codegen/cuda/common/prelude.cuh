// Lanes for the cuda target: ca::vec<T, L> is L values of T in one thread's registers.
// Every function here has the same meaning as PyTorch's operator of that name, NaN and infinities included.
// Builds under nvcc and NVRTC. Define CA_HALF before this text to have the 16-bit floating-point types.
#if defined(__CUDACC_RTC__)
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long int64_t; typedef unsigned long uint64_t;
#else
#include <cstdint>
#endif
#if defined(CA_HALF)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

namespace ca {

#define CA_INLINE __device__ __forceinline__
#define CA_LANES _Pragma("unroll") for (int i = 0; i < L; ++i)

template <class T, int L> struct vec { T v[L]; };
template <bool C, class A, class B> struct select_ { typedef A type; };
template <class A, class B> struct select_<false, A, B> { typedef B type; };
template <class A, class B> struct same { static constexpr bool value = false; };
template <class A> struct same<A, A> { static constexpr bool value = true; };
template <class T> constexpr bool is_real = same<T, float>::value || same<T, double>::value;
template <class T> constexpr bool is_bool = same<T, bool>::value;
template <class T> constexpr bool is_signed = T(-1) < T(0);
template <class A, class B> struct common_ { typedef decltype(true ? A() : B()) type; };
template <class A, class B> using common = typename common_<A, B>::type;

#if defined(CA_HALF)
typedef __half f16;
typedef __nv_bfloat16 bf16;
CA_INLINE float widen(f16 v) { return __half2float(v); }
CA_INLINE float widen(bf16 v) { return __bfloat162float(v); }
template <class S> constexpr bool is_half = same<S, f16>::value || same<S, bf16>::value;
#else
template <class S> constexpr bool is_half = false;
#endif
template <class S> using compute = typename select_<is_half<S>, float, S>::type;
template <class S> CA_INLINE S widen(S v) { return v; }
template <class S, class T> CA_INLINE S narrow(T v) {
#if defined(CA_HALF)
  if constexpr (same<S, f16>::value) return __float2half_rn(float(v));
  else if constexpr (same<S, bf16>::value) return __float2bfloat16_rn(float(v));
  else return static_cast<S>(v);
#else
  return static_cast<S>(v);
#endif
}

template <class T> struct limits;
template <> struct limits<float> {
  static CA_INLINE float inf() { return __int_as_float(0x7f800000); }
  static CA_INLINE float nan() { return __int_as_float(0x7fc00000); }
};
template <> struct limits<double> {
  static CA_INLINE double inf() { return __longlong_as_double(0x7ff0000000000000ll); }
  static CA_INLINE double nan() { return __longlong_as_double(0x7ff8000000000000ll); }
};
template <class T> CA_INLINE T lowest() {
  if constexpr (is_real<T>) return -limits<T>::inf();
  else if constexpr (is_bool<T> || !is_signed<T>) return T(0);
  else return T(1ull << (8 * sizeof(T) - 1));
}
template <class T> CA_INLINE T highest() {
  if constexpr (is_real<T>) return limits<T>::inf();
  else if constexpr (is_bool<T>) return true;
  else if constexpr (!is_signed<T>) return T(~0ull);
  else return T(~(1ull << (8 * sizeof(T) - 1)));
}

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

// ---- indices: `int` or `int64_t`, never negative where they are divided ---------------------------------------

CA_INLINE int idiv(int a, int b) { return int(unsigned(a) / unsigned(b)); }
CA_INLINE int imod(int a, int b) { return int(unsigned(a) % unsigned(b)); }
CA_INLINE int64_t idiv(int64_t a, int64_t b) { return int64_t(uint64_t(a) / uint64_t(b)); }
CA_INLINE int64_t imod(int64_t a, int64_t b) { return int64_t(uint64_t(a) % uint64_t(b)); }
CA_INLINE int64_t idiv(int64_t a, int b) { return idiv(a, int64_t(b)); }
CA_INLINE int64_t imod(int64_t a, int b) { return imod(a, int64_t(b)); }
#define CA_INDEX(NAME, OP)                                                                                            \
  CA_INLINE int NAME(int a, int b) { return OP; }                                                                     \
  CA_INLINE int64_t NAME(int64_t a, int64_t b) { return OP; }                                                         \
  CA_INLINE int64_t NAME(int64_t a, int b) { return OP; }                                                             \
  CA_INLINE int64_t NAME(int a, int64_t b) { return OP; }
CA_INDEX(imax, a > b ? a : b) CA_INDEX(imin, a < b ? a : b) CA_INDEX(plus_, a + b) CA_INDEX(times_, a * b)
#undef CA_INDEX
template <int L, class I> CA_INLINE vec<I, L> iota(I start) { vec<I, L> r; CA_LANES r.v[i] = start + i; return r; }
template <int L, class I> CA_INLINE vec<int32_t, L> iota32(I start) { vec<int32_t, L> r; CA_LANES r.v[i] = int32_t(start) + i; return r; }
#define CA_INDEX(NAME)                                                                                               \
  template <int L, class I> CA_INLINE vec<I, L> NAME(vec<I, L> a, int b) {                                            \
    vec<I, L> r; CA_LANES r.v[i] = I(NAME(a.v[i], b)); return r;                                                      \
  }                                                                                                                  \
  template <int L, class I> CA_INLINE vec<I, L> NAME(int a, vec<I, L> b) {                                            \
    vec<I, L> r; CA_LANES r.v[i] = I(NAME(a, b.v[i])); return r;                                                      \
  }                                                                                                                  \
  template <int L> CA_INLINE vec<int64_t, L> NAME(vec<int64_t, L> a, int64_t b) {                                     \
    vec<int64_t, L> r; CA_LANES r.v[i] = NAME(a.v[i], b); return r;                                                   \
  }                                                                                                                  \
  template <int L> CA_INLINE vec<int64_t, L> NAME(int64_t a, vec<int64_t, L> b) {                                     \
    vec<int64_t, L> r; CA_LANES r.v[i] = NAME(a, b.v[i]); return r;                                                   \
  }                                                                                                                  \
  template <int L, class I> CA_INLINE vec<I, L> NAME(vec<I, L> a, vec<I, L> b) {                                      \
    vec<I, L> r; CA_LANES r.v[i] = NAME(a.v[i], b.v[i]); return r;                                                    \
  }
CA_INDEX(idiv) CA_INDEX(imod) CA_INDEX(imax) CA_INDEX(imin) CA_INDEX(plus_) CA_INDEX(times_)
#undef CA_INDEX
#define CA_INDEX(OP, NAME)                                                                                            \
  template <int L, class I> CA_INLINE vec<I, L> operator OP(vec<I, L> a, vec<I, L> b) { return NAME(a, b); }          \
  template <int L, class I> CA_INLINE vec<I, L> operator OP(vec<I, L> a, int b) { return NAME(a, b); }                \
  template <int L, class I> CA_INLINE vec<I, L> operator OP(int a, vec<I, L> b) { return NAME(a, b); }                \
  template <int L> CA_INLINE vec<int64_t, L> operator OP(vec<int64_t, L> a, int64_t b) { return NAME(a, b); }         \
  template <int L> CA_INLINE vec<int64_t, L> operator OP(int64_t a, vec<int64_t, L> b) { return NAME(a, b); }
CA_INDEX(+, plus_) CA_INDEX(*, times_)
#undef CA_INDEX

// ---- memory: the vector forms take addresses aligned to min(16, size of the vector) bytes -----------------------

template <int Bytes> struct words;
template <> struct words<1> { typedef unsigned char type; };
template <> struct words<2> { typedef unsigned short type; };
template <> struct words<4> { typedef unsigned int type; };
template <> struct words<8> { typedef uint2 type; };
template <> struct words<16> { typedef uint4 type; };
template <class S, int L> struct raw {
  static constexpr int bytes = sizeof(S) * L, unit = bytes < 16 ? bytes : 16, count = bytes / unit;
  typedef typename words<unit>::type word;
  union { word w[count]; unsigned char bytes_[bytes]; };
  CA_INLINE S get(int i) const { S s; memcpy(&s, bytes_ + i * sizeof(S), sizeof(S)); return s; }
  CA_INLINE void set(int i, S s) { memcpy(bytes_ + i * sizeof(S), &s, sizeof(S)); }
};
template <int L, class S> CA_INLINE vec<compute<S>, L> load(const S* p) {
  typedef raw<S, L> R;
  R b;
#pragma unroll
  for (int i = 0; i < R::count; ++i) b.w[i] = reinterpret_cast<const typename R::word*>(p)[i];
  vec<compute<S>, L> r;
  CA_LANES r.v[i] = widen(b.get(i));
  return r;
}
// What is read once leaves the L2 cache first: it need not push out what others left there, much of it unwritten.
CA_INLINE uint64_t once_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
#define CA_ONCE "ld.global.nc.L1::no_allocate.L2::cache_hint"
CA_INLINE uint4 read_once(const uint4* p) {
  uint4 r;
  asm(CA_ONCE ".v4.b32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p), "l"(once_policy()));
  return r;
}
CA_INLINE uint2 read_once(const uint2* p) {
  uint2 r;
  asm(CA_ONCE ".v2.b32 {%0, %1}, [%2], %3;" : "=r"(r.x), "=r"(r.y) : "l"(p), "l"(once_policy()));
  return r;
}
CA_INLINE unsigned read_once(const unsigned* p) {
  unsigned r;
  asm(CA_ONCE ".b32 %0, [%1], %2;" : "=r"(r) : "l"(p), "l"(once_policy()));
  return r;
}
CA_INLINE unsigned short read_once(const unsigned short* p) { return *p; }
CA_INLINE unsigned char read_once(const unsigned char* p) { return *p; }
#undef CA_ONCE
template <int L, class S> CA_INLINE vec<compute<S>, L> load_once(const S* p) {
  typedef raw<S, L> R;
  R b;
#pragma unroll
  for (int i = 0; i < R::count; ++i) b.w[i] = read_once(reinterpret_cast<const typename R::word*>(p) + i);
  vec<compute<S>, L> r;
  CA_LANES r.v[i] = widen(b.get(i));
  return r;
}
template <int L, class S> CA_INLINE vec<compute<S>, L> load_unaligned(const S* p) {
  vec<compute<S>, L> r; CA_LANES r.v[i] = widen(p[i]); return r;
}
// Lanes run downwards from p.
template <int L, class S> CA_INLINE vec<compute<S>, L> load_reversed(const S* p) {
  const auto up = load<L>(p - (L - 1));
  vec<compute<S>, L> r; CA_LANES r.v[i] = up.v[L - 1 - i]; return r;
}
template <int L, class S> CA_INLINE vec<compute<S>, L> broadcast(const S* p) { return splat<compute<S>, L>(widen(*p)); }
template <int L, class S> CA_INLINE vec<compute<S>, L> load_strided(const S* p, int64_t step) {
  vec<compute<S>, L> r; CA_LANES r.v[i] = widen(p[i * step]); return r;
}
// L rows of L neighbours each, read by rows; ``at[c]`` has what all rows have at place c.
template <class T, int L> struct turned {
  vec<T, L> at[L];
  CA_INLINE void set(int row, vec<T, L> along) { CA_LANES at[i].v[row] = along.v[i]; }
};
// Integers as indices: negative ones count from the end, and one out of range stops the kernel, where that is asked for.
template <bool Check, bool Wrap, class T, int L>
CA_INLINE vec<int64_t, L> place(vec<T, L> x, int64_t size, vec<bool, L> m = splat<bool, L>(true)) {
  vec<int64_t, L> r;
  CA_LANES {
    const int64_t at = int64_t(x.v[i]);
    r.v[i] = Wrap && at < 0 ? at + size : at;
    if (Check && m.v[i] && (r.v[i] < 0 || r.v[i] >= size)) __trap();
  }
  return r;
}
// The distance comes last: places that differ by it alone share an address.
template <int L, class S, class I> CA_INLINE vec<compute<S>, L> gather(const S* p, vec<I, L> at, int64_t distance = 0) {
  vec<compute<S>, L> r; CA_LANES r.v[i] = widen((p + at.v[i])[distance]); return r;
}
template <int L, class S, class I> CA_INLINE vec<compute<S>, L> gather_masked(const S* p, vec<I, L> at, vec<bool, L> m) {
  vec<compute<S>, L> r;
  CA_LANES {
    // Always a load, of the first element where there is none: without branches, taps that windows share are read once.
    const compute<S> v = widen(p[m.v[i] ? at.v[i] : I(0)]);
    r.v[i] = m.v[i] ? v : compute<S>(0);
  }
  return r;
}
template <int L, bool Stream, class S, class T> CA_INLINE void store_(S* p, vec<T, L> v) {
  typedef raw<S, L> R;
  R b;
  CA_LANES b.set(i, narrow<S>(v.v[i]));
#pragma unroll
  for (int i = 0; i < R::count; ++i) {
    typename R::word* at = reinterpret_cast<typename R::word*>(p) + i;
    if constexpr (Stream) __stcs(at, b.w[i]); else *at = b.w[i];
  }
}
template <int L, class S, class T> CA_INLINE void store(S* p, vec<T, L> v) { store_<L, false>(p, v); }
template <int L, class S, class T> CA_INLINE void store_stream(S* p, vec<T, L> v) { store_<L, true>(p, v); }
template <int L, class S, class T> CA_INLINE void store_reversed(S* p, vec<T, L> v) {
  vec<T, L> r; CA_LANES r.v[i] = v.v[L - 1 - i]; store<L>(p - (L - 1), r);
}
template <int L, class S, class T> CA_INLINE void store_unaligned(S* p, vec<T, L> v) { CA_LANES p[i] = narrow<S>(v.v[i]); }
template <int L, class S, class T> CA_INLINE void store_scalar(S* p, vec<T, L> v) { *p = narrow<S>(v.v[0]); }
template <int L, class S, class T> CA_INLINE void store_strided(S* p, int64_t step, vec<T, L> v) {
  CA_LANES p[i * step] = narrow<S>(v.v[i]);
}
template <int L, class S, class T, class I> CA_INLINE void scatter(S* p, vec<I, L> at, vec<T, L> v) {
  CA_LANES p[at.v[i]] = narrow<S>(v.v[i]);
}
// Sixteen bytes from global to shared memory without passing through registers. No cache policy here: ptxas 13.0 gives
// the policy and a uniform part of the shared address the same registers, which ends in an illegal instruction.
CA_INLINE void copy_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :: "r"(unsigned(__cvta_generic_to_shared(shared))), "l"(global) : "memory");
}
// The same for four or eight bytes, of rows that do not begin at multiples of sixteen.
template <int Bytes> CA_INLINE void copy_async_narrow(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
               :: "r"(unsigned(__cvta_generic_to_shared(shared))), "l"(global), "n"(Bytes) : "memory");
}
CA_INLINE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending> CA_INLINE void copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(Pending) : "memory"); }

// First of all in each kernel of a plan of several: from here on what the launch before it wrote is there, and the launch
// after it may be prepared (programmatic dependent launch). Without a dependent launch both do nothing.
CA_INLINE void follow() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

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

// ---- accumulators: `update` takes values, `merge` another accumulator, `result` closes ---------------------------
// Lanes stay apart until `across`; threads, warps and blocks join by `merge` in a fixed order, so results repeat.

#define CA_ACCUMULATOR(NAME, IDENTITY, JOIN)                                                                          \
  template <class T, int L> struct NAME {                                                                             \
    typedef typename select_<(sizeof(T) < 4), int, T>::type W;                                                        \
    typedef T result_type;                                                                                            \
    W v[L];                                                                                                           \
    CA_INLINE NAME() { CA_LANES v[i] = W(IDENTITY); }                                                                 \
    static CA_INLINE W join(W x, W y) { return W(JOIN); }                                                             \
    CA_INLINE void update(vec<T, L> a, int = 0, int = 0) { CA_LANES v[i] = join(v[i], W(a.v[i])); }                   \
    CA_INLINE void update_together(vec<T, L> a, int = 0, int = 0) {                                                   \
      W w[L]; CA_LANES w[i] = W(a.v[i]);                                                                              \
      _Pragma("unroll") for (int h = 1; h < L; h *= 2) {                                                              \
        _Pragma("unroll") for (int i = 0; i + h < L; i += 2 * h) w[i] = join(w[i], w[i + h]);                         \
      }                                                                                                               \
      v[0] = join(v[0], w[0]);                                                                                        \
    }                                                                                                                 \
    CA_INLINE void merge(const NAME& o) { CA_LANES v[i] = join(v[i], o.v[i]); }                                       \
    CA_INLINE vec<T, L> result() const { vec<T, L> r; CA_LANES r.v[i] = T(v[i]); return r; }                          \
    CA_INLINE NAME<T, 1> lane(int i) const { NAME<T, 1> r; r.v[0] = v[i]; return r; }                                 \
  };
CA_ACCUMULATOR(sum_acc, T(0), x + y)
CA_ACCUMULATOR(prod_acc, T(1), x * y)
CA_ACCUMULATOR(max_acc, lowest<T>(), max_(x, y))
CA_ACCUMULATOR(min_acc, highest<T>(), min_(x, y))
CA_ACCUMULATOR(xor_sum_acc, T(0), x ^ y)
#undef CA_ACCUMULATOR
// A sum whose terms may cancel: rounded terms are added up in double, where no product can be merged with its addition.
template <class T, int L> struct wide_sum_acc {
  typedef T result_type;
  double v[L];
  CA_INLINE wide_sum_acc() { CA_LANES v[i] = 0.0; }
  CA_INLINE void update(vec<T, L> a, int = 0, int = 0) { CA_LANES v[i] += double(a.v[i]); }
  CA_INLINE void merge(const wide_sum_acc& o) { CA_LANES v[i] += o.v[i]; }
  CA_INLINE vec<T, L> result() const { vec<T, L> r; CA_LANES r.v[i] = T(v[i]); return r; }
  CA_INLINE wide_sum_acc<T, 1> lane(int i) const { wide_sum_acc<T, 1> r; r.v[0] = v[i]; return r; }
};
template <class T, int L> struct any_acc {
  typedef bool result_type;
  int v[L];
  CA_INLINE any_acc() { CA_LANES v[i] = 0; }
  CA_INLINE void update(vec<T, L> a, int = 0, int = 0) { CA_LANES v[i] |= a.v[i] != T(0); }
  CA_INLINE void merge(const any_acc& o) { CA_LANES v[i] |= o.v[i]; }
  CA_INLINE vec<bool, L> result() const { vec<bool, L> r; CA_LANES r.v[i] = v[i] != 0; return r; }
  CA_INLINE any_acc<T, 1> lane(int i) const { any_acc<T, 1> r; r.v[0] = v[i]; return r; }
};
// Position of the first extreme value; NaN beats every number, as in PyTorch. Positions fit 32 bits.
template <class T, int L, bool Max> struct arg_acc {
  typedef typename select_<(sizeof(T) < 4), int, T>::type W;
  typedef int64_t result_type;
  W v[L];
  int at[L];
  CA_INLINE arg_acc() { CA_LANES { v[i] = W(Max ? lowest<T>() : highest<T>()); at[i] = 0x7fffffff; } }
  // Positions of the lanes are `step` apart. A thread meets its positions in rising order.
  CA_INLINE void update(vec<T, L> a, int position, int step) {
    CA_LANES {
      const W x = W(a.v[i]);
      const bool better = !(Max ? x <= v[i] : x >= v[i]) && v[i] == v[i];
      v[i] = better ? x : v[i];
      at[i] = better ? position + i * step : at[i];
    }
  }
  static CA_INLINE bool before(W a, int ia, W b, int ib) {
    if (a != a || b != b) return a != a && (b == b || ia < ib);
    return a == b ? ia < ib : Max ? a > b : a < b;
  }
  CA_INLINE void merge(const arg_acc& o) {
    CA_LANES {
      const bool take = before(o.v[i], o.at[i], v[i], at[i]);
      v[i] = take ? o.v[i] : v[i];
      at[i] = take ? o.at[i] : at[i];
    }
  }
  // Never updated: every value was the worst there is, so the first is as good as any.
  CA_INLINE vec<int64_t, L> result() const { vec<int64_t, L> r; CA_LANES r.v[i] = at[i] == 0x7fffffff ? 0 : at[i]; return r; }
  CA_INLINE arg_acc<T, 1, Max> lane(int i) const { arg_acc<T, 1, Max> r; r.v[0] = v[i]; r.at[0] = at[i]; return r; }
};
template <class T, int L> using argmax_acc = arg_acc<T, L, true>;
template <class T, int L> using argmin_acc = arg_acc<T, L, false>;

// Mean and sum of squared deviations; parts join as Chan, Golub and LeVeque do.
template <class T, int L> struct welford_acc {
  T mean[L], m2[L], n[L];
  CA_INLINE welford_acc() { CA_LANES mean[i] = m2[i] = n[i] = T(0); }
  CA_INLINE void update(vec<T, L> a, int = 0, int = 0) {
    const T next = n[0] + T(1), share = inverse(next);
    CA_LANES { const T d = a.v[i] - mean[i]; mean[i] += d * share; m2[i] += d * (a.v[i] - mean[i]); n[i] = next; }
  }
  // The same in two passes over values at hand: first their sum, then deviations from their own mean.
  CA_INLINE void count(vec<T, L> a) { CA_LANES mean[i] += a.v[i]; n[0] += T(1); CA_LANES n[i] = n[0]; }
  CA_INLINE void center() { CA_LANES mean[i] = n[i] > T(0) ? mean[i] / n[i] : T(0); }
  CA_INLINE void deviate(vec<T, L> a) { CA_LANES { const T d = a.v[i] - mean[i]; m2[i] += d * d; } }
  CA_INLINE void merge(const welford_acc& o) {
    CA_LANES {
      const T both = n[i] + o.n[i], share = both > T(0) ? ratio(o.n[i], both) : T(0), d = o.mean[i] - mean[i];
      mean[i] += d * share;
      m2[i] += o.m2[i] + d * (d * (n[i] * share));  // nothing where this part is empty, even if d * d overflows
      n[i] = both;
    }
  }
  // A weight within two roundings: it scales the difference of two means of the same row. Exact where one part is all.
  static CA_INLINE float ratio(float a, float b) { return a == b ? 1.f : __fdividef(a, b); }
  static CA_INLINE double ratio(double a, double b) { return a / b; }
  // Of a count, as rounded as a division, whose slow routine is behind a branch that all loads after it wait for.
  static CA_INLINE float inverse(float n) {
    const float rough = rough_reciprocal_(n);
    return fmaf(rough, fmaf(-n, rough, 1.f), rough);
  }
  static CA_INLINE double inverse(double n) { return 1. / n; }
  CA_INLINE vec<T, L> result(int field) const {
    vec<T, L> r; CA_LANES r.v[i] = field == 0 ? mean[i] : field == 1 ? m2[i] : n[i]; return r;
  }
  CA_INLINE welford_acc<T, 1> lane(int i) const {
    welford_acc<T, 1> r; r.mean[0] = mean[i]; r.m2[0] = m2[i]; r.n[0] = n[i]; return r;
  }
};

// The accumulator of all lanes, joined as a tree.
template <int L, class A> CA_INLINE auto across(A a) {
  auto lanes = [&](int i) { return a.lane(i); };
  decltype(a.lane(0)) part[L];
  CA_LANES part[i] = lanes(i);
#pragma unroll
  for (int step = L / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < step; ++i) part[i].merge(part[i + step]);
  return part[0];
}

// ---- exchange between threads: a team is the threads that work on one row ------------------------------------------

template <class A> union bits {
  int w[sizeof(A) / 4];
  A a;
  CA_INLINE bits() {}
};
template <class A> CA_INLINE A shuffle_xor(const A& x, int mask) {
  static_assert(sizeof(A) % 4 == 0, "whole words");
  bits<A> b; b.a = x;
#pragma unroll
  for (int i = 0; i < int(sizeof(A) / 4); ++i) b.w[i] = __shfl_xor_sync(0xffffffffu, b.w[i], mask);
  return b.a;
}
template <class A> CA_INLINE A shuffle_up(const A& x, int distance) {
  bits<A> b; b.a = x;
#pragma unroll
  for (int i = 0; i < int(sizeof(A) / 4); ++i) b.w[i] = __shfl_up_sync(0xffffffffu, b.w[i], distance);
  return b.a;
}
// Joins groups of `Width` neighbouring threads of a warp; all of them get the result.
template <int Width, class A> CA_INLINE A warp_join(A a) {
#pragma unroll
  for (int mask = Width / 2; mask > 0; mask /= 2) {
    a.merge(shuffle_xor(a, mask));
  }
  return a;
}
template <int Width, class T> CA_INLINE T group_sum(T x) {
#pragma unroll
  for (int mask = Width / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}
// `center` where all lanes of `Width` threads are of one row: deviations are from their common mean, so that joining
// them takes additions alone. Parts of the sum are scaled by a power of two, so that it overflows no earlier than they.
template <int Width, class T, int L> CA_INLINE void center_group(welford_acc<T, L>& a) {
  T sum = T(0);
  CA_LANES sum += a.mean[i];
  const T scale = T(1) / T(Width), count = group_sum<Width>(T(L) * a.n[0]), total = group_sum<Width>(sum * scale);
  const T mean = count > T(0) ? total / (count * scale) : T(0);
  CA_LANES { a.mean[i] = mean; a.n[i] = count; }
}
template <int Width, class T, int L> CA_INLINE welford_acc<T, 1> group_join(const welford_acc<T, L>& a) {
  welford_acc<T, 1> r;
  T sum = T(0);
  CA_LANES sum += a.m2[i];
  r.mean[0] = a.mean[0]; r.n[0] = a.n[0]; r.m2[0] = group_sum<Width>(sum);
  return r;
}
// Joins `Count` accumulators in shared memory; every warp does so on its own.
template <int Count, class A> CA_INLINE A gather_join(const A* shared) {
  A a;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int base = 0; base < Count; base += 32) {
    if (Count % 32 == 0 || base + lane < Count) a.merge(shared[base + lane]);
  }
  return warp_join<32>(a);
}
CA_INLINE unsigned cluster_rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
CA_INLINE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
CA_INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// To say that this block runs; nothing it wrote is meant.
CA_INLINE void cluster_here() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
// Stores `a` to where `shared` is in the block `rank` of this cluster.
template <class A> CA_INLINE void store_remote(A* shared, unsigned rank, const A& a) {
  bits<A> b; b.a = a;
  unsigned at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(unsigned(__cvta_generic_to_shared(shared))), "r"(rank));
#pragma unroll
  for (int i = 0; i < int(sizeof(A) / 4); ++i)
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(at + 4 * i), "r"(b.w[i]) : "memory");
}

// ---- scans ------------------------------------------------------------------------------------------------------

#define CA_SCAN(NAME, IDENTITY, JOIN)                                                                                 \
  struct NAME {                                                                                                       \
    template <class T> static CA_INLINE T identity() { return IDENTITY; }                                             \
    template <class T> static CA_INLINE T join(T x, T y) { return JOIN; }                                             \
  };
CA_SCAN(scan_sum, T(0), T(x + y)) CA_SCAN(scan_prod, T(1), T(x * y))
CA_SCAN(scan_max, lowest<T>(), max_(x, y)) CA_SCAN(scan_min, highest<T>(), min_(x, y))
#undef CA_SCAN
// log(exp(x) + exp(y)); equal infinities, whose difference is NaN, stay what they are.
struct scan_logaddexp {
  template <class T> static CA_INLINE T identity() { return -limits<T>::inf(); }
  template <class T> static CA_INLINE T join(T x, T y) {
    const T high = max_(x, y), low = min_(x, y);
    return high == low && high - low != T(0) ? high : high + log1p_(T(::exp(low - high)));
  }
};
template <class Op, class T, int L> CA_INLINE vec<T, L> scan_join(vec<T, L> a, vec<T, L> b) {
  vec<T, L> r; CA_LANES r.v[i] = Op::join(a.v[i], b.v[i]); return r;
}
// A vector of running values as it was one element before; ``before`` is what goes before all of it.
template <class T, int L> CA_INLINE vec<T, L> scan_shifted(T before, vec<T, L> a) {
  vec<T, L> r; CA_LANES r.v[i] = i > 0 ? a.v[i > 0 ? i - 1 : 0] : before; return r;
}
// Inclusive scan over the lanes of one thread.
template <class Op, class T, int L> CA_INLINE vec<T, L> scan_lanes(vec<T, L> a) {
#pragma unroll
  for (int i = 1; i < L; ++i) a.v[i] = Op::join(a.v[i - 1], a.v[i]);
  return a;
}
template <class Op, class T, int L> CA_INLINE T scan_whole(vec<T, L> a) { return scan_lanes<Op>(a).v[L - 1]; }
// The same number, as one of which the assembler knows nothing: what was worked out of it is not kept for later. No
// device has so many multiprocessors that bits of their numbers are left.
CA_INLINE float anew(float x) {
  unsigned none;
  asm volatile("{ .reg .u32 place; mov.u32 place, %%smid; shr.u32 %0, place, 24; }" : "=r"(none));
  return __int_as_float(__float_as_int(x) ^ int(none));
}
// Running values of factors in single precision after what goes `before` them in double. Where neither it nor they come
// near the ends of single precision's range, that is enough for their products: conversions to and from double are slow.
template <class Op, int L> CA_INLINE vec<float, L> scan_onto(double before, vec<float, L> a) {
  vec<float, L> own = scan_lanes<Op>(a);
  const float start = float(before);
  float low = fabsf(own.v[0]), high = low;
#pragma unroll
  for (int i = 1; i < L; ++i) { low = fminf(low, fabsf(own.v[i])); high = fmaxf(high, fabsf(own.v[i])); }
  if (fabsf(start) > 0x1p-100f && fabsf(start) < 0x1p100f && low > 0x1p-24f && high < 0x1p24f) {
    CA_LANES own.v[i] = Op::join(start, own.v[i]);
    return own;
  }
  CA_LANES a.v[i] = anew(a.v[i]);
  CA_LANES { before = Op::join(before, double(a.v[i])); own.v[i] = float(before); }
  return own;
}
// What there is after the factors of a vector, one by one, and after what lanes scanned by themselves.
template <class Op, int L> CA_INLINE double scan_past(double before, vec<float, L> a) {
  CA_LANES before = Op::join(before, double(anew(a.v[i])));
  return before;
}
template <class Op, int L> CA_INLINE double scan_past(double before, vec<double, L> scanned) {
  return Op::join(before, scanned.v[L - 1]);
}
// What goes before each vector of a warp, found from left to right; returns what there is after all of them.
template <class Op, int Width, class V> CA_INLINE double scan_in_turn(double start, V a, double& before) {
#pragma unroll 1
  for (int lane = 0; lane < Width; ++lane) {
    if ((threadIdx.x & (Width - 1)) == lane) before = start;
    start = __shfl_sync(0xffffffffu, scan_past<Op>(start, a), lane, Width);
  }
  return start;
}
// Whether a running product left the numbers here: whether it is an infinity or NaN then depends on which factors are
// multiplied first, as an infinity stays one after a product that would have come to zero before it.
CA_INLINE bool scan_left(double before, double after) { return before == before && after - after != 0.0; }
// Inclusive scan over groups of `Width` threads of a warp.
template <class Op, int Width, class T> CA_INLINE T scan_warp(T x) {
#pragma unroll
  for (int step = 1; step < Width; step *= 2) {
    const T o = __shfl_up_sync(0xffffffffu, x, step, Width);
    if ((threadIdx.x & (Width - 1)) >= step) x = Op::join(o, x);
  }
  return x;
}
// Replaces `Count` totals in shared memory by what goes before each of them; run by one warp. Returns the whole.
template <class Op, int Count, class T> CA_INLINE T scan_shared(T* shared) {
  constexpr int each = (Count + 31) / 32;
  const int lane = threadIdx.x & 31;
  T own[each], sum = Op::template identity<T>();
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int at = lane * each + i;
    own[i] = sum;
    if (at < Count) sum = Op::join(sum, shared[at]);
  }
  const T upto = scan_warp<Op, 32>(sum);
  T before = __shfl_up_sync(0xffffffffu, upto, 1);
  if (lane == 0) before = Op::template identity<T>();
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int at = lane * each + i;
    if (at < Count) shared[at] = Op::join(before, own[i]);
  }
  return __shfl_sync(0xffffffffu, upto, 31);
}

}  // namespace ca
