// As `contract_halo.cuh`, for transposed convolutions with a stride: a block has all phases of its box. An image split once
// serves them all, a fragment of it all phases that have weights for its tap, and nothing is multiplied for the others.

namespace ca {

// Visits says, as constants: how many `phases`; what a chunk is multiplied by, `count` times, tap by tap: `tap(v)`, `phase(v)`;
// and of the last chunk, where 8 channels or fewer are left for it, `pairs` times: the taps `first(v)` and `second(v)`, `taps`
// where there is none, of phase `paired(v)`. A warp has WarpN columns of each phase.
template <int TileM, int TileN, int WarpM, int WarpN, int Positions, int Channels, class Visits, int Near>
struct phased_contraction : halo_pieces<TileM / WarpM * (TileN / WarpN) * 32, Positions, Channels, Near> {
  using pieces_of = halo_pieces<TileM / WarpM * (TileN / WarpN) * 32, Positions, Channels, Near>;
  using pieces_of::chunks, pieces_of::narrow, pieces_of::part_floats, pieces_of::parts;
  static constexpr int warps_n = TileN / WarpN, fragments_m = WarpM / 16, fragments_n = WarpN / 8;
  static constexpr int together = fragments_n % 2 ? 1 : 2;  // fragments whose weights a lane reads at once
  static constexpr int step_words = parts * TileN * 8;
  float sum[Visits::phases][fragments_m][fragments_n][4];
  unsigned left[fragments_m][parts][4], right[parts][fragments_n][2], next[parts][fragments_n][2];

  CA_INLINE phased_contraction() {
#pragma unroll
    for (int f = 0; f < Visits::phases; ++f)
#pragma unroll
      for (int i = 0; i < fragments_m; ++i)
#pragma unroll
        for (int j = 0; j < fragments_n; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[f][i][j][e] = 0.f;
  }
  static CA_INLINE int warp_row() { return int(threadIdx.x) / 32 / warps_n * WarpM; }
  static CA_INLINE int warp_column() { return int(threadIdx.x) / 32 % warps_n * WarpN; }

  // As that of `halo_contraction`.
  template <class Place, class Row, class Tap>
  CA_INLINE void add(float* shared, const float* image, int apart, const int* weights, Place place, Row row, Tap tap) {
    const int lane = threadIdx.x % 32, half = lane / 16;
    int start[fragments_m];
#pragma unroll
    for (int i = 0; i < fragments_m; ++i) start[i] = row(warp_row() + 16 * i + lane % 16);
    weights += warp_column() * 8 + lane * together * 2;
    read(weights);
    pieces_of::begin(shared, image, apart, place);
#pragma unroll 1
    for (int c = 0; c < chunks - narrow; ++c) {
      pieces_of::turn(shared, image, apart, c);
      visit<0>(shared + half * Positions * 4, start, weights, tap);
    }
    if constexpr (narrow) {
      pieces_of::turn(shared, image, apart, chunks - 1);
      visit_pair<0>(shared, half, start, weights, tap);
    }
    __syncthreads();
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

  // The weights of the next step, which are under way while the last ones are multiplied.
  CA_INLINE void read(const int*& weights) {
    read_fragments<TileN, fragments_n>(next, weights);
    weights += step_words;
  }

  template <int Phase> CA_INLINE void multiply(const int*& weights) {
#pragma unroll
    for (int p = 0; p < parts; ++p)
#pragma unroll
      for (int j = 0; j < fragments_n; ++j) right[p][j][0] = next[p][j][0], right[p][j][1] = next[p][j][1];
    read(weights);
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

  // Hands the sums of `Near_phases` phases from the `outer`-th so many on, with their rows and columns: those of phases lie
  // next to each other.
  template <int Near_phases, class Take> CA_INLINE void each(int outer, Take take) const {
    const int lane = threadIdx.x % 32, row = warp_row() + lane / 4, column = warp_column() + lane % 4 * 2;
#pragma unroll
    for (int f = 0; f < Visits::phases; ++f) {
      if (f / Near_phases != outer) continue;
#pragma unroll
      for (int i = 0; i < fragments_m; ++i)
#pragma unroll
        for (int j = 0; j < fragments_n; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            take(row + 16 * i + 8 * (e / 2), (column + 8 * j + e % 2) * Near_phases + f % Near_phases, sum[f][i][j][e]);
    }
  }
};

}  // namespace ca
