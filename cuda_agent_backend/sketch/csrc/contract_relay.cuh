// Sums of products by warp groups that share the work: some copy and split, the others multiply, so that neither waits
// for the other's instructions. They meet at named barriers.

namespace ca {

CA_INLINE void meet(int barrier, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory"); }
// As `meet`, for who need not wait.
CA_INLINE void announce(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory"); }
template <int N> CA_INLINE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> CA_INLINE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }

// The first Preparing threads only prepare, and leave the kernel: where paths join again, both would be held to the
// fewer registers.
template <int BlockM, int BlockN, int Stages, int Run, int Products, int Preparing, class A, class B>
struct relay_contraction : wide_parts<BlockN, Products, Preparing, A, B> {
  typedef wide_parts<BlockN, Products, Preparing, A, B> parts;
  static constexpr int depth = parts::depth, groups = BlockM / 64, multiplying = groups * 128, ahead = Stages - 2;
  static constexpr int stages_of_run = Run / depth;
  // Registers are dealt out evenly at first. Sums need more of them than copies do.
  static constexpr bool uneven = BlockN == 128 && groups == 2;
  static constexpr int registers = Preparing == 128 ? 200 : 176, others = Preparing == 128 ? 104 : 80;

  // Barriers; 0 is __syncthreads'. ready: a stage, for one group. free: its tile of B may be written again.
  // turn: a group may multiply; one after the other, so that one prepares while the other keeps the tensor core busy.
  static CA_INLINE int ready(int number, int group) { return 1 + number % 2 * groups + group; }
  static CA_INLINE int free(int number) { return 9 + number % 2; }
  static CA_INLINE int turn(int group) { return 11 + group; }
  static constexpr int among_preparing = 15, among_multiplying = 14;

  static CA_INLINE void meet_multiplying() { meet(among_multiplying, multiplying); }
  static CA_INLINE bool prepares() { return threadIdx.x < Preparing; }
  static CA_INLINE int stages_in(int first, int end) { return (end - first + depth - 1) / depth; }

  // What the first Preparing threads do; the copies give zeros beyond `end`.
  template <class CopyA, class CopyB>
  static CA_INLINE void prepare(float* memory, int first, int end, CopyA copy_a, CopyB copy_b) {
    if constexpr (uneven) give_registers<others>();
    const int count = stages_in(first, end);
    float* const tiles = parts::tiles_in(memory);
    float* const raw = parts::raw_in(tiles);
    auto fetch = [&](int number) {
      if (number < count) {
        float* const to = raw + number % Stages * parts::stage_floats;
        A::fetch(to, first + number * depth, copy_a);
        B::fetch(to + A::floats, first + number * depth, copy_b);
      }
      copy_commit();
    };
#pragma unroll
    for (int s = 0; s < ahead; ++s) fetch(s);
#pragma unroll 1
    for (int number = 0; number < count; ++number) {
      copy_wait<ahead - 1>();
      meet(among_preparing, Preparing);
      if (number >= 2) meet(free(number), Preparing + multiplying);
      const float* const from = raw + number % Stages * parts::stage_floats;
      parts::template split_b<Preparing>(from + A::floats, parts::tile_of(tiles, number));
      publish_shared();
#pragma unroll
      for (int g = 0; g < groups; ++g) announce(ready(number, g), Preparing + 128);
      fetch(number + ahead);  // takes the place of the stage two before this one, which is free as its tile is
    }
    copy_wait<0>();
  }

  // What the others do, at the end of which they have met.
  CA_INLINE void add(float* memory, int first, int end) {
    if constexpr (uneven) take_registers<registers>();
    const int count = stages_in(first, end);
    float* const tiles = parts::tiles_in(memory);
    const int group = (int(threadIdx.x) - Preparing) / 128;
    float own[BlockN / 2];
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) own[i] = 0.f;
    if (groups > 1 && group == groups - 1) announce(turn(0), 256);
#pragma unroll 1
    for (int number = 0; number < count; ++number) {
      typename parts::fragments a;
      meet(ready(number, group), Preparing + 128);
      parts::take_a(parts::raw_in(tiles) + number % Stages * parts::stage_floats, a);
      if (groups > 1) meet(turn(group), 256);
      parts::multiply(parts::tile_of(tiles, number), a, own, number % stages_of_run > 0);
      if (groups > 1 && (group < groups - 1 || number + 1 < count)) announce(turn((group + 1) % groups), 256);
      parts::finish(own);
      if (number + 2 < count) announce(free(number), Preparing + multiplying);
      if ((number + 1) % stages_of_run == 0 || number + 1 == count) this->move(own);
    }
    meet_multiplying();
  }
};

}  // namespace ca
