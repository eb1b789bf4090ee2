// Blocks of one launch that meet by way of memory. All of them are on the device at once (a cooperative launch).
// Each word that a block leaves for others lies beside the number of the meeting that it is for, and both are written
// and read as one: who sees the number has the word. That takes neither a counter nor a fence, which would hold up what
// is on its way to shared memory.

namespace ca {

CA_INLINE void leave_word(uint64_t* at, int word, int number) {
  const uint64_t both = uint64_t(unsigned(number)) << 32 | unsigned(word);
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" :: "l"(at), "l"(both) : "memory");
}
CA_INLINE uint64_t look(const uint64_t* at) {
  uint64_t both;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(both) : "l"(at) : "memory");
  return both;
}
// The word that was `seen` there, or that comes.
CA_INLINE int word_for(int number, uint64_t seen, const uint64_t* at) {
  while (int(seen >> 32) != number) asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(seen) : "l"(at) : "memory");
  return int(unsigned(seen));
}
template <class A> CA_INLINE void leave(uint64_t* at, const A& a, int number) {
  bits<A> b; b.a = a;
#pragma unroll
  for (int i = 0; i < int(sizeof(A) / 4); ++i) leave_word(at + i, b.w[i], number);
}
// Joins the accumulators that `Count` blocks leave, `step` words from one to the next, by the first `Threads` threads:
// each takes its share, and a warp gets the join of its threads' shares.
template <class A, int Count, int Threads> CA_INLINE A far_join(const uint64_t* from, int step, int number) {
  constexpr int words = int(sizeof(A) / 4);
  A a;
  for (int block = threadIdx.x; block < Count; block += Threads) {
    const uint64_t* const at = from + block * step;
    uint64_t seen[words];
    bits<A> b;
#pragma unroll
    for (int i = 0; i < words; ++i) seen[i] = look(at + i);
#pragma unroll
    for (int i = 0; i < words; ++i) b.w[i] = word_for(number, seen[i], at + i);
    a.merge(b.a);
  }
  __syncwarp();
  return warp_join<32>(a);
}

}  // namespace ca
