// Rows mixed by weights made of scores, O = P V with P made of Q K^T, by warp groups (sm_90a) that share the work, as
// `relay_contraction`: the first one splits tiles of K and V and writes them as the tensor core wants them, once for all queries
// of the block; the others hold 64 queries each, multiply and make weights of scores. With `turns` one of them multiplies at a
// time, so that the tensor core is busy while the other does not need it. Of V, rows are written as columns, as the terms of an
// operand lie next to each other.

namespace ca {

// The same number, of which the compiler does not know that: what follows from it is worked out anew, and not kept.
CA_INLINE int opaque(int x) { asm volatile("" : "+r"(x)); return x; }

// A: as for `attention_tiles`; rows is 64 for each group that multiplies, stages the tiles of K and of V in shared memory. And
// turns. Head: has q, k and v of a head.
template <class A, class Head> struct relay_tiles {
  static constexpr int D = A::size, E = A::width, depth = (D + 15) / 16 * 16, steps = depth / 16, value_steps = A::block / 16;
  static constexpr int groups = A::rows / 64, preparing = 128, multiplying = 128 * groups, slots = A::stages;
  static constexpr bool by_turns = A::turns && groups > 1;
  // Tiles are cut into 32 terms, rows of 64 bytes: keys by elements of a head, and elements of a head by keys.
  static constexpr int piece_terms = 8, cut_terms = 32, row_floats = 16;
  // Of few columns of V all three parts are rows of one operand: what that takes too many, it saves in instructions.
  static constexpr bool stacked = E <= 16;
  static constexpr int value_rows = ((stacked ? 3 * E : E) + 15) / 16 * 16;
  static constexpr int key_cut = A::block * row_floats, value_cut = value_rows * row_floats;
  static constexpr int key_part = (depth + cut_terms - 1) / cut_terms * key_cut, values_floats = A::block / cut_terms * value_cut;
  static constexpr int value_part = stacked ? E * row_floats : values_floats;
  static constexpr int slot_floats = 3 * key_part + (stacked ? 1 : 3) * values_floats;
  static constexpr int key_pieces = A::block * depth / piece_terms, value_pieces = A::block * E / piece_terms;
  static constexpr int most_pieces = ((key_pieces > value_pieces ? key_pieces : value_pieces) + preparing - 1) / preparing;
  // Registers are dealt out evenly at first. Those who multiply need more of them.
  static constexpr bool roomy = groups == 2 && most_pieces > 4;
  static constexpr int registers = groups == 1 ? 168 : roomy ? 200 : 208, others = roomy ? 104 : 88;
  // Steps of the head whose queries are in registers at a time.
  static constexpr int chunk = steps > 5 ? 4 : steps;
  // Columns of V that are multiplied at a time: what is added up takes as many registers again as the sums.
  static constexpr int halves = E == 128 ? 2 : 1, columns = (stacked ? 3 : 1) * E / halves;
  // Queries are at hand before the products with V are done, where there are registers for that.
  static constexpr bool early = chunk == steps && halves == 1 && E / 2 + columns / 2 + 12 * (steps + value_steps) + 28 <= registers;
  static_assert(A::block % cut_terms == 0 && A::rows % 64 == 0 && D % 8 == 0 && E % 8 == 0 && groups <= 2 && 2 * slots * (groups + 1) + groups < 16);
  typedef split<6, 4> numbers;
  typedef typename A::index index;

  Head head;
  float* tiles;
  uint4* queries;
  int first;  // query of the block
  int origin = 0;  // key of the first tile
  float sum[E / 2];

  static CA_INLINE int lane() { return threadIdx.x % 32; }
  static CA_INLINE int member() { return threadIdx.x % 4; }
  static CA_INLINE int own_group() { return (int(threadIdx.x) - preparing) / 128; }
  // The first of the two rows of a thread, 8 apart.
  static CA_INLINE int own_row() { return (int(threadIdx.x) - preparing) / 32 * 16 + lane() / 4; }
  // Barriers; 0 is __syncthreads'. What passes through is numbered: 2 * tile for K, 2 * tile + 1 for V.
  static CA_INLINE int ready(int number, int group) { return 1 + number % (2 * slots) * groups + group; }
  static CA_INLINE int free(int number) { return 1 + 2 * slots * groups + number % (2 * slots); }
  static CA_INLINE int turn(int group) { return 1 + 2 * slots * (groups + 1) + group; }

  // find(block): what this block's head is. work(): what a group does that multiplies, after which it has its own head's.
  template <class Find, class Work> CA_INLINE void share(float* shared, int count, Find find, Work work) {
    tiles = shared + (-shared_address(shared) & 1023) / 4;
    if (threadIdx.x < preparing) {
      give_registers<others>();
      head = find(blockIdx.x);
      prepare(count);
      return;
    }
    take_registers<registers>();
    queries = reinterpret_cast<uint4*>(tiles + slots * slot_floats) + (int(threadIdx.x) - preparing) / 32 * steps * 96 + lane();
    head = find(opaque(blockIdx.x));
    work();
  }

  CA_INLINE float* keys_of(int tile) const { return tiles + tile % slots * slot_floats; }
  CA_INLINE float* values_of(int tile) const { return keys_of(tile) + 3 * key_part; }

  // What the threads do that prepare: numbers go from global memory through registers, where they are split.
  CA_INLINE void prepare(int count) const {
    float x[most_pieces][piece_terms];
    load_keys(x, 0);
#pragma unroll 1
    for (int tile = 0; tile < count; ++tile) {
      if (tile >= slots) meet(free(2 * tile), preparing + multiplying);
      put_keys(x, keys_of(tile));
      hand_over(2 * tile);
      load_values(x, tile);
      if (tile >= slots) meet(free(2 * tile + 1), preparing + multiplying);
      put_values(x, values_of(tile));
      hand_over(2 * tile + 1);
      if (tile + 1 < count) load_keys(x, tile + 1);
    }
  }
  static CA_INLINE void hand_over(int number) {
    publish_shared();
#pragma unroll
    for (int g = 0; g < groups; ++g) announce(ready(number, g), preparing + 128);
  }

  // Pieces of a key: those of 32 terms are a thread's neighbours', then come the next keys, then the next terms.
  struct key_place {
    int cut, row, piece;
    CA_INLINE key_place(int number) {
      cut = number / (4 * A::block);
      const int wide = depth - cut * cut_terms < cut_terms ? (depth - cut * cut_terms) / piece_terms : 4;
      row = number % (4 * A::block) / wide, piece = number % (4 * A::block) % wide;
    }
  };
  static CA_INLINE int own_number(int i) { return int(threadIdx.x) + i * preparing; }
  CA_INLINE void load_keys(float (&x)[most_pieces][piece_terms], int tile) const {
    struct alignas(4 * A::vector) vector { float v[A::vector]; };
#pragma unroll
    for (int i = 0; i * preparing < key_pieces; ++i) {
      const key_place at(own_number(i));
      const int key = origin + tile * A::block + at.row, column = at.cut * cut_terms + at.piece * piece_terms;
      const bool there = key < A::keys && column < D && own_number(i) < key_pieces;
      const float* const from = head.k + key * index(A::k_row) + column;
#pragma unroll
      for (int e = 0; e < piece_terms; e += A::vector) {
        vector found = {};
        if (there) found = *reinterpret_cast<const vector*>(from + e);
#pragma unroll
        for (int w = 0; w < A::vector; ++w) x[i][e + w] = found.v[w];
      }
    }
  }
  CA_INLINE void load_values(float (&x)[most_pieces][piece_terms], int tile) const {
#pragma unroll
    for (int i = 0; i * preparing < value_pieces; ++i) {
      const int key = origin + tile * A::block + own_number(i) / E * piece_terms;
      const float* const from = head.v + key * index(A::v_row) + own_number(i) % E;
#pragma unroll
      for (int e = 0; e < piece_terms; ++e)
        x[i][e] = key + e < A::keys && own_number(i) < value_pieces ? from[e * index(A::v_row)] : 0.f;
    }
  }
  static CA_INLINE void put_keys(const float (&x)[most_pieces][piece_terms], float* to) {
#pragma unroll
    for (int i = 0; i * preparing < key_pieces; ++i) {
      const key_place at(own_number(i));
      if (key_pieces % preparing == 0 || own_number(i) < key_pieces) put(x[i], to + at.cut * key_cut, key_part, at.row, at.piece);
    }
  }
  static CA_INLINE void put_values(const float (&x)[most_pieces][piece_terms], float* to) {
#pragma unroll
    for (int i = 0; i * preparing < value_pieces; ++i) {
      const int piece = own_number(i) / E;
      if (value_pieces % preparing == 0 || own_number(i) < value_pieces)
        put(x[i], to + piece / 4 * value_cut, value_part, own_number(i) % E, piece % 4);
    }
  }
  // As `wide_parts` has it for rows of 64 bytes.
  static CA_INLINE void put(const float (&x)[piece_terms], float* to, int part, int row, int piece) {
    numbers found;
#pragma unroll
    for (int e = 0; e < 4; ++e) found.set(e, x + 2 * e);
    const int at = row * 4 + (piece ^ row / 2 % 4);
#pragma unroll
    for (int p = 0; p < 3; ++p)
      reinterpret_cast<uint4*>(to + p * part)[at] = {found.part[p][0], found.part[p][1], found.part[p][2], found.part[p][3]};
  }

  // What the others do: products with the V of one tile, then with the K of the next, in one turn. own_count: tiles that
  // queries of this group need, of the block's `count`. ask(from): asks for what is beside a tile's scores, `weigh(score, from)`
  // makes weights of them.
  template <class Ask, class Weigh> CA_INLINE void multiply(int own_count, int count, Ask ask, Weigh weigh) {
    const int group = own_group();
    keep_queries();
#pragma unroll
    for (int i = 0; i < E / 2; ++i) sum[i] = 0.f;
    if (by_turns && group == groups - 1) announce(turn(0), 256);
    if (own_count == 0) {
      take_turn(group);
      pass_turn(group, 0, count);
    } else {
      // A loop of one turn is none, and of that ptxas 13.0 left out the products with the first half of V.
      multiply_tiles(group, halves > 1 ? opaque(own_count) : own_count, count, ask, weigh);
    }
#pragma unroll 1
    for (int tile = own_count; tile < count; ++tile) {  // those that only the other group sees
      meet(ready(2 * tile, group), preparing + 128);
      give_back(2 * tile, count);
      meet(ready(2 * tile + 1, group), preparing + 128);
      give_back(2 * tile + 1, count);
      take_turn(group);
      pass_turn(group, tile + 1, count);
    }
  }
  template <class Ask, class Weigh>
  CA_INLINE void multiply_tiles(int group, int own_count, int count, Ask ask, Weigh weigh) {
    float score[A::block / 2], own[columns / 2];
    numbers weights[value_steps], left[chunk];
    take_queries<0>(left);
    meet(ready(0, group), preparing + 128);
    take_turn(group);
    start_scores(score, left, keys_of(0));
    ask(origin);
    end_scores(score, left, group, 0, count);
    weigh(score, origin);
#pragma unroll 1
    for (int tile = 1; tile < own_count; ++tile) {
      set_weights(weights, score);
      meet(ready(2 * tile - 1, group), preparing + 128);
      meet(ready(2 * tile, group), preparing + 128);
      take_turn(group);
      start_values<0>(own, weights, values_of(tile - 1));
      if constexpr (early) take_queries<0>(left);
      end_values(own, weights, tile - 1, count);
      if constexpr (!early) {
        add_values(own);
        take_queries<0>(left);
      }
      start_scores(score, left, keys_of(tile));
      if constexpr (early) add_values(own);
      ask(origin + tile * A::block);
      end_scores(score, left, group, tile, count);
      weigh(score, origin + tile * A::block);
    }
    set_weights(weights, score);
    meet(ready(2 * own_count - 1, group), preparing + 128);
    take_turn(group);
    start_values<0>(own, weights, values_of(own_count - 1));
    end_values(own, weights, own_count - 1, count);
    pass_turn(group, own_count, count);
    add_values(own);
  }

  static CA_INLINE void take_turn(int group) { if (by_turns) meet(turn(group), 256); }
  // Turns are as many as tiles and one more.
  static CA_INLINE void pass_turn(int group, int number, int count) {
    if (by_turns && (group < groups - 1 || number < count)) announce(turn((group + 1) % groups), 256);
  }
  static CA_INLINE void give_back(int number, int count) {
    if (number / 2 + slots < count) announce(free(number), preparing + multiplying);
  }

  // Queries lie split as threads hold them: 12 words of a thread for each 16 x 16.
  CA_INLINE void keep_queries() const {
    constexpr bool pairs = A::vector > 1;
#pragma unroll
    for (int c = 0; c < steps; ++c) {
      numbers x;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int query = first + own_row() + 8 * (e % 2), column = 16 * c + 2 * member() + 8 * (e / 2);
        const float* const from = head.q + query * index(A::q_row) + column;
        float both[2] = {0.f, 0.f};
        if (query < A::queries && column < D) {
          if constexpr (pairs) {
            const float2 found = *reinterpret_cast<const float2*>(from);
            both[0] = found.x, both[1] = found.y;
          } else {
            both[0] = from[0], both[1] = from[1];
          }
        }
        x.set(e, both);
      }
#pragma unroll
      for (int p = 0; p < 3; ++p) queries[96 * c + 32 * p] = {x.part[p][0], x.part[p][1], x.part[p][2], x.part[p][3]};
    }
  }
  template <int From> CA_INLINE void take_queries(numbers (&to)[chunk]) const {
#pragma unroll
    for (int c = 0; c < chunk && From + c < steps; ++c)
#pragma unroll
      for (int p = 0; p < 3; ++p) {
        const uint4 x = queries[96 * (From + c) + 32 * p];
        to[c].part[p][0] = x.x, to[c].part[p][1] = x.y, to[c].part[p][2] = x.z, to[c].part[p][3] = x.w;
      }
  }
  static CA_INLINE void set_weights(numbers (&to)[value_steps], const float (&score)[A::block / 2]) {
#pragma unroll
    for (int c = 0; c < value_steps; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) to[c].set(e, score + 8 * c + 2 * e);
  }

  // to <- left * right for Count steps, all small products first: what the tensor core cuts off is in proportion to the sum.
  template <int Part, int Cut, int Count, int N, int Steps>
  static CA_INLINE void start(float (&to)[N], const numbers (&left)[Steps], const float* right) {
    wide_fence();
#pragma unroll
    for (int both = 2; both >= 0; --both)
#pragma unroll
      for (int p = 0; p <= both; ++p)
#pragma unroll
        for (int c = 0; c < Count; ++c) {
          const uint64_t b = wide_operand<64>(right + (both - p) * Part + c / 2 * Cut, c % 2 * 32);
          multiply_wide<6>(to, left[c].part[p], b, both < 2 || p > 0 || c > 0);
        }
    wide_commit();
  }
  template <int N> static CA_INLINE void end(float (&of)[N]) {
    wide_wait<0>();
#pragma unroll
    for (int i = 0; i < N; ++i) keep_register(of[i]);
  }
  static CA_INLINE void start_scores(float (&score)[A::block / 2], const numbers (&left)[chunk], const float* keys) {
    start<key_part, key_cut, chunk>(score, left, keys);
  }
  // The turn goes to the other group as soon as nothing is left to be started.
  CA_INLINE void end_scores(float (&score)[A::block / 2], numbers (&left)[chunk], int group, int tile, int count) const {
    if constexpr (chunk == steps) {
      pass_turn(group, tile, count);
      end(score);
    } else {
      float part[A::block / 2];
      end(score);
      take_queries<chunk>(left);
      start<key_part, key_cut, steps - chunk>(part, left, keys_of(tile) + chunk / 2 * key_cut);
      pass_turn(group, tile, count);
      end(part);
#pragma unroll
      for (int i = 0; i < A::block / 2; ++i) score[i] += part[i];
    }
    give_back(2 * tile, count);
  }
  template <int Half>
  static CA_INLINE void start_values(float (&own)[columns / 2], const numbers (&weights)[value_steps], const float* values) {
    if constexpr (stacked) start_stacked(own, weights, values);
    else start<value_part, value_cut, value_steps>(own, weights, values + Half * columns * row_floats);
  }
  // As `start`, with all parts of V at once, whose products stay apart.
  static CA_INLINE void start_stacked(float (&to)[columns / 2], const numbers (&weights)[value_steps], const float* values) {
    wide_fence();
#pragma unroll
    for (int p = 2; p >= 0; --p)
#pragma unroll
      for (int c = 0; c < value_steps; ++c)
        multiply_wide<6>(to, weights[c].part[p], wide_operand<64>(values + c / 2 * value_cut, c % 2 * 32), p < 2 || c > 0);
    wide_commit();
  }
  CA_INLINE void end_values(float (&own)[columns / 2], const numbers (&weights)[value_steps], int tile, int count) {
    end(own);
    if constexpr (halves > 1) {
      add_values<0>(own);
      start_values<1>(own, weights, values_of(tile));
      end(own);
    }
    give_back(2 * tile + 1, count);
  }
  template <int Half = halves - 1> CA_INLINE void add_values(const float (&own)[columns / 2]) {
    if constexpr (stacked) {
#pragma unroll
      for (int i = 0; i < E / 2; ++i) sum[i] += own[i] + (own[E / 2 + i] + own[E + i]);
    } else {
#pragma unroll
      for (int i = 0; i < columns / 2; ++i) sum[Half * columns / 2 + i] += own[i];
    }
  }
};

}  // namespace ca
