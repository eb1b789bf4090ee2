// Sums of products of float16 or bfloat16: as `contraction`, but that nothing has to be split. The tensor core multiplies
// such numbers exactly and adds in float32, as it does in eager's library, so that sums do not move on either, and
// infinities and NaN survive.

namespace ca {

template <int V> CA_INLINE void copy_half_if(void* shared, const void* global, bool there) {
  const unsigned to = unsigned(__cvta_generic_to_shared(shared));
  if constexpr (V == 8)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(global), "r"(there ? 16 : 0) : "memory");
  else if constexpr (V == 4)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(to), "l"(global), "r"(there ? 8 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(to), "l"(global), "r"(there ? 4 : 0) : "memory");
}
// As `multiply_bf16`.
CA_INLINE void multiply_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <class T> CA_INLINE void multiply_half(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (same<T, f16>::value) multiply_f16(d, a, b);
  else multiply_bf16(d, a, b);
}

// As `operand`, of numbers of 2 bytes. Lone: an asynchronous copy has at least 4 bytes, so that elements by themselves
// wait in registers until the stage before them is multiplied. Lines are 16 bytes longer than what they hold, so that
// the eight that a matrix has lie in different banks. Exchanged: they are 128 bytes long instead, and pieces of 16 bytes
// change places (see `contract_wide_half.cuh`).
template <class T, int Rows, int Depth, bool AlongK, int Vector, int Threads, bool Exchanged = false> struct half_operand {
  static constexpr bool along_k = AlongK, lone = Vector == 1;
  static constexpr int stride = (AlongK ? Depth : Rows) + (Exchanged ? 0 : 8), floats = (AlongK ? Rows : Depth) * stride / 2;
  static constexpr int along = (AlongK ? Depth : Rows) / Vector, total = Rows * Depth / Vector;
  static constexpr int count = (total + Threads - 1) / Threads;
  typedef T number;
  typedef unsigned short bits;
  struct waiting { bits of[lone ? count : 1]; };

  static CA_INLINE bool is_one(int i) { return total % Threads == 0 || int(threadIdx.x) + i * Threads < total; }
  static CA_INLINE int row_of(int i) {
    const int n = threadIdx.x + i * Threads;
    return AlongK ? n / along : n % along * Vector;
  }
  static CA_INLINE int term_of(int i) {
    const int n = threadIdx.x + i * Threads;
    return AlongK ? n % along * Vector : n / along;
  }
  static CA_INLINE bits* place_in(float* shared, int i) {
    const int line = AlongK ? row_of(i) : term_of(i), x = AlongK ? term_of(i) : row_of(i);
    const int place = Exchanged ? (x / 64 * Depth + line) * 64 + ((x / 8 ^ line) % 8 * 8 + x % 8) : line * stride + x;
    return reinterpret_cast<bits*>(shared) + place;
  }
  // find: (row, term, whether there is one).
  template <class Find> static CA_INLINE void fetch(float* shared, waiting& own, int k0, Find find) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (!is_one(i)) continue;
      bool there;
      const T* const from = find(row_of(i), k0 + term_of(i), there);
      if constexpr (lone) own.of[i] = there ? *reinterpret_cast<const bits*>(from) : bits(0);
      else copy_half_if<Vector>(place_in(shared, i), from, there);
    }
  }
  static CA_INLINE int own_row() { return threadIdx.x % along; }
  template <class Bits, class Term> static CA_INLINE void fetch(float*, waiting& own, int k0, const gather_places<Bits, Term, T>& from) {
    static_assert(!AlongK && lone && (Threads % along == 0 && total % Threads == 0 && Depth <= 64), "a row for each thread");
    constexpr int together = Threads / along;  // terms, at most 32
    const int own_term = k0 + int(threadIdx.x) % 32;
    const decltype(from.term(0)) of[2] = {from.term(own_term), from.term(own_term + (Depth > 32 ? 32 : 0))};
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const auto& term = of[i * together / 32];
      const auto by = __shfl_sync(~0u, term.offset, term_of(i) % 32);
      const bool there = from.row.bits >> __shfl_sync(~0u, term.tap, term_of(i) % 32) & 1;
      own.of[i] = there ? *reinterpret_cast<const bits*>(from.row.base + by) : bits(0);
    }
  }
  static constexpr int lanes = along < 32 ? along : 32;
  static CA_INLINE int lane_row() { return threadIdx.x / along + threadIdx.x % lanes * (Threads / along); }
  template <class Index, class Term> static CA_INLINE void fetch(float*, waiting& own, int k0, const gather_lines<Index, Term>& from) {
    static_assert(AlongK && lone && (Threads % along == 0 && total % Threads == 0 && count <= lanes), "a term for each thread");
    const int first = threadIdx.x % 32 / lanes * lanes;
    const auto term = from.term(k0 + term_of(0));
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const auto by = __shfl_sync(~0u, from.row.offset, first + i);
      const bool there = term.bits >> __shfl_sync(~0u, from.row.tap, first + i) & 1;
      own.of[i] = there ? *reinterpret_cast<const bits*>(term.base + by) : bits(0);
    }
  }
  static CA_INLINE void put(float* shared, const waiting& own) {
    if constexpr (lone) {
#pragma unroll
      for (int i = 0; i < count; ++i)
        if (is_one(i)) *place_in(shared, i) = own.of[i];
    }
  }
  // 16 rows by 16 terms as the instruction takes them: rows 0 to 7 and 8 to 15 of terms 0 to 7, and the same of the rest.
  static CA_INLINE void take(unsigned (&r)[4], const float* shared, int row, int k) {
    const int lane = threadIdx.x % 32, x = row + lane / 8 % 2 * 8, y = k + lane / 16 * 8;
    const bits* const from = reinterpret_cast<const bits*>(shared);
    load_matrices<!AlongK>(r, from + (AlongK ? (x + lane % 8) * stride + y : (y + lane % 8) * stride + x));
  }
};

template <int BlockM, int BlockN, int Depth, int WarpM, int WarpN, int WarpsK, int Stages, class A, class B>
struct half_contraction : contraction<BlockM, BlockN, Depth, WarpM, WarpN, WarpsK, Stages, 0, 1, A, B> {
  typedef contraction<BlockM, BlockN, Depth, WarpM, WarpN, WarpsK, Stages, 0, 1, A, B> base;
  static constexpr int high = WarpM / 16, wide = WarpN / 16, steps = Depth / 16 / WarpsK;
  struct fragments { unsigned left[high][4], right[wide][4]; };

  template <class FindA, class FindB> CA_INLINE void add(float* shared, int first, int end, FindA find_a, FindB find_b) {
    const int tiles = (end - first + Depth - 1) / Depth;
    typename A::waiting a;
    typename B::waiting b;
    auto stage = [&](int tile) { return shared + tile % Stages * base::stage_floats; };
    auto fetch = [&](int tile) {
      if (tile < tiles) {
        A::fetch(stage(tile), a, first + tile * Depth, find_a);
        B::fetch(stage(tile) + A::floats, b, first + tile * Depth, find_b);
      }
      copy_commit();
    };
    auto put = [&](int tile) {
      if (tile < tiles) A::put(stage(tile), a), B::put(stage(tile) + A::floats, b);
    };
#pragma unroll
    for (int s = 0; s < Stages - 1; ++s) fetch(s), put(s);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      copy_wait<Stages - 2>();
      __syncthreads();
      fetch(tile + Stages - 1);
      multiply(stage(tile), stage(tile) + A::floats);
      put(tile + Stages - 1);  // where the stage lay that all have multiplied before they met
    }
    copy_wait<0>();
    __syncthreads();
    if constexpr (WarpsK > 1) this->gather(shared);
  }

  static CA_INLINE void take(fragments& to, const float* a, const float* b, int k) {
#pragma unroll
    for (int i = 0; i < high; ++i) A::take(to.left[i], a, base::warp_row() + 16 * i, k);
#pragma unroll
    for (int j = 0; j < wide; ++j) B::take(to.right[j], b, base::warp_column() + 16 * j, k);
  }
  // What the next instructions multiply is on its way while the ones before them run.
  CA_INLINE void multiply(const float* a, const float* b) {
    const int own = WarpsK > 1 ? int(threadIdx.x) / 32 / base::warps_of_tile * 16 : 0;
    fragments of[2];
    take(of[0], a, b, own);
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      if (s + 1 < steps) take(of[(s + 1) % 2], a, b, own + (s + 1) * WarpsK * 16);
      const fragments& now = of[s % 2];
#pragma unroll
      for (int i = 0; i < high; ++i)
#pragma unroll
        for (int j = 0; j < wide; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const unsigned right[2] = {now.right[j][h], now.right[j][h + 2]};
            multiply_half<typename A::number>(this->sum[i][2 * j + h], now.left[i], right);
          }
    }
  }
};

}  // namespace ca
