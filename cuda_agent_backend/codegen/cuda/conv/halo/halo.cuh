// Sums of products over windows of an image, in float32's accuracy, or by numbers of two parts, where TF32 will do: a block has a box of places and copies what their windows
// see, the box with its halo, once for each chunk of 16 channels; each number of it is split once, whatever the number of taps.
//
// The parts lie in shared memory as [part][half of the chunk][place in the halo] pieces of 8 channels, 16 bytes: what the lanes
// of a warp load as a fragment are pieces of neighbouring places, which do not meet in a bank, and a tap is a distance. The
// weights come split, in the order of fragments (`k_weights`), from memory. Every 16 terms are summed from zero and added to the
// others outside of the tensor core, which cuts off what it adds (see `contract.cuh`; so are infinities as there).

namespace ca {

// A block's pieces. Positions: of the halo. Near: how many channels that are next to each other in memory are copied together;
// 0 where it is places that are next to each other.
template <int Threads, int Positions, int Channels, int Near, int Parts> struct halo_pieces {
  static constexpr int threads = Threads, parts = Parts, chunk = 16, piece = 8, rest = Channels % chunk;
  static constexpr bool narrow = rest > 0 && rest <= piece;  // the last chunk, where a step has the channels of two taps
  static constexpr int chunks = (Channels + chunk - 1) / chunk, part_floats = 2 * Positions * 4;

  // Finds the places of all positions, -1 where there is none, and has the first chunk copied. Image: its first channel,
  // `apart` numbers before the next. place(position, there): how far from `image` a position of the halo lies.
  template <class Place> static CA_INLINE void begin(float* shared, const float* image, int apart, Place place) {
    int* const from = places(shared);
    for (int position = threadIdx.x; position < Positions; position += threads) {
      bool there;
      const int found = place(position, there);
      from[position] = there ? found : -1;
    }
    __syncthreads();
    fetch(raw(shared), image, apart, from, 0);
    copy_commit();
  }

  // Splits a chunk, which all then multiply, and has the next one copied meanwhile.
  static CA_INLINE void turn(float* shared, const float* image, int apart, int c) {
    copy_wait<0>();
    __syncthreads();  // all have multiplied the chunk before
    split_pieces(shared, raw(shared));
    __syncthreads();
    if (c + 1 < chunks) fetch(raw(shared), image, apart, places(shared), c + 1);
    copy_commit();
  }

  static CA_INLINE float* raw(float* shared) { return shared + parts * part_floats; }
  static CA_INLINE int* places(float* shared) { return reinterpret_cast<int*>(raw(shared) + chunk * Positions); }

  // Each thread copies and splits the same pieces.
  static CA_INLINE void fetch(float* raw, const float* image, int apart, const int* from, int c) {
#pragma unroll 2
    for (int number = threadIdx.x; number < 2 * Positions; number += threads) {
      const int first = number < Positions ? 0 : piece, position = number < Positions ? number : number - Positions;
      const int at = from[position];
      const float* const own = image + (at < 0 ? 0 : at) + (c * chunk + first) * apart;
      constexpr int width = Near ? Near : 1;
      float* const to = Near ? raw + number * piece : raw + first * Positions + position;
#pragma unroll
      for (int e = 0; e < piece; e += width) {
        const bool there = at >= 0 && (rest == 0 || c * chunk + first + e < Channels);
        copy_async_if<width>(to + e * (Near ? 1 : Positions), own + e * apart, there);
      }
    }
  }

  static CA_INLINE void split_pieces(float* shared, const float* raw) {
#pragma unroll 1
    for (int number = threadIdx.x; number < 2 * Positions; number += threads) {
      split_into<parts, piece / 2> made;
      if constexpr (Near > 0) {
        const float4* const own = reinterpret_cast<const float4*>(raw + number * piece);
        const float4 x = own[0], y = own[1];
        const float eight[piece] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
        for (int e = 0; e < piece; e += 2) made.set(e / 2, eight + e);
      } else {
        const float* const own = raw + (number < Positions ? number : number + (piece - 1) * Positions);
#pragma unroll
        for (int e = 0; e < piece; e += 2) {
          const float both[2] = {own[e * Positions], own[(e + 1) * Positions]};
          made.set(e / 2, both);
        }
      }
#pragma unroll
      for (int p = 0; p < parts; ++p)
        *reinterpret_cast<uint4*>(shared + p * part_floats + number * 4) =
            uint4{made.part[p][0], made.part[p][1], made.part[p][2], made.part[p][3]};
    }
  }
};

// A lane's part of so many fragments of weights of a step.
template <int TileN, int Parts, int Fragments> CA_INLINE void read_fragments(unsigned (&to)[Parts][Fragments][2], const int* weights) {
  constexpr int together = Fragments % 2 ? 1 : 2;
#pragma unroll
  for (int p = 0; p < Parts; ++p)
#pragma unroll
    for (int j = 0; j < Fragments; j += together) {
      const int* const from = weights + p * TileN * 8 + j * 64;
      if constexpr (together == 2) {
        const uint4 v = *reinterpret_cast<const uint4*>(from);
        to[p][j][0] = v.x, to[p][j][1] = v.y, to[p][j + 1][0] = v.z, to[p][j + 1][1] = v.w;
      } else {
        const uint2 v = *reinterpret_cast<const uint2*>(from);
        to[p][j][0] = v.x, to[p][j][1] = v.y;
      }
    }
}

// What the warps of a block do with the pieces of its box, chunk by chunk. Own, which this is a base of, says what a chunk is
// multiplied by: `multiply_chunk(pieces, half, start, weights, tap)`, where a lane has the pieces of its `half` of the channels;
// and where 8 channels or fewer are left for the last chunk, `multiply_last`, where it has one of two taps.
template <class Own, int Sums, int TileM, int TileN, int WarpM, int WarpN, int Positions, int Channels, int Near, int Parts>
struct halo_tiles : halo_pieces<TileM / WarpM * (TileN / WarpN) * 32, Positions, Channels, Near, Parts> {
  using pieces_of = halo_pieces<TileM / WarpM * (TileN / WarpN) * 32, Positions, Channels, Near, Parts>;
  using pieces_of::chunks, pieces_of::narrow, pieces_of::parts;
  static constexpr int warps_n = TileN / WarpN, fragments_m = WarpM / 16, fragments_n = WarpN / 8;
  static constexpr int together = fragments_n % 2 ? 1 : 2;  // fragments whose weights a lane reads at once
  static constexpr int step_words = parts * TileN * 8;
  float sum[Sums][fragments_m][fragments_n][4];
  unsigned right[parts][fragments_n][2], next[parts][fragments_n][2];

  CA_INLINE halo_tiles() {
#pragma unroll
    for (int f = 0; f < Sums; ++f)
#pragma unroll
      for (int i = 0; i < fragments_m; ++i)
#pragma unroll
        for (int j = 0; j < fragments_n; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[f][i][j][e] = 0.f;
  }
  static CA_INLINE int warp_row() { return int(threadIdx.x) / 32 / warps_n * WarpM; }
  static CA_INLINE int warp_column() { return int(threadIdx.x) / 32 % warps_n * WarpN; }

  // Weights: those of the block's columns. row(m): the position that row m's window begins at; tap(t): how far behind that
  // tap t lies; the others as for pieces.
  template <class Place, class Row, class Tap>
  CA_INLINE void add(float* shared, const float* image, int apart, const int* weights, Place place, Row row, Tap tap) {
    Own& own = static_cast<Own&>(*this);
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
      own.multiply_chunk(shared, half, start, weights, tap);
    }
    if constexpr (narrow) {
      pieces_of::turn(shared, image, apart, chunks - 1);
      own.multiply_last(shared, half, start, weights, tap);
    }
    __syncthreads();
  }

  // The weights of the next step, which are under way while the last ones are multiplied.
  CA_INLINE void read(const int*& weights) {
    read_fragments<TileN>(next, weights);
    weights += step_words;
  }
  // The weights of this step, which have come.
  CA_INLINE void take(const int*& weights) {
#pragma unroll
    for (int p = 0; p < parts; ++p)
#pragma unroll
      for (int j = 0; j < fragments_n; ++j) right[p][j][0] = next[p][j][0], right[p][j][1] = next[p][j][1];
    read(weights);
  }

  // Hands sums on, `Together` for each place and column, from the `outer`-th so many on, with their rows and columns in the tile:
  // those of one place and column lie next to each other.
  template <int Together = 1, class Take> CA_INLINE void each(int outer, Take take) const {
    const int lane = threadIdx.x % 32, row = warp_row() + lane / 4, column = warp_column() + lane % 4 * 2;
#pragma unroll
    for (int f = 0; f < Sums; ++f) {
      if (f / Together != outer) continue;
#pragma unroll
      for (int i = 0; i < fragments_m; ++i)
#pragma unroll
        for (int j = 0; j < fragments_n; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            take(row + 16 * i + 8 * (e / 2), (column + 8 * j + e % 2) * Together + f % Together, sum[f][i][j][e]);
    }
  }
};

// Of all columns by all taps.
template <int TileM, int TileN, int WarpM, int WarpN, int Positions, int Channels, int Taps, int Near, int Parts>
struct halo_contraction
    : halo_tiles<halo_contraction<TileM, TileN, WarpM, WarpN, Positions, Channels, Taps, Near, Parts>, 1, TileM, TileN, WarpM, WarpN, Positions, Channels, Near, Parts> {
  using tiles_of = halo_tiles<halo_contraction, 1, TileM, TileN, WarpM, WarpN, Positions, Channels, Near, Parts>;
  using tiles_of::fragments_m, tiles_of::fragments_n, tiles_of::part_floats, tiles_of::parts, tiles_of::right, tiles_of::sum;

  template <class Tap>
  CA_INLINE void multiply_chunk(const float* pieces, int half, const int (&start)[fragments_m], const int*& weights, Tap tap) {
#pragma unroll (Taps <= 9 ? Taps : 3)
    for (int t = 0; t < Taps; ++t) multiply(pieces + (tap(t) + half * Positions) * 4, start, weights);
  }
  template <class Tap>
  CA_INLINE void multiply_last(const float* pieces, int half, const int (&start)[fragments_m], const int*& weights, Tap tap) {
#pragma unroll (Taps <= 9 ? Taps : 2)
    for (int t = 0; t < Taps; t += 2) multiply(pieces + tap(t + half < Taps ? t + half : Taps - 1) * 4, start, weights);
  }

  CA_INLINE void multiply(const float* pieces, const int (&start)[fragments_m], const int*& weights) {
    tiles_of::take(weights);
#pragma unroll
    for (int i = 0; i < fragments_m; ++i) {
      unsigned left[parts][4];
#pragma unroll
      for (int p = 0; p < parts; ++p) load_matrices<false>(left[p], pieces + start[i] * 4 + p * part_floats);
      float own[fragments_n][4];
#pragma unroll
      for (int j = 0; j < fragments_n; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) own[j][e] = 0.f;
#pragma unroll
      for (int both = parts - 1; both >= 0; --both)  // small products first
#pragma unroll
        for (int p = 0; p <= both; ++p)
#pragma unroll
          for (int j = 0; j < fragments_n; ++j) multiply_bf16(own[j], left[p], right[both - p][j]);
#pragma unroll
      for (int j = 0; j < fragments_n; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[0][i][j][e] += own[j][e];
    }
  }
};

}  // namespace ca
