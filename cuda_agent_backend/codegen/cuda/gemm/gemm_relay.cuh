// Sums of products by warp groups that share the work: some copy and split, the others multiply, so that neither waits
// for the other's instructions. They meet at named barriers.

namespace ca {

CA_INLINE void meet(int barrier, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory"); }
// As `meet`, for who need not wait.
CA_INLINE void announce(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory"); }
template <int N> CA_INLINE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> CA_INLINE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }

// What a thread takes of B to split it: pieces of rows, straight from global memory, as they need not change hands.
template <int Threads, int BlockN, class Parts, class B> struct pieces_of {
  static constexpr int length = Parts::length, total = BlockN * Parts::pieces, count = (total + Threads - 1) / Threads;
  float x[count][length];

  static CA_INLINE int number(int i) { return int(threadIdx.x) + i * Threads; }
  static CA_INLINE bool is_one(int i) { return total % Threads == 0 || number(i) < total; }  // the same in a warp

  template <class Find> CA_INLINE void load(int k0, Find find) {
    constexpr int width = B::along_k ? B::vector : 1;
    struct alignas(4 * width) vector { float v[width]; };
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int e = 0; e < length; e += width) {
        if (!is_one(i)) return;
        bool there;
        const float* const from = find(Parts::row_of(number(i)), k0 + length * Parts::piece_of(number(i)) + e, there);
        vector found = {};
        if (there) found = *reinterpret_cast<const vector*>(from);
#pragma unroll
        for (int w = 0; w < width; ++w) x[i][e + w] = found.v[w];
      }
  }
  // As `operand::fetch`: pieces are all of the thread's own row, and those of a warp begin at the same term.
  template <class Bits, class Term> CA_INLINE void load(int k0, const gather_places<Bits, Term>& from) {
    const auto own = from.term(k0 + int(threadIdx.x) % 32);
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int e = 0; e < length; ++e) {
        if (!is_one(i)) return;
        const int k = length * Parts::piece_of(number(i)) + e;
        const auto by = __shfl_sync(~0u, own.offset, k);
        const bool there = from.row.bits >> __shfl_sync(~0u, own.tap, k) & 1;
        x[i][e] = there ? from.row.base[by] : 0.f;
      }
  }
  CA_INLINE void put(float* tile) const {
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (is_one(i)) Parts::put_piece(tile, number(i), x[i]);
  }
};

// Direct: B goes through registers of those who prepare to be split, and not through shared memory.
//
// The first threads, as many as multiply, only prepare, and leave the kernel: where paths join again, both would be held
// to the fewer registers.
template <int BlockM, int BlockN, int Stages, int Run, int Products, bool Direct, class A, class B>
struct relay_contraction : wide_parts<BlockN, Products, BlockM / 64 * 128, A, B> {
  typedef wide_parts<BlockN, Products, BlockM / 64 * 128, A, B> parts;
  static constexpr int depth = parts::depth, groups = BlockM / 64, multiplying = groups * 128, preparing = multiplying;
  static constexpr int slots = Direct ? 3 : 2, ahead = Stages - slots, stage_floats = A::floats + (Direct ? 0 : B::floats);
  static constexpr int stages_of_run = Run / depth;
  // Registers are dealt out evenly at first. Sums need more of them than copies do.
  static constexpr bool uneven = BlockN >= 128 && groups == 2;
  static constexpr int registers = BlockN > 128 ? 192 : 176, others = BlockN > 128 ? 64 : 80;

  // Barriers; 0 is __syncthreads'. ready: a stage, for one group. free: its tile of B may be written again.
  // turn: a group may multiply; one after the other, so that one prepares while the other keeps the tensor core busy.
  static CA_INLINE int ready(int number, int group) { return 1 + number % slots * groups + group; }
  static CA_INLINE int free(int number) { return 7 + number % slots; }
  static CA_INLINE int turn(int group) { return 10 + group; }
  static constexpr int among_preparing = 12, among_multiplying = 13;

  static CA_INLINE void meet_multiplying() { meet(among_multiplying, multiplying); }
  static CA_INLINE bool prepares() { return threadIdx.x < preparing; }
  static CA_INLINE float* tile_of(float* tiles, int number) { return parts::tile_of(tiles, number % slots); }
  static CA_INLINE float* raw_of(float* tiles, int number) {
    return parts::tile_of(tiles, slots) + number % Stages * stage_floats;
  }
  static CA_INLINE int stages_in(int first, int end) { return (end - first + depth - 1) / depth; }

  // What the threads do that prepare; the copies give zeros beyond `end`.
  template <class CopyA, class CopyB>
  static CA_INLINE void prepare(float* memory, int first, int end, CopyA copy_a, CopyB copy_b) {
    if constexpr (uneven) give_registers<others>();
    const int count = stages_in(first, end);
    float* const tiles = parts::tiles_in(memory);
    auto fetch = [&](int number) {
      if (number < count) {
        float* const to = raw_of(tiles, number);
        A::fetch(to, first + number * depth, copy_a);
        if constexpr (!Direct) B::fetch(to + A::floats, first + number * depth, copy_b);
      }
      copy_commit();
    };
    pieces_of<preparing, BlockN, parts, B> own;
    if constexpr (Direct) own.load(first, copy_b);
#pragma unroll
    for (int s = 0; s < ahead; ++s) fetch(s);
#pragma unroll 1
    for (int number = 0; number < count; ++number) {
      copy_wait<ahead - 1>();
      if constexpr (!Direct) meet(among_preparing, preparing);
      if (number >= slots) meet(free(number), preparing + multiplying);
      if constexpr (Direct) own.put(tile_of(tiles, number));
      else parts::template split_b<preparing>(raw_of(tiles, number) + A::floats, tile_of(tiles, number));
      publish_shared();
#pragma unroll
      for (int g = 0; g < groups; ++g) announce(ready(number, g), preparing + 128);
      if constexpr (Direct)
        if (number + 1 < count) own.load(first + (number + 1) * depth, copy_b);
      fetch(number + ahead);  // takes the place of the stage whose tile was free just now
    }
    copy_wait<0>();
  }

  // What the others do, at the end of which they have met.
  CA_INLINE void add(float* memory, int first, int end) {
    if constexpr (uneven) take_registers<registers>();
    const int count = stages_in(first, end);
    float* const tiles = parts::tiles_in(memory);
    const int group = (int(threadIdx.x) - preparing) / 128;
    float own[BlockN / 2];
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) own[i] = 0.f;
    if (groups > 1 && group == groups - 1 && count > 0) announce(turn(0), 256);  // without terms nobody comes to meet it
#pragma unroll 1
    for (int number = 0; number < count; ++number) {
      typename parts::fragments a;
      meet(ready(number, group), preparing + 128);
      parts::take_a(raw_of(tiles, number), a);
      if (groups > 1) meet(turn(group), 256);
      parts::multiply(tile_of(tiles, number), a, own, number % stages_of_run > 0);
      if (groups > 1 && (group < groups - 1 || number + 1 < count)) announce(turn((group + 1) % groups), 256);
      parts::finish(own);
      if (number + slots < count) announce(free(number), preparing + multiplying);
      if ((number + 1) % stages_of_run == 0 || number + 1 == count) this->move(own);
    }
    meet_multiplying();
  }
};

}  // namespace ca
