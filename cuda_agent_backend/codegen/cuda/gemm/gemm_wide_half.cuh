// Sums of products of float16 or bfloat16 by warp groups (sm_90a), with the tensor core reading both operands from shared
// memory: each group has 64 rows of the block's tile.
//
// Lines of a stage are 128 bytes long, 64 terms of a row or 64 rows of a term, and their 16-byte pieces are exchanged by
// the number of the line, as the instruction wants them. A stage that is multiplied while the next one's copies are
// waited for keeps the tensor core busy.

namespace ca {

#define CA_HALF_NAMES_32 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, "
#define CA_HALF_NAMES_64 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, "
#define CA_HALF_NAMES_128 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, "
#define CA_WIDE_SUMS_128(d) \
  CA_WIDE_SUMS_64(d), \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), \
  "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
// d (+)= a * b for 64 rows of a warp group and as many columns as d stands for; operands lie by terms, or by rows.
template <class T, int RowsA, int RowsB> CA_INLINE void multiply_both(float (&d)[32], uint64_t a, uint64_t b, int more) {
  if constexpr (same<T, f16>::value)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " CA_HALF_NAMES_32 "p, 1, 1, %35, %36; }"
                 : CA_WIDE_SUMS_32(d) : "l"(a), "l"(b), "r"(more), "n"(RowsA), "n"(RowsB));
  else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " CA_HALF_NAMES_32 "p, 1, 1, %35, %36; }"
                 : CA_WIDE_SUMS_32(d) : "l"(a), "l"(b), "r"(more), "n"(RowsA), "n"(RowsB));
}
template <class T, int RowsA, int RowsB> CA_INLINE void multiply_both(float (&d)[64], uint64_t a, uint64_t b, int more) {
  if constexpr (same<T, f16>::value)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " CA_HALF_NAMES_64 "p, 1, 1, %67, %68; }"
                 : CA_WIDE_SUMS_64(d) : "l"(a), "l"(b), "r"(more), "n"(RowsA), "n"(RowsB));
  else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " CA_HALF_NAMES_64 "p, 1, 1, %67, %68; }"
                 : CA_WIDE_SUMS_64(d) : "l"(a), "l"(b), "r"(more), "n"(RowsA), "n"(RowsB));
}
template <class T, int RowsA, int RowsB> CA_INLINE void multiply_both(float (&d)[128], uint64_t a, uint64_t b, int more) {
  if constexpr (same<T, f16>::value)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 " CA_HALF_NAMES_128 "p, 1, 1, %131, %132; }"
                 : CA_WIDE_SUMS_128(d) : "l"(a), "l"(b), "r"(more), "n"(RowsA), "n"(RowsB));
  else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " CA_HALF_NAMES_128 "p, 1, 1, %131, %132; }"
                 : CA_WIDE_SUMS_128(d) : "l"(a), "l"(b), "r"(more), "n"(RowsA), "n"(RowsB));
}
// Where 16 terms of an operand begin in its tile, whose address is a multiple of 1024. By terms (`wide_operand`), eight
// lines are 1024 bytes; by rows, the next 64 rows are `next` bytes further on.
CA_INLINE uint64_t by_rows_operand(const float* tile, int byte, int next) {
  uint64_t r = 1ull << 62 | 1024ull >> 4 << 32 | uint64_t(next >> 4) << 16 | (shared_address(tile) + byte) >> 4;
  asm volatile("" : "+l"(r));
  return r;
}

// As `half_operand`, whose copies it makes, in the layout that the tensor core reads.
template <class T, int Rows, bool AlongK, int Vector, int Threads> struct wide_half_operand : half_operand<T, Rows, 64, AlongK, Vector, Threads, true> {
  static constexpr int by_rows = !AlongK, line = 128, next = 64 * line;
  // From row `row` on (of 64, where it lies by rows), 16 terms from 16 * `step` on.
  static CA_INLINE uint64_t operand_of(const float* tile, int row, int step) {
    if constexpr (AlongK) return wide_operand<128>(tile + row * (line / 4), 32 * step);
    else return by_rows_operand(tile + row / 64 * (next / 4), 16 * line * step, next);
  }
};

template <int BlockM, int BlockN, int Stages, class A, class B> struct wide_half_contraction {
  static constexpr int depth = 64, steps = 4, stage_floats = A::floats + B::floats;
  float sum[BlockN / 2];

  CA_INLINE wide_half_contraction() {
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) sum[i] = 0.f;
  }
  template <class FindA, class FindB> CA_INLINE void add(float* memory, int first, int end, FindA find_a, FindB find_b) {
    float* const shared = memory + (-shared_address(memory) & 1023) / 4;
    const int tiles = (end - first + depth - 1) / depth;
    typename A::waiting a;
    typename B::waiting b;
    auto stage = [&](int tile) { return shared + tile % Stages * stage_floats; };
    auto fetch = [&](int tile) {
      if (tile < tiles) {
        A::fetch(stage(tile), a, first + tile * depth, find_a);
        B::fetch(stage(tile) + A::floats, b, first + tile * depth, find_b);
      }
      copy_commit();
    };
    auto put = [&](int tile) {
      if (tile < tiles) A::put(stage(tile), a), B::put(stage(tile) + A::floats, b);
    };
#pragma unroll
    for (int s = 0; s < Stages - 2; ++s) fetch(s), put(s);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      copy_wait<Stages - 3>();
      publish_shared();
      __syncthreads();  // by now all products of the stage before the last are over: its place is free
      multiply(stage(tile), stage(tile) + A::floats);
      fetch(tile + Stages - 2);
      wide_wait<1>();
      put(tile + Stages - 2);
    }
    wide_wait<0>();
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) keep_register(sum[i]);
    copy_wait<0>();
    __syncthreads();
  }
  CA_INLINE void multiply(const float* a, const float* b) {
    const int row = __shfl_sync(~0u, int(threadIdx.x) / 128, 0) * 64;
    wide_fence();
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const uint64_t left = A::operand_of(a, row, s), right = B::operand_of(b, 0, s);
      multiply_both<typename A::number, A::by_rows, B::by_rows>(sum, left, right, 1);
    }
    wide_commit();
  }
  template <class Take> CA_INLINE void each(Take take) const {
    const int row = int(threadIdx.x) / 32 * 16 + int(threadIdx.x) % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) take(row + 8 * (i % 4 / 2), column + 8 * (i / 4) + i % 2, sum[i]);
  }
};

}  // namespace ca
