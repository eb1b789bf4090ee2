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

#include "prelude/conversion.h"

#include "prelude/memory.h"

#include "prelude/comparison.h"

#include "prelude/arithmetic.h"

#include "prelude/exponentials.h"

#include "prelude/reductions.h"

#include "prelude/scans.h"

}  // namespace ca
