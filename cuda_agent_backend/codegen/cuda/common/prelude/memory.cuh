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
