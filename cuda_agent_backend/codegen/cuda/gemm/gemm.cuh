// Sums of products of float32 on tensor cores: C[m, n] = sum over k of A[m, k] * B[n, k].
//
// With six products each operand is split into three bfloat16 numbers, which hold all of its 24 bits, and six of the nine
// products of these are added up: what is left out is below 2^-24 of a product. Infinities and NaN do not survive the
// split, nor does what bfloat16 rounds to infinity (the rest is NaN then): whoever uses a sum that is not finite must
// compute that one anew, term by term. Numbers below 2^-110 lose bits of their last part, as that gets below the smallest
// number there is. With one product the accuracy is TF32's.

namespace ca {

// V bytes, or as many zeros.
template <int V> CA_INLINE void copy_bytes_if(void* shared, const void* global, bool there) {
  const unsigned to = unsigned(__cvta_generic_to_shared(shared));
  if constexpr (V == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(global), "r"(there ? 16 : 0) : "memory");
  else if constexpr (V == 8)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(to), "l"(global), "r"(there ? 8 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(to), "l"(global), "r"(there ? 4 : 0) : "memory");
}
template <int V> CA_INLINE void copy_async_if(float* shared, const float* global, bool there) {
  copy_bytes_if<4 * V>(shared, global, there);
}
// An asynchronous copy has at least 4 bytes: codes by themselves go through registers.
template <int V, class T> CA_INLINE void copy_codes_if(uint8_t* shared, const T* global, bool there) {
  if constexpr (V == 1) *shared = there ? uint8_t(*global) : uint8_t(0);
  else copy_bytes_if<V>(shared, global, there);
}
CA_INLINE unsigned round_tf32(float x) {
  unsigned r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}
// Two numbers as bfloat16, the first in the lower half.
CA_INLINE unsigned round_bf16(float x, float y) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
  return r;
}
// d += a * b, of 16 x 8, 8 x 8 and 16 x 8; which elements a thread holds is the instruction's.
CA_INLINE void multiply_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The same of 16 x 16 and 16 x 8.
CA_INLINE void multiply_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 x 8 numbers, of which each lane names a row: lanes 8 * i and up those of matrix i, of which register
// i then holds two neighbours of a row, or of a column.
template <bool Columns> CA_INLINE void load_matrices(unsigned (&r)[4], const void* row) {
  const unsigned from = unsigned(__cvta_generic_to_shared(row));
  if constexpr (Columns)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

// N registers of a fragment for each of the bfloat16 numbers that add up to a number.
template <int Parts, int N> struct split_into {
  static constexpr int parts = Parts, terms = 16, width = 2;
  unsigned part[parts][N];
  CA_INLINE void set(int i, const float* of) {
    float x = of[0], y = of[1];
#pragma unroll
    for (int p = 0; p < parts; ++p) {
      const unsigned both = part[p][i] = round_bf16(x, y);
      x -= __uint_as_float(both << 16);  // exact
      y -= __uint_as_float(both & 0xffff0000u);
    }
  }
};
// The same for each of the parts that numbers are split into. Terms: of one instruction. Width: neighbouring terms in a
// register. Three products are those of an operand that is split and one that one part holds; of boxes
// (`contract_halo.cuh`) they are those of two operands of two parts.
template <int Products, int N> struct split;
template <int N> struct split<1, N> {
  static constexpr int parts = 1, terms = 8, width = 1;
  unsigned part[parts][N];
  CA_INLINE void set(int i, const float* x) { part[0][i] = round_tf32(*x); }
};
template <int N> struct split<6, N> : split_into<3, N> {};
template <int N> struct split<3, N> {
  static constexpr int parts = 1, terms = 16, width = 2;
  unsigned part[parts][N];
  CA_INLINE void set(int i, const float* of) { part[0][i] = round_bf16(of[0], of[1]); }
};

// Where the elements of one row lie whose places are a sum of what the row and what the term says: from `base` on, and
// which of the term's taps there are. A tap: what the mask knows of a term, as a convolution's place in its window.
template <class Bits, class T = float> struct gather_row { const T* base; Bits bits; };
template <class Index> struct gather_term { Index offset; int tap; };
template <class Bits, class Term, class T = float> struct gather_places { gather_row<Bits, T> row; Term term; };
template <class Bits, class Term, class T> CA_INLINE gather_places<Bits, Term, T> gathered(gather_row<Bits, T> row, Term term) { return {row, term}; }
// The same the other way round: `term(k)` is such a row, from whose base the lane's row, and its tap, are away.
template <class Index, class Term> struct gather_lines { gather_term<Index> row; Term term; };
template <class Index, class Term> CA_INLINE gather_lines<Index, Term> gathered(gather_term<Index> row, Term term) { return {row, term}; }

// Rows: of this operand in a block's tile. Adjacent: whether consecutive threads copy along k, so that shared memory
// is [row][k], or along the rows, [k][row]. Vector: elements in one copy. The padding spreads what the 32 threads of
// a warp read at a time over all banks; pairs: they read two neighbouring terms each, of 4 such pairs and 8 rows.
template <int Rows, int Depth, bool AlongK, int Vector, int Threads, bool Pairs> struct operand {
  static constexpr bool along_k = AlongK;
  static constexpr int vector = Vector;
  static constexpr int stride = AlongK ? Depth + (Pairs ? 8 : 4) : Rows + (Pairs ? 4 : 8);
  static constexpr int floats = (AlongK ? Rows : Depth) * stride;
  static constexpr int along = (AlongK ? Depth : Rows) / Vector, total = Rows * Depth / Vector;
  template <class Copy> static CA_INLINE void fetch(float* shared, int k0, Copy copy) {
#pragma unroll Vector == 1 ? 4 : 16  // single elements are many, and the places of all of them too many for registers
    for (int i = 0; i < (total + Threads - 1) / Threads; ++i) {
      const int number = threadIdx.x + i * Threads;
      if (total % Threads == 0 || number < total) {
        const int x = number % along * Vector, y = number / along;
        const int row = AlongK ? y : x, k = AlongK ? x : y;
        copy(shared + (AlongK ? row * stride + k : k * stride + row), row, k0 + k);
      }
    }
  }
  // A thread's elements are all of its own row. Each lane works out one term of the stage, and tells the others.
  static CA_INLINE int own_row() { return threadIdx.x % along; }
  template <class Bits, class Term> static CA_INLINE void fetch(float* shared, int k0, const gather_places<Bits, Term>& from) {
    static_assert(!AlongK && Vector == 1 && (Threads % along == 0 && total % Threads == 0 && Depth <= 32), "a row for each thread");
    const auto own = from.term(k0 + int(threadIdx.x) % 32);
#pragma unroll 8
    for (int i = 0; i < total / Threads; ++i) {
      const int k = threadIdx.x / along + i * (Threads / along);
      const auto by = __shfl_sync(~0u, own.offset, k);
      const bool there = from.row.bits >> __shfl_sync(~0u, own.tap, k) & 1;
      copy_async_if<1>(shared + k * stride + own_row(), from.row.base + by, there);
    }
  }
  // A thread's elements are all of its own term. Each lane knows one of the rows that its neighbours copy, too.
  static constexpr int lanes = along < 32 ? along : 32;
  static CA_INLINE int lane_row() { return threadIdx.x / along + threadIdx.x % lanes * (Threads / along); }
  template <class Index, class Term> static CA_INLINE void fetch(float* shared, int k0, const gather_lines<Index, Term>& from) {
    static_assert(AlongK && Vector == 1 && (Threads % along == 0 && total % Threads == 0 && total / Threads <= lanes), "a term for each thread");
    const int x = threadIdx.x % along, first = threadIdx.x % 32 / lanes * lanes;
    const auto own = from.term(k0 + x);
#pragma unroll 8
    for (int i = 0; i < total / Threads; ++i) {
      const int row = threadIdx.x / along + i * (Threads / along);
      const auto by = __shfl_sync(~0u, from.row.offset, first + i);
      const bool there = own.bits >> __shfl_sync(~0u, from.row.tap, first + i) & 1;
      copy_async_if<1>(shared + row * stride + x, own.base + by, there);
    }
  }
  // N neighbouring terms of a row, from a multiple of N on.
  template <int N> static CA_INLINE void take(float (&x)[N], const float* shared, int row, int k) {
    const float* const from = shared + (AlongK ? row * stride + k : k * stride + row);
    constexpr int together = !AlongK || N % 2 ? 1 : N % 4 ? 2 : 4;
#pragma unroll
    for (int i = 0; i < N; i += together) {
      if constexpr (together == 1) {
        x[i] = from[i * (AlongK ? 1 : stride)];
      } else if constexpr (together == 2) {
        const float2 v = *reinterpret_cast<const float2*>(from + i);
        x[i] = v.x, x[i + 1] = v.y;
      } else {
        const float4 v = *reinterpret_cast<const float4*>(from + i);
        x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
      }
    }
  }
};

// As `operand`, of integers of 8 bits (T), less Zero: in shared memory they are as they lie in memory, in bytes; they become
// numbers on their way to a fragment, where one part of a split holds them. An odd number of 16 bytes from one line to the
// next spreads what a warp reads over all banks.
template <class T, int Zero, int Rows, int Depth, bool AlongK, int Vector, int Threads> struct coded_operand {
  static constexpr bool along_k = AlongK;
  static constexpr int length = AlongK ? Depth : Rows, stride = 16 * ((length + 15) / 16 | 1);
  static constexpr int floats = (AlongK ? Rows : Depth) * stride / 4;
  static constexpr int along = length / Vector, total = Rows * Depth / Vector;
  template <class Copy> static CA_INLINE void fetch(float* shared, int k0, Copy copy) {
    uint8_t* const codes = reinterpret_cast<uint8_t*>(shared);
#pragma unroll Vector == 1 ? 4 : 16
    for (int i = 0; i < (total + Threads - 1) / Threads; ++i) {
      const int number = threadIdx.x + i * Threads;
      if (total % Threads == 0 || number < total) {
        const int x = number % along * Vector, y = number / along;
        copy(codes + y * stride + x, AlongK ? y : x, k0 + (AlongK ? x : y));
      }
    }
  }
  // The last bits of a number from 2^23 on are a code, which costs less than a conversion of integers.
  static CA_INLINE float value(uint8_t code) {
    constexpr unsigned flipped = T(-1) < T(0) ? 0x80 : 0;
    return __uint_as_float(unsigned(code) ^ (0x4b000000u | flipped)) - (8388608.f + float(int(flipped) + Zero));
  }
  // N neighbouring terms of a row, from a multiple of N on.
  template <int N> static CA_INLINE void take(float (&x)[N], const float* shared, int row, int k) {
    const uint8_t* const from = reinterpret_cast<const uint8_t*>(shared) + (AlongK ? row * stride + k : k * stride + row);
    if constexpr (AlongK && N == 2) {
      const unsigned both = *reinterpret_cast<const uint16_t*>(from);
      x[0] = value(uint8_t(both)), x[1] = value(uint8_t(both >> 8));
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = value(from[i * (AlongK ? 1 : stride)]);
    }
  }
};
template <class Operand> struct in_one_part { static constexpr bool value = false; };
template <class T, int Zero, int Rows, int Depth, bool AlongK, int Vector, int Threads>
struct in_one_part<coded_operand<T, Zero, Rows, Depth, AlongK, Vector, Threads>> { static constexpr bool value = true; };

// The tile of one block, [BlockM, BlockN], by warps of [WarpM, WarpN] each; Depth: terms of a stage. Every Run terms the
// running sums are added to others, as the tensor core cuts off what it adds (0: never). For the same reason the small
// products of a chunk of terms come before the large ones: what is cut off is then in proportion to a small sum. WarpsK
// warps share the terms of a stage: small tiles of long sums have too few warps otherwise to hide their latency.
template <int BlockM, int BlockN, int Depth, int WarpM, int WarpN, int WarpsK, int Stages, int Run, int Products, class A, class B>
struct contraction {
  static constexpr int warps_n = BlockN / WarpN, warps_of_tile = BlockM / WarpM * warps_n;
  static constexpr int threads = warps_of_tile * WarpsK * 32;
  static constexpr int fragments_m = WarpM / 16, fragments_n = WarpN / 8;
  static constexpr int stage_floats = A::floats + B::floats;
  static constexpr bool within = Run > 0 && Run <= Depth;  // runs end within a stage: their sums are few at a time
  typedef split<Products == 6 && in_one_part<A>::value ? 3 : Products, 4> left_split;
  typedef split<Products == 6 && in_one_part<B>::value ? 3 : Products, 2> right_split;
  static constexpr int left_parts = left_split::parts, right_parts = right_split::parts;
  static constexpr int terms = left_split::terms, width = left_split::width;
  static constexpr int chunk = within ? Run : Depth % (2 * terms) ? terms : 2 * terms, steps = chunk / terms;
  float sum[fragments_m][fragments_n][4];

  CA_INLINE contraction() {
#pragma unroll
    for (int i = 0; i < fragments_m; ++i)
#pragma unroll
      for (int j = 0; j < fragments_n; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[i][j][e] = 0.f;
  }
  static CA_INLINE int warp_row() { return int(threadIdx.x) / 32 % warps_of_tile / warps_n * WarpM; }
  static CA_INLINE int warp_column() { return int(threadIdx.x) / 32 % warps_n * WarpN; }

  // Adds the terms from first to end. copy_a and copy_b: (to, row or column of the tile, k).
  template <class CopyA, class CopyB>
  CA_INLINE void add(float* shared, int first, int end, CopyA copy_a, CopyB copy_b) {
    const int tiles = (end - first + Depth - 1) / Depth;
    auto fetch = [&](int tile) {
      if (tile < tiles) {
        float* const to = shared + tile % Stages * stage_floats;
        A::fetch(to, first + tile * Depth, copy_a);
        B::fetch(to + A::floats, first + tile * Depth, copy_b);
      }
      copy_commit();
    };
#pragma unroll
    for (int s = 0; s < Stages - 1; ++s) fetch(s);
    if constexpr (Run <= Depth) {
      for (int tile = 0; tile < tiles; ++tile) turn(shared, tile, fetch);
    } else {
      for (int tile = 0; tile < tiles;) {
        contraction run;
        for (int i = 0; i < Run / Depth && tile < tiles; ++i, ++tile) run.turn(shared, tile, fetch);
#pragma unroll
        for (int i = 0; i < fragments_m; ++i)
#pragma unroll
          for (int j = 0; j < fragments_n; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][j][e] += run.sum[i][j][e];
      }
    }
    copy_wait<0>();
    __syncthreads();
    if constexpr (WarpsK > 1) gather(shared);
  }

  // Adds the sums of all warps that share a tile's terms to those of the first, at the end of which they have met.
  CA_INLINE void gather(float* shared) {
    constexpr int own = fragments_m * fragments_n * 4;
    const int place = threadIdx.x % (warps_of_tile * 32);
#pragma unroll
    for (int half = WarpsK / 2; half > 0; half /= 2) {
      const int number = int(threadIdx.x) / (warps_of_tile * 32);
      auto each_sum = [&](int from, auto take) {
        float* const there = shared + from * own * warps_of_tile * 32 + place;
#pragma unroll
        for (int i = 0; i < own; ++i) take(sum[i / 4 / fragments_n][i / 4 % fragments_n][i % 4], there[i * warps_of_tile * 32]);
      };
      if (number >= half && number < 2 * half) each_sum(number - half, [](float& v, float& to) { to = v; });
      __syncthreads();
      if (number < half) each_sum(number, [](float& v, float& from) { v += from; });
      __syncthreads();
    }
  }

  template <class Fetch> CA_INLINE void turn(const float* shared, int tile, Fetch fetch) {
    copy_wait<Stages - 2>();
    __syncthreads();
    fetch(tile + Stages - 1);
    const float* const a = shared + tile % Stages * stage_floats;
    multiply(a, a + A::floats);
  }

  CA_INLINE void multiply(const float* a, const float* b) {
    const int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    const int row = warp_row() + group, column = warp_column() + group;
#pragma unroll
    for (int turn = 0; turn < Depth; turn += WarpsK * chunk) {
      const int k = turn + (WarpsK > 1 ? int(threadIdx.x) / 32 / warps_of_tile * chunk : 0);
      right_split right[steps][fragments_n];
#pragma unroll
      for (int c = 0; c < steps; ++c)
#pragma unroll
        for (int j = 0; j < fragments_n; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float x[width];
            B::take(x, b, column + 8 * j, k + terms * c + width * (member + 4 * e));
            right[c][j].set(e, x);
          }
#pragma unroll
      for (int i = 0; i < fragments_m; ++i) {
        left_split left[steps];
#pragma unroll
        for (int c = 0; c < steps; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float x[width];
            A::take(x, a, row + 16 * i + 8 * (e % 2), k + terms * c + width * (member + 4 * (e / 2)));
            left[c].set(e, x);
          }
        add_chunk(sum[i], left, right);
      }
    }
  }

  static CA_INLINE void add_chunk(
      float (&sum)[fragments_n][4], const left_split (&left)[steps], const right_split (&right)[steps][fragments_n]) {
    float own[fragments_n][4];
#pragma unroll
    for (int j = 0; j < fragments_n; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) own[j][e] = within ? 0.f : sum[j][e];
#pragma unroll
    for (int both = (left_parts > right_parts ? left_parts : right_parts) - 1; both >= 0; --both)
#pragma unroll
      for (int p = both < right_parts ? 0 : both - right_parts + 1; p <= both && p < left_parts; ++p)
#pragma unroll
        for (int c = 0; c < steps; ++c)
#pragma unroll
          for (int j = 0; j < fragments_n; ++j) {
            if constexpr (Products == 1) multiply_tf32(own[j], left[c].part[p], right[c][j].part[both - p]);
            else multiply_bf16(own[j], left[c].part[p], right[c][j].part[both - p]);
          }
#pragma unroll
    for (int j = 0; j < fragments_n; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[j][e] = within ? sum[j][e] + own[j][e] : own[j][e];
  }

  // Hands every sum on, with its row and column in the tile.
  template <class Take> CA_INLINE void each(Take take) const {
    if (WarpsK > 1 && threadIdx.x >= warps_of_tile * 32) return;
    const int lane = threadIdx.x % 32, row = warp_row() + lane / 4, column = warp_column() + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < fragments_m; ++i)
#pragma unroll
      for (int j = 0; j < fragments_n; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) take(row + 16 * i + 8 * (e / 2), column + 8 * j + e % 2, sum[i][j][e]);
  }
};

// Numbers that lie `step` apart.
template <int L> CA_INLINE vec<float, L> load_apart(const float* p, int step) {
  vec<float, L> r;
  CA_LANES r.v[i] = p[i * step];
  return r;
}

// Sums times what their operands are scaled by. One cut off at the largest number stays that, so that it is found out.
template <int L> CA_INLINE vec<float, L> scale_sums(vec<float, L> total, vec<float, L> by) {
  vec<float, L> r;
  CA_LANES r.v[i] = ::fabs(total.v[i]) < 3.402823466e38f ? total.v[i] * by.v[i] : total.v[i];
  return r;
}

// Which tile a block works on: `group` rows of tiles at a time, so that blocks that run together share what they read.
template <int TilesM, int TilesN, int Group> CA_INLINE void place_of(int number, int& m, int& n) {
  const int whole = Group * TilesN, first = number / whole * Group;
  const int high = TilesM - first < Group ? TilesM - first : Group;
  m = first + number % whole % high;
  n = number % whole / high;
}

}  // namespace ca
