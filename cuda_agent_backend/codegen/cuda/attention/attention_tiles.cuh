// What attention of float32 and its like have in common: O = P V with P made of Q K^T, after `contract.cuh`, which says how six
// products of bfloat16 numbers make one of float32 and what does not survive that.
//
// A block takes `rows` queries of one head, a warp 16 * `fragments` of them; tiles of `block` keys pass through shared
// memory, `stages` of them at a time. What a thread holds of the scores is what it needs of P as operand of P V, so P never
// leaves the registers. The tensor core cuts off what it adds: every 16 terms are summed up from zero, and added outside.

namespace ca {

// A: as for `attention_head`. Head: has q, k and v of a head.
template <class A, class Head> struct attention_tiles {
  static constexpr int D = A::size, depth = (D + 15) / 16 * 16, steps = depth / 16, columns = A::width / 8;
  static constexpr int F = A::fragments, warps = A::rows / (16 * F), threads = 32 * warps;
  static constexpr int tiles_n = A::block / 8, together = F > 1 ? 2 : 4;  // independent sums: tiles of keys or columns
  // Threads read Q and K by pairs along a row, V by pairs along a column: the padding spreads them over all banks.
  static constexpr int stride = depth + 8, v_stride = A::width + 4;
  static constexpr int k_floats = A::block * stride, stage_floats = k_floats + A::block * v_stride;
  // What is split lies as threads hold it: 12 words of a thread for each 16 x 16 of Q, 6 for each 16 x 8 of K and V.
  static constexpr int q_words = A::kept ? 0 : A::rows / 16 * steps * 32 * 12;
  static constexpr int key_tiles = steps * tiles_n, value_tiles = A::block / 16 * columns;
  static_assert(A::rows * stride <= A::stages * stage_floats, "Q passes through where K and V will be");
  static_assert(A::rows % (16 * F) == 0 && A::block % 16 == 0 && D % 8 == 0 && A::width % 8 == 0);
  typedef split<6, 4> left_split;
  typedef split<6, 2> right_split;
  typedef typename A::index index;

  Head head;
  float* shared;
  int first;  // query of the block
  float sum[F][columns][4];

  static CA_INLINE int lane() { return threadIdx.x % 32; }
  static CA_INLINE int group() { return lane() / 4; }
  static CA_INLINE int member() { return lane() % 4; }
  static CA_INLINE int warp_row() { return int(threadIdx.x) / 32 * 16 * F; }

  // Adds up all products of some tiles of keys. weigh(score, from): makes P of the scores of a tile, where they are.
  template <class Weigh> CA_INLINE void mix(int begin, int tiles, Weigh weigh) {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[f][j][e] = 0.f;
    copy<A::rows, depth, D, stride>(stage(0), head.q, A::q_row, first, A::queries);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    left_split kept[A::kept ? steps : 1][F];
#pragma unroll
    for (int c = 0; c < steps; ++c) {
      split_queries(kept[A::kept ? c : 0], c);
      if constexpr (!A::kept) keep_queries(kept[0], c);
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < A::stages - 1; ++s) fetch(begin + s, tiles);
    for (int tile = begin; tile < tiles; ++tile) {
      copy_wait<A::stages - 2>();
      __syncthreads();
      fetch(tile + A::stages - 1, tiles);
      const float* const own = stage(tile);
      if constexpr (A::apart) {
        split_tile(own);
        __syncthreads();
      }
      float score[F][tiles_n][4];
      multiply_keys(score, own, kept);
      weigh(score, tile * A::block);
      multiply_values(score, own + k_floats);
    }
    copy_wait<0>();
    __syncthreads();
  }

  CA_INLINE float* stage(int tile) const { return shared + q_words + (A::apart ? 192 * (key_tiles + value_tiles) : 0) + tile % A::stages * stage_floats; }
  CA_INLINE void fetch(int tile, int tiles) {
    if (tile < tiles) {
      copy<A::block, depth, D, stride>(stage(tile), head.k, A::k_row, tile * A::block, A::keys);
      copy<A::block, A::width, A::width, v_stride>(stage(tile) + k_floats, head.v, A::v_row, tile * A::block, A::keys);
    }
    copy_commit();
  }
  // Rows from `at` on, zeros where there are none and behind the last column that is given.
  template <int Rows, int Columns, int Given, int Stride>
  static CA_INLINE void copy(float* to, const float* from, index step, int at, int count) {
    constexpr int V = A::vector, along = Columns / V, all = Rows * along;
#pragma unroll 8
    for (int i = threadIdx.x; i < all; i += threads) {
      const int row = i / along, column = i % along * V;
      const bool there = at + row < count && (Columns == Given || column < Given);
      copy_async_if<V>(to + row * Stride + column, there ? from + (at + row) * step + column : from, there);
    }
  }

  CA_INLINE void split_queries(left_split (&to)[F], int step) const {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = warp_row() + 16 * f + group() + 8 * (e % 2), column = 16 * step + 2 * member() + 8 * (e / 2);
        set_pair(to[f], e, stage(0) + row * stride + column);
      }
  }
  template <class Split> static CA_INLINE void set_pair(Split& to, int e, const float* at) {
    const float2 x = *reinterpret_cast<const float2*>(at);
    const float both[2] = {x.x, x.y};
    to.set(e, both);
  }
  // Where a thread's own part of Q is kept, for itself.
  CA_INLINE uint4* queries_at(int step, int f) const {
    return reinterpret_cast<uint4*>(shared) + ((warp_row() / 16 + f) * steps + step) * 96 + lane();
  }
  CA_INLINE void keep_queries(const left_split (&from)[F], int step) const {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int p = 0; p < 3; ++p) {
        const unsigned (&x)[4] = from[f].part[p];
        const uint4 all = {x[0], x[1], x[2], x[3]};
        queries_at(step, f)[32 * p] = all;
      }
  }
  CA_INLINE void take_queries(left_split (&to)[F], int step) const {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int p = 0; p < 3; ++p) {
        const uint4 x = queries_at(step, f)[32 * p];
        unsigned (&all)[4] = to[f].part[p];
        all[0] = x.x, all[1] = x.y, all[2] = x.z, all[3] = x.w;
      }
  }

  // A thread's part of 16 elements of a head of 8 keys, and of 16 keys of 8 columns of V.
  static CA_INLINE void split_keys(right_split& to, const float* keys, int step, int j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) set_pair(to, e, keys + (8 * j + group()) * stride + 16 * step + 2 * member() + 8 * e);
  }
  static CA_INLINE void split_values(right_split& to, const float* values, int step, int j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float* const at = values + (16 * step + 2 * member() + 8 * e) * v_stride + 8 * j + group();
      const float both[2] = {at[0], at[v_stride]};
      to.set(e, both);
    }
  }
  CA_INLINE uint2* split_at(int tile) const { return reinterpret_cast<uint2*>(shared + q_words + 192 * tile) + lane(); }
  CA_INLINE void split_tile(const float* from) const {
#pragma unroll 2
    for (int tile = threadIdx.x / 32; tile < key_tiles + value_tiles; tile += warps) {
      right_split x;
      if (tile < key_tiles) split_keys(x, from, tile / tiles_n, tile % tiles_n);
      else split_values(x, from + k_floats, (tile - key_tiles) / columns, (tile - key_tiles) % columns);
#pragma unroll
      for (int p = 0; p < 3; ++p) {
        const uint2 both = {x.part[p][0], x.part[p][1]};
        split_at(tile)[32 * p] = both;
      }
    }
  }
  CA_INLINE void take_split(right_split& to, int tile) const {
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      const uint2 x = split_at(tile)[32 * p];
      to.part[p][0] = x.x, to.part[p][1] = x.y;
    }
  }

  // own <- left * right for each pair, small products first.
  template <int N> static CA_INLINE void multiply(float (&own)[F][N][4], const left_split (&left)[F], const right_split (&right)[N]) {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) own[f][j][e] = 0.f;
#pragma unroll
    for (int both = 2; both >= 0; --both)
#pragma unroll
      for (int p = 0; p <= both; ++p)
#pragma unroll
        for (int f = 0; f < F; ++f)
#pragma unroll
          for (int j = 0; j < N; ++j) multiply_bf16(own[f][j], left[f].part[p], right[j].part[both - p]);
  }

  template <int N>
  CA_INLINE void multiply_keys(float (&score)[F][tiles_n][4], const float* keys, const left_split (&kept)[N][F]) const {
#pragma unroll
    for (int c = 0; c < steps; ++c) {
      left_split left[F];
      if constexpr (!A::kept) take_queries(left, c);
#pragma unroll
      for (int j0 = 0; j0 < tiles_n; j0 += 2) {
        right_split right[2];
        float own[F][2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if constexpr (A::apart) take_split(right[j], c * tiles_n + j0 + j);
          else split_keys(right[j], keys, c, j0 + j);
        }
        if constexpr (A::kept) multiply(own, kept[c], right);
        else multiply(own, left, right);
#pragma unroll
        for (int f = 0; f < F; ++f)
#pragma unroll
          for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) score[f][j0 + j][e] = c ? score[f][j0 + j][e] + own[f][j][e] : own[f][j][e];
      }
    }
  }

  // sum += P V.
  CA_INLINE void multiply_values(const float (&score)[F][tiles_n][4], const float* values) {
#pragma unroll
    for (int c = 0; c < A::block / 16; ++c) {
      left_split left[F];
#pragma unroll
      for (int f = 0; f < F; ++f)
#pragma unroll
        for (int e = 0; e < 4; ++e) left[f].set(e, score[f][2 * c + e / 2] + e % 2 * 2);
      add_columns<0>(left, values, c);
    }
  }
  template <int From> CA_INLINE void add_columns(const left_split (&left)[F], const float* values, int c) {
    constexpr int N = columns - From < together ? columns - From : together;
    right_split right[N];
    float own[F][N][4];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if constexpr (A::apart) take_split(right[j], key_tiles + c * columns + From + j);
      else split_values(right[j], values, c, From + j);
    }
    multiply(own, left, right);
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[f][From + j][e] += own[f][j][e];
    if constexpr (From + N < columns) add_columns<From + N>(left, values, c);
  }
};

}  // namespace ca
