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
