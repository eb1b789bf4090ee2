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
