// Attention for the cpu target. Scores are kept transposed: keys are the rows of a tile and 2W queries its columns, so
// that K is read in place, the softmax of a query stays in one lane, and P is already the panel that P V wants.

namespace ca {

// What torch's kernel takes at a time: a query multiplies V by 0 for masked keys up to the end of such a block.
constexpr int64_t EAGER_KEYS = 512;
// Terms between two additions to a total, of a softmax's sum (where one weight may outweigh many others, each of which
// is rounded the same way) and of P V.
constexpr int64_t WEIGHT_RUN = 8, VALUE_RUN = 128;

template <int W> using lanes_of = typename raw<float, W>::type;

// The larger one; the second where one is NaN.
template <int W> CA_INLINE lanes_of<W> larger(lanes_of<W> a, lanes_of<W> b) {
#if defined(__AVX512F__)
  if constexpr (W == 16) return (lanes_of<W>)_mm512_max_ps((__m512)a, (__m512)b);
#endif
#if defined(__AVX__)
  if constexpr (W == 8) return (lanes_of<W>)_mm256_max_ps((__m256)a, (__m256)b);
#endif
  return a > b ? a : b;
}

// exp(x) for x <= 0 to about two units, 0 below the normal range. NaN stays.
template <int W> CA_INLINE lanes_of<W> exp_of_negative(lanes_of<W> x) {
  typedef typename raw<int32_t, W>::type I;
  static constexpr float c[] = {0.499992311000824f, 0.16667114198207855f, 0.041890159249305725f, 0.008312520571053028f};
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const lanes_of<W> z = x * 1.44269504f + magic;
  const vec<float, W> r = {x - (z - magic) * 0.693147182f};
  const lanes_of<W> p = horner(r, c).x * (r.x * r.x) + (r.x + 1.0f);
  const lanes_of<W> e = (lanes_of<W>)((I)p + ((I)z << 23)) + x * 0.0f;  // NaN may have lost its bits
  return x < -87.33654f ? lanes_of<W>{} : e;
}

// One task: `rows` queries of one head from `first` on. A holds sizes, strides and the schedule as constants:
// width, tile (rows of a tile), size (of a head), queries, keys, rows, block (keys at a time), q_row .. o_row, causal,
// masked, mask_query, mask_key (strides of the mask), scale.
template <class A> struct attention {
  static constexpr int W = A::width, R = A::tile;
  static constexpr int64_t P = 2 * W, D = A::size, groups = (D + R - 1) / R;
  static constexpr int64_t block = A::block < A::keys ? A::block : A::keys;
  static constexpr bool one_block = block == A::keys;
  static constexpr int64_t kept = one_block ? 1 : A::rows / P;
  static_assert(A::rows % P == 0 && (!A::causal || EAGER_KEYS % A::rows == 0));
  typedef lanes_of<W> V;

  struct state { V top[2], sum[2]; };

  const float *q, *k, *v, *mask;
  float* out;
  state states[kept];
  alignas(64) float queries[kept][D * P];
  alignas(64) float sums[kept][D * P];
  alignas(64) float scores[block * P];
  alignas(64) float masks[A::masked ? block * P : 1];
  alignas(64) float values[groups * block * R + 16];
  alignas(64) float tainted[A::causal ? D : 1];
  int64_t tainted_from;

  __attribute__((noinline)) void run(int64_t first) {
    const int64_t stop = imin(first + A::rows, A::queries), panels = (stop - first + P - 1) / P;
    const int64_t last = A::causal ? imin(first + panels * P, A::keys) : A::keys;
    if constexpr (A::causal) {
      for (int64_t d = 0; d < D; ++d) tainted[d] = 0.0f;
      tainted_from = imin(A::keys, (first / EAGER_KEYS + 1) * EAGER_KEYS);
    }
    for (int64_t from = 0; from < last; from += block) {
      const int64_t count = imin(block, last - from);
      copy_values(from, count);
      for (int64_t p = panels - 1; p >= 0; --p) {
        const int64_t row = first + p * P;
        const int64_t seen = A::causal ? imin(row + P - from, count) : count;
        if (seen <= 0) continue;
        const int64_t place = one_block ? 0 : p;
        if (from == 0) pack<P, A::q_row, 1>(q + row * A::q_row, D, A::queries - row, queries[place]);
        score(row, from, seen, place);
        V factor[2];
        soften(states[place], seen, from == 0, factor);
        accumulate(seen, from == 0, factor, place);
        if constexpr (one_block) finish(row, place);
      }
    }
    if constexpr (!one_block)
      for (int64_t p = panels - 1; p >= 0; --p) finish(first + p * P, p);
  }

  // values[group][key][R], R neighbouring columns of V at a time.
  CA_INLINE void copy_values(int64_t from, int64_t count) {
    for (int64_t key = 0; key < count; ++key) {
      const float* row = v + (from + key) * A::v_row;
      float* to = values + key * R;
      int64_t g = 0;
      for (; (g + 1) * R <= D; ++g, to += block * R) memcpy(to, row + g * R, R * sizeof(float));
      if constexpr (D % R != 0) memcpy(to, row + g * R, D % R * sizeof(float));
    }
  }

  CA_INLINE void score(int64_t row, int64_t from, int64_t seen, int64_t place) {
    for (int64_t key = 0; key < seen; key += R)
      product_rows<R, W, A::k_row, 1>(imin(R, seen - key), k + (from + key) * A::k_row, queries[place], D, scores + key * P);
    if constexpr (A::masked) add_mask(row, from, seen);
    if constexpr (A::causal)
      for (int64_t key = imax(row - from + 1, 0); key < seen; ++key)
        for (int64_t lane = 0; lane < imin(P, from + key - row); ++lane) scores[key * P + lane] = -limits<float>::inf();
  }

  CA_INLINE void add_mask(int64_t row, int64_t from, int64_t seen) {
    const float* m = mask + row * A::mask_query + from * A::mask_key;
    if constexpr (A::mask_query != 0) pack<P, A::mask_query, A::mask_key>(m, seen, A::queries - row, masks);
    for (int64_t key = 0; key < seen; ++key)
      for (int64_t h = 0; h < P; h += W) {
        V s = load<W>(scores + key * P + h).x, b;
        if constexpr (A::mask_query != 0) b = load<W>(masks + key * P + h).x;
        else b = spread<W>(m[key * A::mask_key]);
        store<W>(scores + key * P + h, vec<float, W>{s * A::scale + b});
      }
  }

  // scores <- exp(scores - top), and what came before is to be multiplied by `factor`.
  CA_INLINE void soften(state& own, int64_t seen, bool begins, V (&factor)[2]) {
    constexpr float unit = A::masked ? 1.0f : A::scale;
    const V none = V{} - limits<float>::inf();
    V top[2] = {begins ? none : own.top[0], begins ? none : own.top[1]}, next[2] = {none, none};
    int64_t key = 0;
    for (; key + 2 <= seen; key += 2)
      for (int h = 0; h < 2; ++h) {
        top[h] = larger<W>(load<W>(scores + key * P + h * W).x, top[h]);
        next[h] = larger<W>(load<W>(scores + key * P + P + h * W).x, next[h]);
      }
    for (int h = 0; h < 2; ++h) {
      if (key < seen) next[h] = larger<W>(load<W>(scores + key * P + h * W).x, next[h]);
      top[h] = larger<W>(next[h], top[h]);
    }
    V low[2], total[2] = {V{}, V{}}, lost[2] = {V{}, V{}};
    for (int h = 0; h < 2; ++h) low[h] = top[h] == none ? V{} : top[h];  // nothing but masked keys
    for (key = 0; key < seen;) {
      V run[2] = {V{}, V{}};
      for (const int64_t stop = imin(key + WEIGHT_RUN, seen); key < stop; ++key)
        for (int h = 0; h < 2; ++h) {
          const V e = exp_of_negative<W>((load<W>(scores + key * P + h * W).x - low[h]) * unit);
          store<W>(scores + key * P + h * W, vec<float, W>{e});
          run[h] += e;
        }
      for (int h = 0; h < 2; ++h) {
        const V sum = total[h] + run[h], part = sum - total[h];
        lost[h] += (total[h] - (sum - part)) + (run[h] - part);
        total[h] = sum;
      }
    }
    for (int h = 0; h < 2; ++h) {
      total[h] += lost[h];
      if (!begins) {
        factor[h] = exp_of_negative<W>((own.top[h] - low[h]) * unit);
        total[h] += own.sum[h] * factor[h];
      }
      own.top[h] = top[h];
      own.sum[h] = total[h];
    }
  }

  // sums <- sums * factor + V^T P, in runs of keys.
  CA_INLINE void accumulate(int64_t seen, bool begins, V (&factor)[2], int64_t place) {
    alignas(64) float tile[R * P];
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t key = 0; key < seen; key += VALUE_RUN) {
        const int64_t high = imin(R, D - g * R), run = imin(VALUE_RUN, seen - key);
        const float* part = values + (g * block + key) * R;
        float* to = sums[place] + g * R * P;
        const bool starts = begins && key == 0;
        product_rows<R, W, 1, R>(high, part, scores + key * P, run, starts ? to : tile);
        if (starts) continue;
        for (int64_t i = 0; i < high; ++i)
          for (int h = 0; h < 2; ++h) {
            float* at = to + i * P + h * W;
            const V old = load<W>(at).x, more = load<W>(tile + i * P + h * W).x;
            store<W>(at, vec<float, W>{key ? old + more : old * factor[h] + more});
          }
      }
  }

  CA_INLINE void finish(int64_t row, int64_t place) {
    const state& own = states[place];
    float* sum = sums[place];
    if constexpr (A::causal) taint(imin(row + P, A::keys));
    for (int h = 0; h < 2; ++h) {
      const V one = V{} + 1.0f, share = one / (own.sum[h] == V{} ? one : own.sum[h]);
      for (int64_t d = 0; d < D; ++d) {
        V x = load<W>(sum + d * P + h * W).x * share;
        if constexpr (A::causal) x += spread<W>(tainted[d]);
        store<W>(sum + d * P + h * W, vec<float, W>{x});
      }
    }
    const int64_t valid = imin(P, A::queries - row);
    alignas(64) float turned[P * 8];
    for (int64_t d = 0; d < D; d += 8) {
      pack<8, P, 1>(sum + d * P, P, 8, turned);
      for (int64_t i = 0; i < valid; ++i) memcpy(out + (row + i) * A::o_row + d, turned + i * 8, 8 * sizeof(float));
    }
  }

  // NaN where a key that no query of the panel sees has an infinity or NaN in V: torch multiplies it by 0.
  CA_INLINE void taint(int64_t from) {
    for (int64_t key = from; key < tainted_from; ++key)
      for (int64_t d = 0; d < D; ++d) tainted[d] += v[key * A::v_row + d] * 0.0f;
    tainted_from = imin(tainted_from, from);
  }
};

}  // namespace ca
