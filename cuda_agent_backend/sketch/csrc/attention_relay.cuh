// Attention by warp groups (sm_90a) that share the work, as `relay_contraction`: the first one splits tiles of K and V and
// writes them as the tensor core wants them, once for all queries of the block; the others hold 64 queries each, multiply
// and work out the softmax. With `turns` one of them multiplies at a time, so that the tensor core is busy while the other
// does not need it. Of V, rows are written as columns, as the terms of an operand lie next to each other.

namespace ca {

// The same number, of which the compiler does not know that: what follows from it is worked out anew, and not kept.
CA_INLINE int anew(int x) { asm volatile("" : "+r"(x)); return x; }

// A: as for `attention`; rows is 64 for each group that multiplies, stages the tiles of K and of V in shared memory. And
// turns; bias_pairs, whether the biases of two neighbouring keys may be loaded at once.
template <class A> struct relay_attention {
  static constexpr int D = A::size, depth = (D + 15) / 16 * 16, steps = depth / 16, value_steps = A::block / 16;
  static constexpr int groups = A::rows / 64, preparing = 128, multiplying = 128 * groups, slots = A::stages;
  static constexpr bool by_turns = A::turns && groups > 1;
  // Tiles are cut into 32 terms, rows of 64 bytes: keys by elements of a head, and elements of a head by keys.
  static constexpr int piece_terms = 8, cut_terms = 32, row_floats = 16;
  static constexpr int value_rows = (D + 15) / 16 * 16;
  static constexpr int key_cut = A::block * row_floats, value_cut = value_rows * row_floats;
  static constexpr int key_part = (depth + cut_terms - 1) / cut_terms * key_cut, value_part = A::block / cut_terms * value_cut;
  static constexpr int slot_floats = 3 * (key_part + value_part);
  static constexpr int key_pieces = A::block * depth / piece_terms, value_pieces = A::block * D / piece_terms;
  static constexpr int most_pieces = ((key_pieces > value_pieces ? key_pieces : value_pieces) + preparing - 1) / preparing;
  // Registers are dealt out evenly at first. Those who multiply need more of them.
  static constexpr bool roomy = groups == 2 && most_pieces > 4;
  static constexpr int registers = groups == 1 ? 168 : roomy ? 200 : 208, others = roomy ? 104 : 88;
  // Steps of the head whose queries are in registers at a time.
  static constexpr int chunk = steps > 6 ? 4 : steps;
  // Columns of V that are multiplied at a time: what is added up takes as many registers again as the sums.
  static constexpr int halves = D == 128 ? 2 : 1, columns = D / halves;
  // Queries are at hand before the products with V are done, where there are registers for that.
  static constexpr bool early = chunk == steps && halves == 1 && D + 12 * (steps + value_steps) + 28 <= registers;
  // What is added to scores is asked for while they are worked out, where there are registers for that.
  static constexpr bool bias_early = D <= 96;
  static constexpr int biases = A::biased ? A::block / 2 : 1;
  static constexpr float largest = 3.402823466e38f;
  static_assert(A::block % cut_terms == 0 && A::rows % 64 == 0 && D % 8 == 0 && groups <= 2 && 2 * slots * (groups + 1) + groups < 16);
  typedef split<6, 4> numbers;
  typedef typename A::index index;
  typedef attention_head<A> head_of;

  head_of head;
  float* tiles;
  uint4* queries;
  int first;  // query of the block
  float sum[D / 2], top[2], total[2], worst[2];

  static CA_INLINE int lane() { return threadIdx.x % 32; }
  static CA_INLINE int member() { return threadIdx.x % 4; }
  static CA_INLINE int own_group() { return (int(threadIdx.x) - preparing) / 128; }
  // The first of the two rows of a thread, 8 apart.
  static CA_INLINE int own_row() { return (int(threadIdx.x) - preparing) / 32 * 16 + lane() / 4; }
  static CA_INLINE int tiles_for(int stop) { return (head_of::keys_for(stop) + A::block - 1) / A::block; }

  // Barriers; 0 is __syncthreads'. What passes through is numbered: 2 * tile for K, 2 * tile + 1 for V.
  static CA_INLINE int ready(int number, int group) { return 1 + number % (2 * slots) * groups + group; }
  static CA_INLINE int free(int number) { return 1 + 2 * slots * groups + number % (2 * slots); }
  static CA_INLINE int turn(int group) { return 1 + 2 * slots * (groups + 1) + group; }

  // find(block): what this block's head is; asked for again, as there are better uses of registers meanwhile.
  template <class Find> CA_INLINE void run(float* shared, Find find) {
    tiles = shared + (-shared_address(shared) & 1023) / 4;
    const int count = tiles_for(first + A::rows);
    float start = 0.f;
    // the first group leaves out the most keys
    if constexpr (A::all_keys && A::skips)
      start = keys_leak(find(blockIdx.x), first, A::rows, head_of::keys_for(first + 64)) ? INFINITY : 0.f;
    if (threadIdx.x < preparing) {
      give_registers<others>();
      head = find(blockIdx.x);
      prepare(count);
      return;
    }
    take_registers<registers>();
    queries = reinterpret_cast<uint4*>(tiles + slots * slot_floats) + (int(threadIdx.x) - preparing) / 32 * steps * 96 + lane();
    head = find(anew(blockIdx.x));
    multiply(count, start);
    head = find(anew(blockIdx.x));
    finish();
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
      const int key = tile * A::block + at.row, column = at.cut * cut_terms + at.piece * piece_terms;
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
      const int key = tile * A::block + own_number(i) / D * piece_terms;
      const float* const from = head.v + key * index(A::v_row) + own_number(i) % D;
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
      const int piece = own_number(i) / D;
      if (value_pieces % preparing == 0 || own_number(i) < value_pieces)
        put(x[i], to + piece / 4 * value_cut, value_part, own_number(i) % D, piece % 4);
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

  // What the others do: products with the V of one tile, then with the K of the next, in one turn.
  CA_INLINE void multiply(int count, float start) {
    const int group = own_group(), begin = first + 64 * group;
    const int own_count = begin < A::queries ? tiles_for(begin + 64) : 0;
    keep_queries();
#pragma unroll
    for (int i = 0; i < D / 2; ++i) sum[i] = 0.f;
#pragma unroll
    for (int h = 0; h < 2; ++h) top[h] = -INFINITY, total[h] = 0.f, worst[h] = start;
    if (by_turns && group == groups - 1) announce(turn(0), 256);
    if (own_count == 0) {
      take_turn(group);
      pass_turn(group, 0, count);
    } else {
      multiply_tiles(group, own_count, count);
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
  CA_INLINE void multiply_tiles(int group, int own_count, int count) {
    float score[A::block / 2], own[columns / 2], bias[biases];
    numbers weights[value_steps], left[chunk];
    take_queries<0>(left);
    meet(ready(0, group), preparing + 128);
    take_turn(group);
    start_scores(score, left, keys_of(0));
    if constexpr (bias_early) load_bias(bias, 0);
    end_scores(score, left, group, 0, count);
    if constexpr (!bias_early) load_bias(bias, 0);
    soften(score, bias, 0);
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
      if constexpr (bias_early) load_bias(bias, tile * A::block);
      end_scores(score, left, group, tile, count);
      if constexpr (!bias_early) load_bias(bias, tile * A::block);
      soften(score, bias, tile * A::block);
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
    start<value_part, value_cut, value_steps>(own, weights, values + Half * columns * row_floats);
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
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) sum[Half * columns / 2 + i] += own[i];
  }

  // What is added to the scores of a tile.
  CA_INLINE void load_bias(float (&to)[biases], int from) const {
    if constexpr (A::biased) {
#pragma unroll
      for (int i = 0; i < biases; i += 1 + A::bias_pairs) {
        const int query = first + own_row() + 8 * (i / 2 % 2), key = from + 8 * (i / 4) + 2 * member() + i % 2;
        const float* const at = head.bias + query * index(A::bias_row) + key * index(A::bias_key);
        const bool there = query < A::queries && key < A::keys;
        if constexpr (A::bias_pairs) {
          float2 both = {0.f, 0.f};
          if (there) both = *reinterpret_cast<const float2*>(at);
          to[i] = both.x, to[i + 1] = both.y;
        } else {
          to[i] = there ? *at : 0.f;
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
      x *= A::scale;
      if constexpr (A::biased) x += bias[i];
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
