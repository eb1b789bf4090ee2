// Sums of products of float16 or bfloat16 by warp groups (sm_90a) of operands that the copy engine brings: as
// `wide_half_contraction`, but that one thread asks for a stage as a few boxes, and no other has to copy.

namespace ca {

// What the launcher makes of a plan's tensor map.
struct alignas(64) tensor_map { unsigned long long words[16]; };
// A box from these coordinates on, that of the contiguous dimension first; its bytes count towards the barrier.
CA_INLINE void copy_box(float* to, const tensor_map& from, uint64_t* barrier, int a, int b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               :: "r"(shared_address(to)), "l"(&from), "r"(shared_address(barrier)), "r"(a), "r"(b) : "memory");
}
CA_INLINE void copy_box(float* to, const tensor_map& from, uint64_t* barrier, int a, int b, int c) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
               :: "r"(shared_address(to)), "l"(&from), "r"(shared_address(barrier)), "r"(a), "r"(b), "r"(c) : "memory");
}
CA_INLINE void copy_box(float* to, const tensor_map& from, uint64_t* barrier, int a, int b, int c, int d) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
               :: "r"(shared_address(to)), "l"(&from), "r"(shared_address(barrier)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
CA_INLINE void copy_box(float* to, const tensor_map& from, uint64_t* barrier, int a, int b, int c, int d, int e) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
               :: "r"(shared_address(to)), "l"(&from), "r"(shared_address(barrier)), "r"(a), "r"(b), "r"(c), "r"(d), "r"(e) : "memory");
}

// As `wide_half_operand`: 64 terms of all rows are one box, or 64 rows of all terms.
template <class T, int Rows, bool AlongK> struct boxed_operand : wide_half_operand<T, Rows, AlongK, 8, 128> {
  typedef wide_half_operand<T, Rows, AlongK, 8, 128> base;
  static_assert(Rows % 64 == 0, "whole boxes");
  // copy: (to, row, term).
  template <class Copy> static CA_INLINE void fetch(float* shared, int k, Copy copy) {
#pragma unroll
    for (int row = 0; row < Rows; row += AlongK ? Rows : 64) copy(shared + row / 64 * (base::next / 4), row, k);
  }
};

// The first warp group has registers for one of its threads to ask for stages, and leaves the kernel; each of the others
// has 64 rows of the block's tile.
template <int BlockM, int BlockN, int Stages, class A, class B> struct boxed_half_contraction {
  static constexpr int depth = 64, steps = 4, stage_floats = A::floats + B::floats;
  static constexpr int preparing = 128, multiplying = BlockM / 64 * 128, asking = 32;
  static_assert(Stages <= 8, "barriers");
  float sum[BlockN / 2];

  CA_INLINE boxed_half_contraction() {
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) sum[i] = 0.f;
  }
  // Named barriers; 0 is __syncthreads'. free: a stage may be written again.
  static CA_INLINE int free(int number) { return 1 + number % Stages; }
  static constexpr int among_multiplying = 13;
  static CA_INLINE void meet_multiplying() { meet(among_multiplying, multiplying); }
  static CA_INLINE bool prepares() { return threadIdx.x < preparing; }

  static CA_INLINE float* tiles_in(float* memory) { return memory + (-shared_address(memory) & 1023) / 4; }
  static CA_INLINE float* stage_of(float* tiles, int number) { return tiles + number % Stages * stage_floats; }
  // Opens when a stage is there.
  static CA_INLINE uint64_t* barrier_of(float* tiles, int number) {
    return reinterpret_cast<uint64_t*>(tiles + Stages * stage_floats) + number % Stages;
  }
  static CA_INLINE int stages_in(int first, int end) { return (end - first + depth - 1) / depth; }

  // What all threads begin with.
  static CA_INLINE void begin(float* memory) {
    if (threadIdx.x == 0) {
#pragma unroll
      for (int s = 0; s < Stages; ++s) barrier_set(barrier_of(tiles_in(memory), s));
      barriers_are_set();
    }
    __syncthreads();
  }
  // copy_a and copy_b: (to, row or column of the tile, term, barrier). Beyond a tensor's end there are zeros.
  template <class CopyA, class CopyB>
  static CA_INLINE void prepare(float* memory, int first, int end, CopyA copy_a, CopyB copy_b) {
    if (threadIdx.x >= asking) return;
    const int count = stages_in(first, end);
    float* const tiles = tiles_in(memory);
#pragma unroll 1
    for (int number = 0; number < count; ++number) {
      if (number >= Stages) meet(free(number), asking + multiplying);
      if (threadIdx.x == 0) {
        float* const to = stage_of(tiles, number);
        uint64_t* const barrier = barrier_of(tiles, number);
        barrier_expect(barrier, 4 * stage_floats);
        A::fetch(to, first + number * depth, [&](float* at, int row, int k) { copy_a(at, row, k, barrier); });
        B::fetch(to + A::floats, first + number * depth, [&](float* at, int row, int k) { copy_b(at, row, k, barrier); });
      }
      __syncwarp();
    }
  }
  // What the others do, at the end of which they have met. A stage is multiplied while the next one is waited for.
  CA_INLINE void add(float* memory, int first, int end) {
    const int count = stages_in(first, end);
    float* const tiles = tiles_in(memory);
#pragma unroll 1
    for (int number = 0; number < count; ++number) {
      barrier_wait(barrier_of(tiles, number), number / Stages % 2);
      multiply(stage_of(tiles, number), stage_of(tiles, number) + A::floats);
      wide_wait<1>();
      if (number > 0 && number - 1 + Stages < count) announce(free(number - 1), asking + multiplying);
    }
    wide_wait<0>();
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) keep_register(sum[i]);
    meet_multiplying();
  }
  CA_INLINE void multiply(const float* a, const float* b) {
    const int row = __shfl_sync(~0u, (int(threadIdx.x) - preparing) / 128, 0) * 64;
    wide_fence();
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const uint64_t left = A::operand_of(a, row, s), right = B::operand_of(b, 0, s);
      multiply_both<typename A::number, A::by_rows, B::by_rows>(sum, left, right, 1);
    }
    wide_commit();
  }
  template <class Take> CA_INLINE void each(Take take) const {
    const int own = int(threadIdx.x) - preparing, row = own / 32 * 16 + own % 32 / 4, column = own % 4 * 2;
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) take(row + 8 * (i % 4 / 2), column + 8 * (i / 4) + i % 2, sum[i]);
  }
};

}  // namespace ca
