// Rows mixed by weights that are scores, O = end(weigh(Q K^T) V), as `attention_tiles` multiplies.

namespace ca {

// A holds what it does for `attention_tiles`, and out_pairs, whether two neighbouring results may be stored at once;
// summed, whether the end needs the sums of weights; parts, blocks that share the keys of a row, of whose sums another kernel
// makes results; part_keys, those of each; and the functions `weigh` and `end` of what is given, the number of
// the matrix, a place, and the values there.
template <class A> struct mixing_head {
  static constexpr int D = A::size, E = A::width;
  typedef typename A::index index;
  const float *q, *k, *v;
  float* out;
  typename A::operands given;
  int matrix, begin, end;  // keys of the block
  float *sums, *totals;  // where there are parts: those of this one

  CA_INLINE float weight(int row, int key, float score) const { return A::weigh(given, matrix, row, key, score); }
  CA_INLINE float result(int row, int column, float mixed, float total) const {
    return A::end(given, matrix, row, column, mixed, total);
  }

  // Rows anew, term by term: infinities, NaN and the largest numbers do not survive the split of float32. Half of all rows may
  // need it, where weights overflow. So lanes read neighbouring elements of a key, for `together` rows at once, and what are
  // NaN altogether are done: no more terms change that.
  static constexpr int together = 4, turn = 4, scores = together * turn, terms = (D + 31) / 32, each = (E + 31) / 32;
  // Keys that the rows' own warp looks at. Most rows are NaN by then; for others all warps of the block share the keys.
  static constexpr int few = 8 * turn;

  // What some keys give rows: of columns 32 apart own, and all, each lane's part of the sum of weights. row(i): the i-th of
  // the rows; they may be the same. Ends early, and says so, where all is NaN, or where another warp says that: `done` is in
  // shared memory, or null.
  template <class Row>
  CA_INLINE bool exact(Row row, int first_key, int last, const volatile int* done, float (&own)[together][each], float& all) const {
    const int lane = threadIdx.x % 32;
    float query[together][terms];
    all = 0.f;
#pragma unroll
    for (int r = 0; r < together; ++r) {
#pragma unroll
      for (int i = 0; i < each; ++i) own[r][i] = 0.f;
#pragma unroll
      for (int i = 0; i < terms; ++i) query[r][i] = 32 * i + lane < D ? q[row(r) * index(A::q_row) + 32 * i + lane] : 0.f;
    }
#pragma unroll 1
    for (int from = first_key; from < last; from += turn) {
      if (done != nullptr && __any_sync(~0u, *done)) break;
      float part[scores];
#pragma unroll
      for (int key = 0; key < turn; ++key) {
#pragma unroll
        for (int r = 0; r < together; ++r) part[together * key + r] = 0.f;
#pragma unroll
        for (int i = 0; i < terms; ++i) {
          const float x = 32 * i + lane < D && from + key < last ? k[(from + key) * index(A::k_row) + 32 * i + lane] : 0.f;
#pragma unroll
          for (int r = 0; r < together; ++r) part[together * key + r] = fmaf(query[r][i], x, part[together * key + r]);
        }
      }
      bool small = true;
#pragma unroll
      for (int i = 0; i < scores; ++i) small = small && fabsf(part[i]) < 1e36f;
      const int own_key = from + lane % scores / together;
      float x = own_sum<scores / 2>(part);
      if (__any_sync(~0u, !small)) x = exact_score(row(lane % together), own_key < last ? own_key : last - 1);
      x = own_key < last ? weight(row(lane % together), own_key, x) : 0.f;
      all += x;
#pragma unroll
      for (int key = 0; key < turn; ++key) {
        float v_of[each];
#pragma unroll
        for (int i = 0; i < each; ++i)
          v_of[i] = 32 * i + lane < E && from + key < last ? v[(from + key) * index(A::v_row) + 32 * i + lane] : 0.f;
#pragma unroll
        for (int r = 0; r < together; ++r) {
          const float one = __shfl_sync(~0u, x, together * key + r);
#pragma unroll
          for (int i = 0; i < each; ++i) own[r][i] = fmaf(one, v_of[i], own[r][i]);
        }
      }
      if (are_nan(own, all)) return true;
    }
    return false;
  }
  // What lanes have of all scores, added up, so that each has one score: that of its number. Indices must be known to the
  // compiler, which does not unroll loops whose step is halved, and the scores would be in memory.
  template <int By> static CA_INLINE float own_sum(float (&part)[scores]) {
    if constexpr (By == 0) {
#pragma unroll
      for (int by = scores; by < 32; by += by) part[0] += __shfl_xor_sync(~0u, part[0], by);
      return part[0];
    } else {
      const bool upper = threadIdx.x % 32 & By;
#pragma unroll
      for (int i = 0; i < By; ++i) {
        const float given = upper ? part[i] : part[i + By], kept = upper ? part[i + By] : part[i];
        part[i] = kept + __shfl_xor_sync(~0u, given, By);
      }
      return own_sum<By / 2>(part);
    }
  }
  // A row's sum of weights, of its lanes' parts.
  static CA_INLINE float total_of(int r, float all) {
#pragma unroll
    for (int by = together; by < scores; by *= 2) all += __shfl_xor_sync(~0u, all, by);
    return __shfl_sync(~0u, all, r);
  }
  CA_INLINE void store(int row, int column, float mixed, float total) const {
    if constexpr (A::parts > 1) {
      sums[int64_t(row) * E + column] = mixed;
      if (column == 0) totals[row] = total;
    } else {
      out[row * index(A::o_row) + column] = result(row, column, mixed, total);
    }
  }
  // In order: what overflows on the way is infinite, though the sum need not be.
  CA_INLINE float exact_score(int row, int key) const {
    float x = 0.f;
#pragma unroll 1
    for (int d = 0; d < D; ++d) x = fmaf(q[row * index(A::q_row) + d], k[key * index(A::k_row) + d], x);
    return x;
  }
  // Whether all that a warp has of rows is NaN, and so are the rows' sums of weights where they matter.
  template <int N> static CA_INLINE bool are_nan(const float (&own)[together][N], float all) {
    const int lane = threadIdx.x % 32;
    int other = 0, numbers = 0;
#pragma unroll
    for (int r = 0; r < together; ++r)
#pragma unroll
      for (int i = 0; i < N; ++i) other |= 32 * i + lane < E && own[r][i] == own[r][i];
    if constexpr (A::summed) {
      numbers = all == all;  // of the lanes of a row, one is enough
#pragma unroll
      for (int by = together; by < scores; by *= 2) numbers &= __shfl_xor_sync(~0u, numbers, by);
    }
    return !__any_sync(~0u, other | numbers);
  }
};
// Up to `together` of 16 rows, of which each has a bit: those taken are removed.
struct few_rows {
  int first;
  unsigned digits;
  CA_INLINE few_rows(int first, unsigned& wrong, int count) : first(first), digits(0) {
    unsigned row = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (wrong != 0) row = __ffs(int(wrong)) - 1, wrong &= wrong - 1;
      digits |= row << 4 * i;
    }
  }
  CA_INLINE int operator()(int i) const { return first + int(digits >> 4 * i & 15); }
};
// Called, and not inlined, with nothing of the caller's state: what is rare must not take registers. wrong: a bit for each row
// from `first` on. Gives the bits of those that are not done after a few keys.
template <class A> __device__ __noinline__ unsigned exact_mixed_rows(mixing_head<A> head, int first, unsigned wrong) {
  const bool whole = head.end - head.begin <= head.few;
  const int lane = threadIdx.x % 32;
  unsigned left = 0;
#pragma unroll 1
  while (wrong != 0) {
    const unsigned before = wrong;
    const few_rows row(first, wrong, head.together);
    float own[head.together][head.each], all;
    if (!head.exact(row, head.begin, whole ? head.end : head.begin + head.few, nullptr, own, all) && !whole) {
      left |= before & ~wrong;
      continue;
    }
#pragma unroll
    for (int r = 0; r < head.together; ++r) {
      const float total = head.total_of(r, all);
#pragma unroll
      for (int i = 0; i < head.each; ++i)
        if (32 * i + lane < head.E) head.store(row(r), 32 * i + lane, own[r][i], total);
    }
  }
  return left;
}
// The rest of them, by all warps, which share the keys: one after the other, the keys of a few rows would keep all others waiting.
// Team: the warps. wrong: of each 16 rows of the block. memory: for what warps have of a row.
template <class A, class Team>
__device__ __noinline__ void exact_mixed_rows_together(mixing_head<A> head, int first, const unsigned* wrong, int* done, float* memory) {
  constexpr int along = head.E + 1, all_of = head.together * along, turn = head.turn;
  const int lane = threadIdx.x % 32, warp = Team::own_warp();
  const int keys = ((head.end - head.begin + Team::warps - 1) / Team::warps + turn - 1) / turn * turn;
  const int from = head.begin + warp * keys, to = from + keys < head.end ? from + keys : head.end;
#pragma unroll 1
  for (int unit = 0; unit < A::rows / 16; ++unit) {
    unsigned left = wrong[unit];
#pragma unroll 1
    while (left != 0) {
      const few_rows row(first + 16 * unit, left, head.together);
      float own[head.together][head.each], all;
      if (head.exact(row, from, to, done, own, all) && lane == 0) *done = 1;
#pragma unroll
      for (int r = 0; r < head.together; ++r) {
        float* const mine = memory + warp * all_of + r * along;
        const float total = head.total_of(r, all);
#pragma unroll
        for (int i = 0; i < head.each; ++i)
          if (32 * i + lane < head.E) mine[32 * i + lane] = own[r][i];
        if (lane == 0) mine[head.E] = total;
      }
      Team::meet_warps();
      if (warp == 0 && lane == 0) *done = 0;
#pragma unroll 1
      for (int i = 32 * warp + lane; i < head.together * head.E; i += 32 * Team::warps) {
        const int r = i / head.E, column = i % head.E;
        float mixed = 0.f, total = 0.f;
#pragma unroll 1
        for (int w = 0; w < Team::warps; ++w) {
          const float* const its = memory + w * all_of + r * along;
          mixed += its[column], total += its[head.E];
        }
        head.store(row(r), column, mixed, total);
      }
      Team::meet_warps();
    }
  }
}

// The rows of a warp, 16 for each of F: a thread has a fourth of two of them, 8 apart, as the tensor core deals out weights of
// 8 * N keys and columns of results.
template <class A, int F, int N> struct mixed_rows {
  static constexpr int columns = A::width / 8;
  static constexpr float largest = 3.402823466e38f, smallest = 0x1p-110f;
  typedef typename A::index index;
  typedef mixing_head<A> head_of;

  float total[F][2];
  bool bad[F][2];

  static CA_INLINE int group() { return threadIdx.x % 32 / 4; }
  static CA_INLINE int member() { return threadIdx.x % 4; }
  CA_INLINE void begin() {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int h = 0; h < 2; ++h) total[f][h] = 0.f, bad[f][h] = false;
  }

  // score <- the weights of a tile; no key, no weight. first: row of the warp. Only the last tile asks whether a key is one:
  // that takes a branch for each element, and the next one's work waits for it.
  CA_INLINE void weigh(const head_of& head, float (&score)[F][N][4], int first, int from) {
    if (A::keys % A::block == 0 || from + A::block <= A::keys) weigh_keys<true>(head, score, first, from);
    else weigh_keys<false>(head, score, first, from);
  }
  template <bool Whole> CA_INLINE void weigh_keys(const head_of& head, float (&score)[F][N][4], int first, int from) {
#pragma unroll
    for (int f = 0; f < F; ++f) {
      float part[2] = {0.f, 0.f};
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int query = first + 16 * f + group() + 8 * (e / 2), key = from + 8 * j + 2 * member() + e % 2;
          const int row = query < A::queries ? query : A::queries - 1, column = Whole || key < A::keys ? key : A::keys - 1;
          float& x = score[f][j][e];
          // a weight may be a number where the score is none, and the split made none of a score that is infinite
          bad[f][e / 2] |= !(fabsf(x) < largest);
          x = head.weight(row, column, x);
          if (!Whole && key >= A::keys) x = 0.f;
          part[e / 2] += x;
        }
#pragma unroll
      for (int h = 0; h < 2; ++h) total[f][h] += part[h];
    }
  }

  // first: row of the warp. Team: all warps of the block that come here; memory: which no one needs any more when they have met.
  template <class Team> CA_INLINE void finish(const head_of& head, const float (&sum)[F][columns][4], int first, float* memory) {
#pragma unroll
    for (int f = 0; f < F; ++f)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first + 16 * f + group() + 8 * h;
        float all = total[f][h];
#pragma unroll
        for (int by = 1; by < 4; by *= 2) all += __shfl_xor_sync(~0u, all, by);
        // of weights that are all below `smallest` the split holds too little for a quotient by their sum
        bad[f][h] |= A::summed && (!(fabsf(all) < largest) || (all != 0.f && fabsf(all) < A::keys * smallest));
#pragma unroll
        for (int j = 0; j < columns; ++j) {
          const float x = sum[f][j][2 * h], y = sum[f][j][2 * h + 1];
          bad[f][h] |= !(fabsf(x) < largest && fabsf(y) < largest);
          if (row < A::queries) store(head, row, 8 * j + 2 * member(), x, y, all);
        }
        if constexpr (A::parts > 1)
          if (row < A::queries && member() == 0) head.totals[row] = all;
        bad[f][h] = bad[f][h] && row < A::queries;
      }
    repair<Team>(head, first, memory);
  }
  static CA_INLINE void store(const head_of& head, int row, int column, float x, float y, float all) {
    float* const to = A::parts > 1 ? head.sums + int64_t(row) * A::width + column : head.out + row * index(A::o_row) + column;
    if constexpr (A::parts == 1) x = head.result(row, column, x, all), y = head.result(row, column + 1, y, all);
    if constexpr (A::out_pairs || A::parts > 1) {
      const float2 both = {x, y};
      *reinterpret_cast<float2*>(to) = both;
    } else {
      to[0] = x, to[1] = y;
    }
  }
  // Rows that tensor cores did not get right. What was stored of them is stored anew.
  template <class Team> CA_INLINE void repair(const head_of& head, int first, float* memory) const {
    constexpr int units = A::rows / 16;
    static_assert(Team::warps * F == units && units + 1 + Team::warps * head_of::together * (A::width + 1) <= Team::most_floats);
    unsigned* const wrong_of = reinterpret_cast<unsigned*>(memory);
    int* const done = reinterpret_cast<int*>(memory) + units;
    unsigned left[F];
#pragma unroll
    for (int f = 0; f < F; ++f) {
      unsigned wrong = 0;  // a bit for each of 16 rows
#pragma unroll
      for (int h = 0; h < 2; ++h) wrong |= unsigned(bad[f][h]) << group() + 8 * h;
#pragma unroll
      for (int by = 1; by < 32; by *= 2) wrong |= __shfl_xor_sync(~0u, wrong, by);
      left[f] = wrong != 0 ? exact_mixed_rows(head, first + 16 * f, wrong) : 0;
    }
    Team::meet_warps();
    const int warp = Team::own_warp();
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int f = 0; f < F; ++f) wrong_of[warp * F + f] = left[f];
      if (warp == 0) *done = 0;
    }
    Team::meet_warps();
    unsigned any = 0;
#pragma unroll
    for (int unit = 0; unit < units; ++unit) any |= wrong_of[unit];
    if (any != 0) exact_mixed_rows_together<A, Team>(head, first - 16 * F * warp, wrong_of, done, memory + units + 1);
  }
};

template <class A> struct mixing : attention_tiles<A, mixing_head<A>> {
  typedef attention_tiles<A, mixing_head<A>> tiles_of;
  static constexpr int F = tiles_of::F, tiles_n = tiles_of::tiles_n;
  using tiles_of::head, tiles_of::shared, tiles_of::first, tiles_of::sum, tiles_of::warp_row;

  // All warps of the block.
  struct team {
    static constexpr int warps = tiles_of::warps, most_floats = A::stages * tiles_of::stage_floats;
    static CA_INLINE int own_warp() { return threadIdx.x / 32; }
    static CA_INLINE void meet_warps() { __syncthreads(); }
  };

  // find(block): what this block's head is.
  template <class Find> CA_INLINE void run(float* memory, Find find) {
    mixed_rows<A, F, tiles_n> rows;
    shared = memory;
    head = find(blockIdx.x);
    rows.begin();
    this->mix(head.begin / A::block, (head.end + A::block - 1) / A::block, [&](float (&score)[F][tiles_n][4], int from) {
      rows.weigh(head, score, first + warp_row(), from);
    });
    rows.template finish<team>(head, sum, first + warp_row(), shared);
  }
};

// One result of the sums of all parts, in their order. apart: elements between those of two parts.
template <class A> CA_INLINE float joined(const float* from, int64_t apart) {
  float x = from[0];
#pragma unroll
  for (int part = 1; part < A::parts; ++part) x += from[part * apart];
  return x;
}

}  // namespace ca
