// As `contract_halo.cuh`, for transposed convolutions with a stride: a block has all phases of its box. An image split once
// serves them all, a fragment of it all phases that have weights for its tap, and nothing is multiplied for the others.

namespace ca {

// Visits says, as constants: how many `phases`; what a chunk is multiplied by, `count` times, tap by tap: `tap(v)`, `phase(v)`;
// and of the last chunk, where 8 channels or fewer are left for it, `pairs` times: the taps `first(v)` and `second(v)`, `taps`
// where there is none, of phase `paired(v)`. A warp has WarpN columns of each phase.
template <int TileM, int TileN, int WarpM, int WarpN, int Positions, int Channels, class Visits, int Near, int Parts>
struct phased_contraction
    : halo_tiles<phased_contraction<TileM, TileN, WarpM, WarpN, Positions, Channels, Visits, Near, Parts>, Visits::phases, TileM, TileN, WarpM, WarpN, Positions, Channels, Near, Parts> {
  using tiles_of = halo_tiles<phased_contraction, Visits::phases, TileM, TileN, WarpM, WarpN, Positions, Channels, Near, Parts>;
  using tiles_of::fragments_m, tiles_of::fragments_n, tiles_of::part_floats, tiles_of::parts, tiles_of::right, tiles_of::sum;
  unsigned left[fragments_m][parts][4];

  template <class Tap>
  CA_INLINE void multiply_chunk(const float* pieces, int half, const int (&start)[fragments_m], const int*& weights, Tap tap) {
    visit<0>(pieces + half * Positions * 4, start, weights, tap);
  }
  template <class Tap>
  CA_INLINE void multiply_last(const float* pieces, int half, const int (&start)[fragments_m], const int*& weights, Tap tap) {
    visit_pair<0>(pieces, half, start, weights, tap);
  }

  template <int V, class Tap> CA_INLINE void visit(const float* pieces, const int (&start)[fragments_m], const int*& weights, Tap tap) {
    constexpr int own = Visits::tap(V), before = V == 0 ? -1 : Visits::tap(V > 0 ? V - 1 : 0);
    if constexpr (own != before) load(pieces + tap(own) * 4, start);
    multiply<Visits::phase(V)>(weights);
    if constexpr (V + 1 < Visits::count) visit<V + 1>(pieces, start, weights, tap);
  }

  template <int V, class Tap>
  CA_INLINE void visit_pair(const float* pieces, int half, const int (&start)[fragments_m], const int*& weights, Tap tap) {
    constexpr int first = Visits::first(V), second = Visits::second(V) < Visits::taps ? Visits::second(V) : first;
    load(pieces + (half ? tap(second) : tap(first)) * 4, start);
    multiply<Visits::paired(V)>(weights);
    if constexpr (V + 1 < Visits::pairs) visit_pair<V + 1>(pieces, half, start, weights, tap);
  }

  CA_INLINE void load(const float* pieces, const int (&start)[fragments_m]) {
#pragma unroll
    for (int i = 0; i < fragments_m; ++i)
#pragma unroll
      for (int p = 0; p < parts; ++p) load_matrices<false>(left[i][p], pieces + start[i] * 4 + p * part_floats);
  }

  template <int Phase> CA_INLINE void multiply(const int*& weights) {
    tiles_of::take(weights);
    float own[fragments_m][fragments_n][4];
#pragma unroll
    for (int i = 0; i < fragments_m; ++i)
#pragma unroll
      for (int j = 0; j < fragments_n; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) own[i][j][e] = 0.f;
#pragma unroll
    for (int both = parts - 1; both >= 0; --both)  // small products first
#pragma unroll
      for (int p = 0; p <= both; ++p)
#pragma unroll
        for (int i = 0; i < fragments_m; ++i)
#pragma unroll
          for (int j = 0; j < fragments_n; ++j) multiply_bf16(own[i][j], left[i][p], right[both - p][j]);
#pragma unroll
    for (int i = 0; i < fragments_m; ++i)
#pragma unroll
      for (int j = 0; j < fragments_n; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[Phase][i][j][e] += own[i][j][e];
  }
};

}  // namespace ca
