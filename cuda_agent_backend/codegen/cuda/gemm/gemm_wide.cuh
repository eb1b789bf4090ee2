// Sums of products of float32 by warp groups (sm_90a): as `contraction`, with the tensor core reading B from shared memory.
//
// A goes through registers, where it is split. B is split once for all warps of the block and written back in the
// layout that the instruction wants: rows along k, of 128 bytes (TF32) or 64 (bfloat16), their 16-byte pieces exchanged
// by the number of the 128 bytes that they are in.

namespace ca {

CA_INLINE void wide_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
CA_INLINE void wide_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> CA_INLINE void wide_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(Pending) : "memory"); }
// What threads wrote to shared memory is seen by the tensor core.
CA_INLINE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
CA_INLINE unsigned shared_address(const void* p) { unsigned r = unsigned(__cvta_generic_to_shared(p)); asm volatile("" : "+r"(r)); return r; }
CA_INLINE void keep_register(float& x) { asm volatile("" : "+f"(x) :: "memory"); }
// Where the terms of one instruction begin, from this byte of a row of B on; the tile's address is a multiple of 1024.
template <int RowBytes> CA_INLINE uint64_t wide_operand(const float* tile, int byte) {
  constexpr uint64_t swizzle = RowBytes == 128 ? 1 : 2, eight_rows = 8 * RowBytes;
  uint64_t r = swizzle << 62 | eight_rows >> 4 << 32 | 1ull << 16 | (shared_address(tile) + byte) >> 4;
  asm volatile("" : "+l"(r));
  return r;
}
#define CA_WIDE_NAMES_16 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, "
#define CA_WIDE_SUMS_16(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define CA_WIDE_NAMES_32 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
  "{%32, %33, %34, %35}, %36, "
#define CA_WIDE_SUMS_32(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define CA_WIDE_NAMES_64 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
  "{%64, %65, %66, %67}, %68, "
#define CA_WIDE_SUMS_64(d) \
  CA_WIDE_SUMS_32(d), \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define CA_WIDE_NAMES_68 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67}, " \
  "{%68, %69, %70, %71}, %72, "
#define CA_WIDE_SUMS_68(d) \
  CA_WIDE_SUMS_64(d), \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define CA_WIDE_NAMES_80 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, " \
  "{%80, %81, %82, %83}, %84, "
#define CA_WIDE_SUMS_80(d) \
  CA_WIDE_SUMS_68(d), \
  "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), \
  "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define CA_WIDE_NAMES_96 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, " \
  "{%96, %97, %98, %99}, %100, "
#define CA_WIDE_SUMS_96(d) \
  CA_WIDE_SUMS_80(d), \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
// more_at: the number of the operand that tells whether d is added to.
#define CA_WIDE_ASM(sums, more_at, columns)                                                                            \
  if constexpr (Products == 1)                                                                                         \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #more_at ", 0; wgmma.mma_async.sync.aligned.m64n" #columns          \
                 "k8.f32.tf32.tf32 " CA_WIDE_NAMES_##sums "p, 1, 1; }"                                                 \
                 : CA_WIDE_SUMS_##sums(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));            \
  else                                                                                                                 \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #more_at ", 0; wgmma.mma_async.sync.aligned.m64n" #columns          \
                 "k16.f32.bf16.bf16 " CA_WIDE_NAMES_##sums "p, 1, 1, 0; }"                                             \
                 : CA_WIDE_SUMS_##sums(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more))
// d (+)= a * b for 64 rows of a warp group and as many columns as d stands for.
template <int Products> CA_INLINE void multiply_wide(float (&d)[16], const unsigned (&a)[4], uint64_t b, int more) {
  CA_WIDE_ASM(16, 21, 32);
}
template <int Products> CA_INLINE void multiply_wide(float (&d)[32], const unsigned (&a)[4], uint64_t b, int more) {
  CA_WIDE_ASM(32, 37, 64);
}
template <int Products> CA_INLINE void multiply_wide(float (&d)[64], const unsigned (&a)[4], uint64_t b, int more) {
  CA_WIDE_ASM(64, 69, 128);
}
template <int Products> CA_INLINE void multiply_wide(float (&d)[68], const unsigned (&a)[4], uint64_t b, int more) {
  CA_WIDE_ASM(68, 73, 136);
}
template <int Products> CA_INLINE void multiply_wide(float (&d)[80], const unsigned (&a)[4], uint64_t b, int more) {
  CA_WIDE_ASM(80, 85, 160);
}
template <int Products> CA_INLINE void multiply_wide(float (&d)[96], const unsigned (&a)[4], uint64_t b, int more) {
  CA_WIDE_ASM(96, 101, 192);
}
#undef CA_WIDE_ASM

// The sums of a block's warp groups, and its tiles in shared memory. The first of the threads that multiply is number
// First.
template <int BlockN, int Products, int First, class A, class B> struct wide_parts {
  typedef split<Products, 4> numbers;
  static constexpr int depth = 32, terms = numbers::terms, width = numbers::width, steps = depth / terms;
  static constexpr int row_bytes = 32 * steps;
  static constexpr int tile_floats = (BlockN + 15) / 16 * 16 * row_bytes / 4;  // begins at a multiple of 1024 bytes
  static constexpr int pieces = row_bytes / 16, length = depth / pieces;  // of a row; terms of each
  float sum[BlockN / 2];
  struct fragments { numbers of[steps]; };

  CA_INLINE wide_parts() {
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) sum[i] = 0.f;
  }
  // Slots for split tiles of B, one after the other, with the raw stages behind them.
  static CA_INLINE float* tiles_in(float* memory) { return memory + (-shared_address(memory) & 1023) / 4; }
  static CA_INLINE float* tile_of(float* tiles, int slot) { return tiles + slot * numbers::parts * tile_floats; }

  CA_INLINE void move(float (&own)[BlockN / 2]) {
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) sum[i] += own[i];
  }
  // Waits for the products that add to `own`.
  static CA_INLINE void finish(float (&own)[BlockN / 2]) {
    wide_wait<0>();
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) keep_register(own[i]);
  }

  // The small products come first: what the tensor core cuts off is in proportion to the sum.
  static CA_INLINE void multiply(const float* tile, const fragments& a, float (&own)[BlockN / 2], bool more) {
    wide_fence();
#pragma unroll
    for (int both = numbers::parts - 1; both >= 0; --both)
#pragma unroll
      for (int p = 0; p <= both; ++p)
#pragma unroll
        for (int i = 0; i < steps; ++i) {
          const uint64_t b = wide_operand<row_bytes>(tile + (both - p) * tile_floats, 32 * i);
          multiply_wide<Products>(own, a.of[i].part[p], b, more || both < numbers::parts - 1 || p > 0 || i > 0);
        }
    wide_commit();
  }

  static CA_INLINE int first_row() { return (int(threadIdx.x) - First) / 32 * 16 + int(threadIdx.x) % 32 / 4; }

  static CA_INLINE void take_a(const float* from, fragments& a) {
    const int row = first_row(), member = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < steps; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x[width];
        A::take(x, from, row + 8 * (e % 2), terms * i + width * (member + 4 * (e / 2)));
        a.of[i].set(e, x);
      }
  }

  // Threads of a warp take what lies in different banks: neighbouring pieces of a row, or neighbouring rows.
  static CA_INLINE int row_of(int number) { return B::along_k ? number / pieces : number % BlockN; }
  static CA_INLINE int piece_of(int number) { return B::along_k ? number % pieces : number / BlockN; }
  template <int Threads> static CA_INLINE void split_b(const float* from, float* tile) {
    constexpr int total = BlockN * pieces, count = (total + Threads - 1) / Threads;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int number = threadIdx.x + i * Threads;
      if (total % Threads && number >= total) return;  // whole warps
      float x[length];
      B::take(x, from, row_of(number), length * piece_of(number));
      put_piece(tile, number, x);
    }
  }
  static CA_INLINE void put_piece(float* tile, int number, const float (&x)[length]) {
    numbers found;
#pragma unroll
    for (int e = 0; e < 4; ++e) found.set(e, x + width * e);
    const int row = row_of(number), at = row * pieces + (piece_of(number) ^ row * row_bytes / 128 % pieces);
#pragma unroll
    for (int p = 0; p < numbers::parts; ++p)
      reinterpret_cast<uint4*>(tile + p * tile_floats)[at] = {found.part[p][0], found.part[p][1], found.part[p][2], found.part[p][3]};
  }

  template <class Take> CA_INLINE void each(Take take) const {
    const int row = first_row(), column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) take(row + 8 * (i % 4 / 2), column + 8 * (i / 4) + i % 2, sum[i]);
  }
};

}  // namespace ca
