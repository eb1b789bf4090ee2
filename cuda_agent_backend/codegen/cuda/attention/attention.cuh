// Attention of float32 on tensor cores, O = softmax(scale Q K^T + bias) V, as `attention_tiles` multiplies.

namespace ca {

template <class A> struct attention : attention_tiles<A, attention_head<A>> {
  typedef attention_tiles<A, attention_head<A>> tiles_of;
  static constexpr int F = tiles_of::F, tiles_n = tiles_of::tiles_n, columns = tiles_of::columns;
  typedef typename A::index index;
  typedef attention_head<A> head_of;
  using tiles_of::head, tiles_of::shared, tiles_of::first, tiles_of::sum;
  using tiles_of::group, tiles_of::member, tiles_of::warp_row;
  static constexpr float largest = 3.402823466e38f;

  float top[F][2], total[F][2], worst[F][2];

  // find(block): what this block's head is.
  template <class Find> CA_INLINE void run(float* memory, Find find) {
    shared = memory;
    head = find(blockIdx.x);
    float start = 0.f;
    if constexpr (A::all_keys && A::skips)
      start = keys_leak(head, first, A::rows, head_of::keys_for(first + A::rows)) ? INFINITY : 0.f;
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[f][h] = -INFINITY, total[f][h] = 0.f, worst[f][h] = start;
    const int stop = head_of::keys_for(first + A::rows), tiles = (stop + A::block - 1) / A::block;
    this->mix(0, tiles, [&](float (&score)[F][tiles_n][4], int from) { soften(score, from); });
    finish();
  }

  // score <- exp(scale * score + bias - top); what came before is rescaled.
  CA_INLINE void soften(float (&score)[F][tiles_n][4], int from) {
    const bool whole = from + A::block <= A::keys && (!A::causal || from + A::block - 1 <= first + warp_row());
#pragma unroll
    for (int f = 0; f < F; ++f) {
      float next[2] = {top[f][0], top[f][1]}, factor[2], low[2], part[2] = {0.f, 0.f};
#pragma unroll
      for (int j = 0; j < tiles_n; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int query = first + warp_row() + 16 * f + group() + 8 * (e / 2), key = from + 8 * j + 2 * member() + e % 2;
          float& x = score[f][j][e];
          worst[f][e / 2] = fmaxf(worst[f][e / 2], fabsf(x));
          x = whole || head_of::seen(query, key) ? head.scaled(x, query, key) : head_of::hidden(head_of::bounded(x * A::scale), key);
          next[e / 2] = fmaxf(next[e / 2], x);
        }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int by = 1; by < 4; by *= 2) next[h] = fmaxf(next[h], __shfl_xor_sync(~0u, next[h], by));
        low[h] = next[h] == -INFINITY ? 0.f : next[h];  // nothing but masked keys
        factor[h] = expf(top[f][h] - low[h]);
        top[f][h] = next[h];
      }
#pragma unroll
      for (int j = 0; j < tiles_n; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) part[e / 2] += score[f][j][e] = expf(score[f][j][e] - low[e / 2]);
#pragma unroll
      for (int h = 0; h < 2; ++h) total[f][h] = total[f][h] * factor[h] + part[h];
#pragma unroll
      for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[f][j][e] *= factor[e / 2];
    }
  }

  CA_INLINE void finish() {
    int* const wrong = reinterpret_cast<int*>(shared) + warp_row();
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = 16 * f + group() + 8 * h, query = first + warp_row() + row;
        float all = total[f][h];
#pragma unroll
        for (int by = 1; by < 4; by *= 2) all += __shfl_xor_sync(~0u, all, by);
        const float share = head_of::share(all);
        bool right = worst[f][h] < largest;
#pragma unroll
        for (int j = 0; j < columns; ++j) {
          float2 x = {sum[f][j][2 * h] * share, sum[f][j][2 * h + 1] * share};
          right = right && fabsf(sum[f][j][2 * h]) < largest && fabsf(sum[f][j][2 * h + 1]) < largest;
          if (query < A::queries) *reinterpret_cast<float2*>(head.out + query * index(A::o_row) + 8 * j + 2 * member()) = x;
        }
        int bad = !(right && all < largest);
#pragma unroll
        for (int by = 1; by < 4; by *= 2) bad |= __shfl_xor_sync(~0u, bad, by);
        if (member() == 0) wrong[row] = bad;
      }
    __syncwarp();
    repair(head, wrong, 16 * F, first + warp_row());
  }
};

}  // namespace ca
