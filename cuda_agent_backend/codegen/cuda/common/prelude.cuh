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

#include "prelude/conversion.cuh"

#include "prelude/indices.cuh"

#include "prelude/memory.cuh"

#include "prelude/elements.cuh"

#include "prelude/accumulators.cuh"

#include "prelude/exchange.cuh"

#include "prelude/scans.cuh"

}  // namespace ca
