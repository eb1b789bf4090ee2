// Blocks of one launch that meet by way of memory. All of them are on the device at once (a cooperative launch).

namespace ca {

// By one thread of each block: counts the block in and waits until `all` were counted. What this thread wrote, or was
// shown by a barrier, is there for the threads of all blocks that this thread, or a barrier after it, shows it to.
CA_INLINE void meet_in_memory(int* met, int all) {
  asm volatile("fence.acq_rel.gpu;\n\tred.relaxed.gpu.global.add.s32 [%0], 1;" :: "l"(met) : "memory");
  int seen;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(met) : "memory");
  } while (seen < all);
}
// By one warp: joins `Count` accumulators, of which `part(n)` reads number n. All reads are under way at once.
template <class A, int Count, class F> CA_INLINE A far_join(F part) {
  constexpr int each = (Count + 31) / 32;
  const int lane = threadIdx.x & 31;
  A parts[each];
#pragma unroll
  for (int i = 0; i < each; ++i) {
    if (Count % 32 == 0 || i * 32 + lane < Count) parts[i] = part(i * 32 + lane);
  }
#pragma unroll
  for (int i = 1; i < each; ++i) parts[0].merge(parts[i]);
  return warp_join<32>(parts[0]);
}

}  // namespace ca
