// What all kernels of an attention share: the head that a block works on, and its rows one by one.

namespace ca {

// A holds sizes and the schedule as constants: number (the type), size (of a head), width (of its values), queries, keys, rows, block, fragments,
// stages, kept (whether Q stays in registers, as the products want it, or else in shared memory), vector (elements of one
// copy), q_row .. o_row, bias_row, bias_key (strides), causal, skips (whether no
// more keys are multiplied than a block sees), all_keys (whether eager multiplies hidden ones, too), guarded
// (whether rows of masked keys are 0, or NaN), biased (whether there is a mask, of bias_number), chooses (whether that is one of booleans, which hide
// keys where they are `hides`), fills (whether hidden scores are `fill`, and not added to), capped (whether scores are `cap` times a hyperbolic tangent), scale, the product of early (what operands have been multiplied by
// before sums may overflow) and late; and `index`, the type of a place within a head. In float32 also apart (whether the
// block splits each tile of K and V once, or each warp for itself), in half precision bias_vector (elements of one copy of
// a bias, 0 where threads read it for themselves).
// What a block needs to know of its head.
template <class A> struct attention_head {
  static constexpr int D = A::size;
  typedef typename A::index index;
  typedef typename A::number number;
  const number *q, *k, *v;
  const typename A::bias_number* bias;
  number* out;

  // Keys that queries up to the one before `stop` see.
  static CA_INLINE int keys_for(int stop) { return A::skips && stop < A::keys ? stop : A::keys; }
  static CA_INLINE bool seen(int query, int key) { return key < A::keys && (!A::causal || key <= query); }
  // The score of a key that a query does not see. Where all keys are multiplied, one that is not finite stays so, but where it is filled.
  static CA_INLINE float hidden(float score, int key) {
    if (!A::all_keys || key >= A::keys) return -INFINITY;
    return A::fills ? A::fill : score - INFINITY;
  }
  // A score, of a product that is scaled.
  static CA_INLINE float bounded(float score) {
    if constexpr (A::capped) return A::cap * tanhf(score);
    return score;
  }
  // A score with what the mask says of it.
  static CA_INLINE float masked(float score, float bias) {
    if constexpr (A::chooses) return (bias != 0.f) == A::hides ? A::fill : score;
    return score + bias;
  }
  // What sums of weights and values are multiplied by; rows of masked keys are 0, or NaN.
  static CA_INLINE float share(float all) { return 1.f / (A::guarded && all == 0.f ? 1.f : all); }
  // Whether keys from `stop` on, which queries of a block do not see, may count for them nonetheless: scores of minus infinity
  // and weights of 0 are nothing only where products and values are numbers. For all threads of a block.
  CA_INLINE bool leaks(int first, int rows, int stop) const {
    bool found = false;
    if constexpr (A::all_keys && A::skips) {
      const int end = first + rows < A::queries ? first + rows : A::queries;
      const bool any = stop < A::keys;
      if (any) found = vast(q, A::q_row, first, end) | vast(k, A::k_row, stop, A::keys) | vast(v, A::v_row, stop, A::keys);
      if (any) found = __syncthreads_or(found);
    }
    return found;
  }
  // Whether there is a number in a thread's part of some rows with which a score might overflow; or none at all.
  static CA_INLINE bool vast(const number* from, index step, int begin, int end) {
    struct alignas(sizeof(number) * A::vector) pack { number v[A::vector]; };
    constexpr int along = D / A::vector;
    constexpr float most = 576460752303423488.f;  // of two of them 256 products are below the largest number
    bool found = false;
#pragma unroll 4
    for (int i = begin * along + int(threadIdx.x); i < end * along; i += int(blockDim.x)) {
      const pack x = *reinterpret_cast<const pack*>(from + i / along * step + i % along * A::vector);
#pragma unroll
      for (int e = 0; e < A::vector; ++e) found |= !(fabsf(widen(x.v[e])) < most);
    }
    return found;
  }
  static CA_INLINE float widen_mask(typename A::bias_number x) {
    if constexpr (A::chooses) return x ? 1.f : 0.f;
    else return widen(x);
  }
  CA_INLINE float scaled(float score, int query, int key, float scale = A::scale) const {
    score = bounded(score * scale);
    if constexpr (A::biased)
      if (query < A::queries && key < A::keys) score = masked(score, widen_mask(bias[query * index(A::bias_row) + key * index(A::bias_key)]));
    return score;
  }

  // A row anew by its warp, term by term: infinities, NaN and the largest numbers do not survive the split of float32, and
  // weights of zero make NaN of them. As in eager, whose blocks have that many queries, in float32 V is multiplied by 0 for
  // keys that a causal mask hides.
  CA_INLINE void exact(int query) const {
    const int lane = threadIdx.x % 32;
    constexpr int eager_rows = is_half<number> ? 1 : D > 64 ? 32 : 64, each = (D + 31) / 32;
    const int stop = A::all_keys ? A::keys : keys_for((query / eager_rows + 1) * eager_rows);
    float high = -INFINITY, all = 0.f, own[each];
#pragma unroll 1
    for (int key = lane; key < stop; key += 32) high = fmaxf(high, exact_score(query, key));
#pragma unroll
    for (int by = 1; by < 32; by *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, by));
    if (high == -INFINITY) high = 0.f;
#pragma unroll
    for (int i = 0; i < each; ++i) own[i] = 0.f;
#pragma unroll 1
    for (int from = 0; from < stop; from += 32) {
      const float weight = from + lane < stop ? expf(exact_score(query, from + lane) - high) : 0.f;
      all += weight;
#pragma unroll 1
      for (int key = from; key < from + 32 && key < stop; ++key) {
        const float x = __shfl_sync(~0u, weight, key - from);
#pragma unroll
        for (int i = 0; i < each; ++i)
          if (32 * i + lane < D) own[i] = fmaf(x, widen(v[key * index(A::v_row) + 32 * i + lane]), own[i]);
      }
    }
#pragma unroll
    for (int by = 1; by < 32; by *= 2) all += __shfl_xor_sync(~0u, all, by);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (32 * i + lane < D) out[query * index(A::o_row) + 32 * i + lane] = narrow<number>(own[i] * share(all));
  }
  CA_INLINE float exact_score(int query, int key) const {
    float x = 0.f;
#pragma unroll 1
    for (int d = 0; d < D; ++d) x = fmaf(widen(q[query * index(A::q_row) + d]) * A::early, widen(k[key * index(A::k_row) + d]), x);
    return seen(query, key) ? scaled(x, query, key, A::late) : hidden(bounded(x * A::late), key);
  }
};
// Called, and not inlined, with nothing of the caller's state: what is rare must not take registers.
template <class A> __device__ __noinline__ void exact_row(attention_head<A> head, int query) { head.exact(query); }

template <class A> __device__ __noinline__ bool keys_leak(attention_head<A> head, int first, int rows, int stop) {
  return head.leaks(first, rows, stop);
}

// Rows of a warp, from query `first` on, that tensor cores did not get right.
template <class A> CA_INLINE void repair(const attention_head<A>& head, const int* wrong, int rows, int first) {
#pragma unroll 1
  for (int row = 0; row < rows; ++row)
    if (wrong[row] && first + row < A::queries) exact_row(head, first + row);
}

}  // namespace ca
