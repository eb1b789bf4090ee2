// Attention of float16 and bfloat16 by warp groups (sm_90a), each of which has 64 queries of its block: as
// `half_attention`, with the tensor core reading Q, K and V from shared memory, in lines of 128 bytes (see
// `contract_wide_half.cuh`). The softmax of a tile runs while the weights of the tile before it are multiplied with V.

namespace ca {

template <class A> struct wide_half_attention : half_attention_rows<A, 1> {
  typedef half_attention_rows<A, 1> base;
  typedef typename base::number number;
  static constexpr int depth = base::depth, steps = base::steps, tiles_n = base::tiles_n, threads = base::threads;
  static constexpr int panels = (depth + 63) / 64, line = 32;  // words
  typedef half_operand<number, depth, A::rows, false, A::vector, threads, true> queries;
  typedef half_operand<number, depth, A::block, false, A::vector, threads, true> keys;  // and values
  static constexpr int query_floats = panels * A::rows * line, tile_floats = panels * A::block * line;
  static constexpr int stage_floats = 2 * tile_floats, next_panel = 4 * A::block * line;
  static_assert(A::vector > 1 && A::stages > 2);
  using base::found; using base::head; using base::shared; using base::sum;

  float score[A::block / 2];
  unsigned weight[A::block / 16][4];

  template <class Find> CA_INLINE void run(float* memory, Find find) {
    shared = memory + (-shared_address(memory) & 1023) / 4;
    this->begin(find(blockIdx.x));
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
    const bool idle = this->first + 64 * group >= A::queries;  // has no queries, and multiplies one tile for nobody
    const int tiles = tiles_for(A::rows), own = idle ? 1 : tiles_for(64 * group + 64);
    fetch_queries();
#pragma unroll
    for (int s = 0; s < A::stages - 1; ++s) fetch(s, tiles);
    arrive<A::stages - 2>();
    multiply_keys(0, group);
    wide_wait<0>();
    soften(0);
#pragma unroll 1
    for (int tile = 1; tile < own; ++tile) {
      arrive<A::stages - 3>();
      multiply_keys(tile, group);
      multiply_values(tile - 1);
      fetch(tile + A::stages - 2, tiles);  // where the tile before the last was
      wide_wait<1>();
      soften(tile);
    }
    if (own < tiles) arrive<A::stages - 3>();
    multiply_values(own - 1);
    fetch(own + A::stages - 2, tiles);
    wide_wait<0>();
    keep_sums();
#pragma unroll 1
    for (int tile = own + 1; tile < tiles; ++tile) {  // which other groups see
      arrive<A::stages - 3>();
      fetch(tile + A::stages - 2, tiles);
    }
    copy_wait<0>();
    __syncthreads();
    this->finish();
  }

  // Of the tiles, those that the block's queries up to `stop` see.
  CA_INLINE int tiles_for(int stop) const { return (attention_head<A>::keys_for(this->first + stop) + A::block - 1) / A::block; }
  template <int Pending> static CA_INLINE void arrive() {
    copy_wait<Pending>();
    publish_shared();
    __syncthreads();
  }
  CA_INLINE float* stage(int tile) const { return shared + query_floats + tile % A::stages * stage_floats; }
  // Of biases there is a stage less: those of a tile are read before those of the next but one are fetched.
  CA_INLINE float* biases_of(int tile) const {
    return shared + query_floats + A::stages * stage_floats + tile % (A::stages - 1) * base::bias_floats;
  }
  CA_INLINE void fetch_queries() const {
    typename queries::waiting none;
    queries::fetch(shared, none, 0, [&](int column, int row, bool& there) {
      return found(head.q, A::q_row, this->first + row, column, A::queries, there);
    });
  }
  CA_INLINE void fetch(int tile, int tiles) const {
    typename keys::waiting none;
    if (tile < tiles) {
      const int from = tile * A::block;
      keys::fetch(stage(tile), none, 0, [&](int column, int row, bool& there) {
        return found(head.k, A::k_row, from + row, column, A::keys, there);
      });
      keys::fetch(stage(tile) + tile_floats, none, 0, [&](int column, int row, bool& there) {
        return found(head.v, A::v_row, from + row, column, A::keys, there);
      });
      if constexpr (base::staged) this->fetch_bias(biases_of(tile), from);
    }
    copy_commit();
  }

  CA_INLINE void multiply_keys(int tile, int group) {
    wide_fence();
#pragma unroll
    for (int c = 0; c < steps; ++c) {
      const uint64_t left = wide_operand<128>(shared + (c / 4 * A::rows + 64 * group) * line, c % 4 * 32);
      const uint64_t right = wide_operand<128>(stage(tile) + c / 4 * A::block * line, c % 4 * 32);
      multiply_both<number, 0, 0>(score, left, right, c > 0);
    }
    wide_commit();
  }
  CA_INLINE void multiply_values(int tile) {
    wide_fence();
#pragma unroll
    for (int c = 0; c < A::block / 16; ++c)
      multiply_rows<number>(sums(), weight[c], by_rows_operand(stage(tile) + tile_floats, 64 * line * c, next_panel), 1);
    wide_commit();
  }
  // The weights of a tile, once its scores are there, and what came before rescaled, once that is.
  CA_INLINE void soften(int tile) {
    float (&own)[1][tiles_n][4] = reinterpret_cast<float (&)[1][tiles_n][4]>(score);
    float factor[1][2];
#pragma unroll
    for (int i = 0; i < A::block / 2; ++i) keep_register(score[i]);
    this->mask(own, biases_of(tile), tile * A::block);
    this->softmax.soften(own, factor);
    wide_wait<0>();
    keep_sums();
    this->rescale(factor);
#pragma unroll
    for (int c = 0; c < A::block / 16; ++c) base::pack(weight[c], own[0], c);
  }
  CA_INLINE float (&sums())[A::size / 2] { return reinterpret_cast<float (&)[A::size / 2]>(sum); }
  CA_INLINE void keep_sums() {
#pragma unroll
    for (int i = 0; i < A::size / 2; ++i) keep_register(sums()[i]);
  }
};

}  // namespace ca
