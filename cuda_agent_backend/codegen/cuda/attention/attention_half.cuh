// Attention of float16 and bfloat16 on tensor cores, after `contract_half.cuh`: as that of float32, but that nothing has to
// be split. Scores, the softmax and sums are float32, and weights are rounded to be multiplied with V, as in eager's library.
//
// A block takes `rows` queries of one head, a warp 16 * `fragments` of them; tiles of `block` keys, and of a bias where its
// alignment allows, pass through shared memory, `stages` of them at a time. Exponentials are powers of two.

namespace ca {

// 2 to the power of x, within what rounding to half precision leaves of it.
CA_INLINE float exp2_near(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// As `round_bf16`.
CA_INLINE unsigned round_f16(float x, float y) {
  unsigned r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
  return r;
}
template <class T> CA_INLINE unsigned round_half(float x, float y) {
  if constexpr (same<T, f16>::value) return round_f16(x, y);
  else return round_bf16(x, y);
}

// The softmax of the scores that a thread holds: N tiles of 8 keys for rows h = 0 and 1 of each of F fragments, as the
// tensor core puts them out. From tile to tile it keeps the largest score, in units of a power of two, and its own part
// of the sum.
template <class A, int F, int N> struct running_softmax {
  typedef attention_head<A> head_of;
  // Whether scores are powers of two before the largest is known, since something is added to some of them or takes their place,
  // or for their tangents.
  static constexpr bool at_once = A::biased || A::fills || A::capped;
  static constexpr float base = 1.44269504f, unit = at_once ? 1.f : A::scale * base, hidden = -2e38f;
  float top[F][2], total[F][2];

  CA_INLINE running_softmax() {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[f][h] = -INFINITY, total[f][h] = 0.f;
  }
  // Masks of the least finite number are not to overflow; rows of nothing but such, or of infinite ones, are found exactly.
  static CA_INLINE float weighed(float bias) { return max_(bias, hidden) * base; }
  // A product as a score. Of one that overflowed the tangent would be a number, so it is made none: see `finish`.
  static CA_INLINE float scaled(float product) {
    if constexpr (!A::capped) return product * (A::scale * base);
    const float tangent = 1.f - __fdividef(2.f, 1.f + exp2_near(product * (2.f * A::scale * base)));
    return fabsf(product) < INFINITY ? A::cap * base * tangent : NAN;
  }
  // A product as a score, with what the mask says of it.
  static CA_INLINE float masked(float product, float bias) {
    if constexpr (A::chooses) return (bias != 0.f) == A::hides ? weighed(A::fill) : scaled(product);
    if constexpr (A::capped) return scaled(product) + weighed(bias);
    return fmaf(product, A::scale * base, weighed(bias));
  }
  // The score of a key that a query does not see; see `attention_head`.
  static CA_INLINE float unseen(float score, int key) {
    if (!A::all_keys || key >= A::keys) return -INFINITY;
    return A::fills ? weighed(A::fill) : score - INFINITY;
  }
  static CA_INLINE void scale(float (&score)[F][N][4]) {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) score[f][j][e] = scaled(score[f][j][e]);
  }
  // bias_of: (f, h, j) gives two neighbouring keys' biases.
  template <class Bias> static CA_INLINE void add_bias(float (&score)[F][N][4], Bias bias_of) {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 bias = bias_of(f, h, j);
          float* const x = score[f][j] + 2 * h;
          x[0] = masked(x[0], bias.x), x[1] = masked(x[1], bias.y);
        }
  }
  // query: of fragment 0, row 0; key: the thread's first.
  static CA_INLINE void hide(float (&score)[F][N][4], int query, int key) {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int own = key + 8 * j + e % 2;
          if (!head_of::seen(query + 16 * f + 8 * (e / 2), own)) score[f][j][e] = unseen(score[f][j][e], own);
        }
  }
  // score <- weights; factor: what came before is to be multiplied by.
  CA_INLINE void soften(float (&score)[F][N][4], float (&factor)[F][2]) {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float high = -INFINITY, part = 0.f;
#pragma unroll
        for (int j = 0; j < N; ++j) high = fmaxf(high, fmaxf(score[f][j][2 * h], score[f][j][2 * h + 1]));
#pragma unroll
        for (int by = 1; by < 4; by *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, by));
        high = fmaxf(top[f][h], high * unit);
        const float low = high == -INFINITY ? 0.f : high;  // nothing but masked keys
        factor[f][h] = exp2_near(top[f][h] - low);
        top[f][h] = high;
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) part += score[f][j][e] = exp2_near(fmaf(score[f][j][e], unit, -low));
        total[f][h] = total[f][h] * factor[f][h] + part;
      }
  }
  // Of the whole row, for all of its threads.
  CA_INLINE float sum_of(int f, int h) const {
    float all = total[f][h];
#pragma unroll
    for (int by = 1; by < 4; by *= 2) all += __shfl_xor_sync(~0u, all, by);
    return all;
  }
};

// What a thread of a block holds beside its scores, whichever way they are multiplied: a warp has 16 * F rows.
template <class A, int F> struct half_attention_rows {
  typedef typename A::number number;
  typedef typename A::index index;
  typedef attention_head<A> head_of;
  static constexpr int D = A::size, depth = (D + 15) / 16 * 16, steps = depth / 16, columns = D / 8;
  static constexpr int warps = A::rows / (16 * F), threads = 32 * warps, tiles_n = A::block / 8;
  static constexpr bool staged = A::bias_vector > 0;
  typedef half_operand<number, A::rows, A::block, true, staged ? A::bias_vector : 8, threads> biases;
  static constexpr int bias_floats = staged ? biases::floats : 0;
  static constexpr float largest = 3.402823466e38f, most = 65536.f;
  static_assert(A::rows % (16 * F) == 0 && A::block % 16 == 0 && D % 8 == 0);
  struct __align__(4) neighbours { number of[2]; };

  head_of head;
  float* shared;
  int first;  // query of the block
  float sum[F][columns][4];
  running_softmax<A, F, tiles_n> softmax;

  static CA_INLINE int lane() { return threadIdx.x % 32; }
  static CA_INLINE int group() { return lane() / 4; }
  static CA_INLINE int member() { return lane() % 4; }
  static CA_INLINE int warp_row() { return int(threadIdx.x) / 32 * 16 * F; }
  CA_INLINE int query() const { return first + warp_row() + group(); }  // of fragment 0, row 0
  CA_INLINE void begin(head_of of) {
    head = of;
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[f][j][e] = 0.f;
  }

  // Where an element of a row is; zeros where there is none and behind the last column.
  static CA_INLINE const number* found(const number* from, index step, int row, int column, int count, bool& there) {
    there = row < count && (depth == D || column < D);
    return there ? from + row * step + column : from;
  }
  CA_INLINE void fetch_bias(float* to, int from) const {
    typename biases::waiting none;
    biases::fetch(to, none, 0, [&](int row, int column, bool& there) {
      there = first + row < A::queries && from + column < A::keys;
      return there ? head.bias + (first + row) * index(A::bias_row) + from + column : head.bias;
    });
  }
  // score, of keys from `from` on: with their biases, and without those that are not seen.
  CA_INLINE void mask(float (&score)[F][tiles_n][4], const float* bias, int from) const {
    if constexpr (A::biased) add_bias(score, bias, from);
    else if constexpr (softmax.at_once) softmax.scale(score);
    const int end = from + A::block;
    if (end > A::keys || (A::causal && end - 1 > first + warp_row())) softmax.hide(score, query(), from + 2 * member());
  }
  CA_INLINE void add_bias(float (&score)[F][tiles_n][4], const float* staged_bias, int from) const {
    softmax.add_bias(score, [&](int f, int h, int j) -> float2 {
      const int row = warp_row() + 16 * f + group() + 8 * h, column = 8 * j + 2 * member();
      if constexpr (staged) {
        const number* const at = reinterpret_cast<const number*>(staged_bias) + row * biases::stride + column;
        const neighbours both = *reinterpret_cast<const neighbours*>(at);
        return {widen(both.of[0]), widen(both.of[1])};
      }
      return {bias_of(first + row, from + column), bias_of(first + row, from + column + 1)};
    });
  }
  CA_INLINE float bias_of(int row, int key) const {
    if (row >= A::queries || key >= A::keys) return 0.f;
    return head_of::widen_mask(head.bias[row * index(A::bias_row) + key * index(A::bias_key)]);
  }
  CA_INLINE void rescale(const float (&factor)[F][2]) {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[f][j][e] *= factor[f][e / 2];
  }
  // A thread's part of the weights of 16 keys, from 16 * c on, as the products with V want it.
  static CA_INLINE void pack(unsigned (&to)[4], const float (&weight)[tiles_n][4], int c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float* const x = weight[2 * c + e / 2] + e % 2 * 2;
      to[e] = round_half<number>(x[0], x[1]);
    }
  }
  CA_INLINE void finish() {
    int* const wrong = reinterpret_cast<int*>(shared) + warp_row();
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float all = softmax.sum_of(f, h), share = head_of::share(all);
        const int row = query() + 16 * f + 8 * h;
        const float top = softmax.top[f][h];
        // where nothing is added, scores are scaled as the largest is subtracted: what that rounds must not count for weights
        const bool plain = softmax.at_once ? top > softmax.hidden : fabsf(top) < most || top == -INFINITY;
        bool right = all < largest && top < largest && plain;
#pragma unroll
        for (int j = 0; j < columns; ++j) {
          const float* const x = sum[f][j] + 2 * h;
          right = right && fabsf(x[0]) < largest && fabsf(x[1]) < largest;
          if (row < A::queries)
            *reinterpret_cast<unsigned*>(head.out + row * index(A::o_row) + 8 * j + 2 * member()) = round_half<number>(x[0] * share, x[1] * share);
        }
        int bad = !right;
#pragma unroll
        for (int by = 1; by < 4; by *= 2) bad |= __shfl_xor_sync(~0u, bad, by);
        if (member() == 0) wrong[16 * f + group() + 8 * h] = bad;
      }
    __syncwarp();
    repair(head, wrong, 16 * F, first + warp_row());
  }
};

template <class A> struct half_attention : half_attention_rows<A, A::fragments> {
  typedef half_attention_rows<A, A::fragments> base;
  typedef typename base::number number;
  typedef typename base::index index;
  static constexpr int F = A::fragments, depth = base::depth, steps = base::steps, columns = base::columns;
  static constexpr int threads = base::threads, tiles_n = base::tiles_n;
  using base::first; using base::found; using base::head; using base::shared; using base::sum; using base::warp_row;
  typedef half_operand<number, A::rows, depth, true, A::vector, threads> queries;
  typedef half_operand<number, A::block, depth, true, A::vector, threads> keys;
  typedef half_operand<number, depth, A::block, false, A::vector, threads> values;
  static constexpr int bias_at = keys::floats + values::floats, stage_floats = bias_at + base::bias_floats;

  typename keys::waiting own_keys;
  typename values::waiting own_values;

  // find(block): what this block's head is.
  template <class Find> CA_INLINE void run(float* memory, Find find) {
    shared = memory;
    this->begin(find(blockIdx.x));
    const int stop = attention_head<A>::keys_for(first + A::rows), tiles = (stop + A::block - 1) / A::block;
    fetch_queries();
#pragma unroll
    for (int s = 0; s < A::stages - 1; ++s) fetch(s, tiles), put(s, tiles);
    unsigned kept[A::kept ? steps : 1][F][4];
    if constexpr (A::kept) {
      copy_wait<A::stages - 2>();
      __syncthreads();
#pragma unroll
      for (int c = 0; c < steps; ++c) take_queries(kept[c], c);
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      copy_wait<A::stages - 2>();
      __syncthreads();
      fetch(tile + A::stages - 1, tiles);
      const int row = first + warp_row();
      if (row < A::queries && (!A::skips || tile * A::block < row + 16 * F)) add(tile, kept);
      put(tile + A::stages - 1, tiles);
    }
    copy_wait<0>();
    __syncthreads();
    this->finish();
  }

  CA_INLINE float* stage(int tile) const { return shared + queries::floats + tile % A::stages * stage_floats; }
  CA_INLINE void fetch_queries() const {
    typename queries::waiting own;
    queries::fetch(shared, own, 0, [&](int row, int column, bool& there) {
      return found(head.q, A::q_row, first + row, column, A::queries, there);
    });
    queries::put(shared, own);
  }
  CA_INLINE void fetch(int tile, int tiles) {
    if (tile < tiles) {
      const int from = tile * A::block;
      keys::fetch(stage(tile), own_keys, 0, [&](int row, int column, bool& there) {
        return found(head.k, A::k_row, from + row, column, A::keys, there);
      });
      values::fetch(stage(tile) + keys::floats, own_values, 0, [&](int column, int row, bool& there) {
        return found(head.v, A::v_row, from + row, column, A::keys, there);
      });
      if constexpr (base::staged) this->fetch_bias(stage(tile) + bias_at, from);
    }
    copy_commit();
  }
  CA_INLINE void put(int tile, int tiles) const {
    if (tile < tiles) keys::put(stage(tile), own_keys), values::put(stage(tile) + keys::floats, own_values);
  }
  CA_INLINE void take_queries(unsigned (&to)[F][4], int step) const {
#pragma unroll
    for (int f = 0; f < F; ++f) queries::take(to[f], shared, warp_row() + 16 * f, 16 * step);
  }

  template <int Kept> CA_INLINE void add(int tile, const unsigned (&kept)[Kept][F][4]) {
    float score[F][tiles_n][4], factor[F][2];
    multiply_keys(score, stage(tile), kept);
    this->mask(score, stage(tile) + bias_at, tile * A::block);
    this->softmax.soften(score, factor);
    this->rescale(factor);
    multiply_values(score, stage(tile) + keys::floats);
  }
  // score <- Q K^T. What the next instructions multiply is on its way while the ones before them run.
  template <int Kept>
  CA_INLINE void multiply_keys(float (&score)[F][tiles_n][4], const float* from, const unsigned (&kept)[Kept][F][4]) const {
    constexpr int pairs = tiles_n / 2;
    unsigned right[2][4], left[F][4];
    keys::take(right[0], from, 0, 0);
#pragma unroll
    for (int n = 0; n < steps * pairs; ++n) {
      const int c = n / pairs, j = n % pairs * 2, next = n + 1;
      if (next < steps * pairs) keys::take(right[next % 2], from, next % pairs * 16, next / pairs * 16);
      if constexpr (!A::kept)
        if (j == 0) take_queries(left, c);
#pragma unroll
      for (int f = 0; f < F; ++f)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const unsigned own[2] = {right[n % 2][h], right[n % 2][h + 2]};
          float (&to)[4] = score[f][j + h];
          if (c == 0) to[0] = to[1] = to[2] = to[3] = 0.f;
          if constexpr (A::kept) multiply_half<number>(to, kept[c][f], own);
          else multiply_half<number>(to, left[f], own);
        }
    }
  }
  // sum += P V.
  CA_INLINE void multiply_values(const float (&weight)[F][tiles_n][4], const float* from) {
    constexpr int pairs = depth / 16, all = A::block / 16 * pairs;
    unsigned right[2][4], left[F][4];
    values::take(right[0], from, 0, 0);
#pragma unroll
    for (int n = 0; n < all; ++n) {
      const int c = n / pairs, j = n % pairs * 2, next = n + 1;
      if (next < all) values::take(right[next % 2], from, next % pairs * 16, next / pairs * 16);
      if (j == 0)
#pragma unroll
        for (int f = 0; f < F; ++f) base::pack(left[f], weight[f], c);
#pragma unroll
      for (int f = 0; f < F; ++f)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const unsigned own[2] = {right[n % 2][h], right[n % 2][h + 2]};
          if (j + h < columns) multiply_half<number>(sum[f][j + h], left[f], own);
        }
    }
  }
};

}  // namespace ca
