// Attention of float32 by warp groups (sm_90a), as `relay_tiles` multiplies: each group works out its softmax while the other
// one multiplies.

namespace ca {

// A: as for `attention` and `relay_tiles`. And bias_pairs, whether the biases of two neighbouring keys may be loaded at once.
template <class A> struct relay_attention : relay_tiles<A, attention_head<A>> {
  typedef relay_tiles<A, attention_head<A>> base;
  static constexpr int D = A::size;
  // What is added to scores is asked for while they are worked out, where there are registers for that.
  static constexpr bool bias_early = D <= 96;
  static constexpr int biases = A::biased ? A::block / 2 : 1;
  static constexpr float largest = 3.402823466e38f;
  typedef typename A::index index;
  typedef attention_head<A> head_of;
  using base::head, base::first, base::sum;
  using base::lane, base::member, base::own_group, base::own_row;

  float top[2], total[2], worst[2];

  static CA_INLINE int tiles_for(int stop) { return (head_of::keys_for(stop) + A::block - 1) / A::block; }

  // find(block): what this block's head is; asked for again, as there are better uses of registers meanwhile.
  template <class Find> CA_INLINE void run(float* shared, Find find) {
    const int count = tiles_for(first + A::rows);
    float start = 0.f;
    // the first group leaves out the most keys
    if constexpr (A::all_keys && A::skips)
      start = keys_leak(find(blockIdx.x), first, A::rows, head_of::keys_for(first + 64)) ? INFINITY : 0.f;
    this->share(shared, count, find, [&] {
      soften_tiles(count, start);
      head = find(opaque(blockIdx.x));
      finish();
    });
  }
  CA_INLINE void soften_tiles(int count, float start) {
    const int begin = first + 64 * own_group();
    float bias[biases];
#pragma unroll
    for (int h = 0; h < 2; ++h) top[h] = -INFINITY, total[h] = 0.f, worst[h] = start;
    auto ask = [&](int from) {
      if constexpr (bias_early) load_bias(bias, from);
    };
    auto weigh = [&](float (&score)[A::block / 2], int from) {
      if constexpr (!bias_early) load_bias(bias, from);
      soften(score, bias, from);
    };
    this->multiply(begin < A::queries ? tiles_for(begin + 64) : 0, count, ask, weigh);
  }

  // What is added to the scores of a tile.
  CA_INLINE void load_bias(float (&to)[biases], int from) const {
    if constexpr (A::biased) {
#pragma unroll
      for (int i = 0; i < biases; i += 1 + A::bias_pairs) {
        const int query = first + own_row() + 8 * (i / 2 % 2), key = from + 8 * (i / 4) + 2 * member() + i % 2;
        const typename A::bias_number* const at = head.bias + query * index(A::bias_row) + key * index(A::bias_key);
        const bool there = query < A::queries && key < A::keys;
        if constexpr (A::bias_pairs) {
          struct alignas(2 * sizeof(*at)) pair { typename A::bias_number v[2]; };
          pair both = {};
          if (there) both = *reinterpret_cast<const pair*>(at);
          to[i] = float(both.v[0]), to[i + 1] = float(both.v[1]);
        } else {
          to[i] = there ? float(*at) : 0.f;
        }
      }
    }
  }

  // As `attention::soften`, for the two rows of a thread.
  CA_INLINE void soften(float (&score)[A::block / 2], const float (&bias)[biases], int from) {
    const int query = first + own_row();
    const bool whole = from + A::block <= A::keys && (!A::causal || from + A::block - 1 <= first + 64 * own_group());
    float next[2] = {top[0], top[1]}, factor[2], low[2], part[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < A::block / 2; ++i) {
      const int h = i / 2 % 2, key = from + 8 * (i / 4) + 2 * member() + i % 2;
      float& x = score[i];
      worst[h] = fmaxf(worst[h], fabsf(x));
      x = head_of::bounded(x * A::scale);
      if constexpr (A::biased) x = head_of::masked(x, bias[i]);
      if (!whole && !head_of::seen(query + 8 * h, key)) x = head_of::hidden(x, key);
      next[h] = fmaxf(next[h], x);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int by = 1; by < 4; by *= 2) next[h] = fmaxf(next[h], __shfl_xor_sync(~0u, next[h], by));
      low[h] = next[h] == -INFINITY ? 0.f : next[h];  // nothing but masked keys
      factor[h] = expf(top[h] - low[h]);
      top[h] = next[h];
    }
#pragma unroll
    for (int i = 0; i < A::block / 2; ++i) part[i / 2 % 2] += score[i] = expf(score[i] - low[i / 2 % 2]);
#pragma unroll
    for (int h = 0; h < 2; ++h) total[h] = total[h] * factor[h] + part[h];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) sum[i] *= factor[i / 2 % 2];
  }

  CA_INLINE void finish() {
    int bad[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = first + own_row() + 8 * h;
      float all = total[h];
#pragma unroll
      for (int by = 1; by < 4; by *= 2) all += __shfl_xor_sync(~0u, all, by);
      const float share = head_of::share(all);
      bool right = worst[h] < largest && all < largest;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        const float (&of)[D / 2] = sum;
        const float x = of[4 * j + 2 * h], y = of[4 * j + 2 * h + 1];
        right = right && fabsf(x) < largest && fabsf(y) < largest;
        const float2 both = {x * share, y * share};
        if (query < A::queries) *reinterpret_cast<float2*>(head.out + query * index(A::o_row) + 8 * j + 2 * member()) = both;
      }
      bad[h] = !right && query < A::queries;
#pragma unroll
      for (int by = 1; by < 4; by *= 2) bad[h] |= __shfl_xor_sync(~0u, bad[h], by);
    }
    __syncwarp();
#pragma unroll 1
    for (int row = 0; row < 16; ++row)
      if (__shfl_sync(~0u, row < 8 ? bad[0] : bad[1], row % 8 * 4)) exact_row(head, first + own_row() - lane() / 4 + row);
  }
};

}  // namespace ca
