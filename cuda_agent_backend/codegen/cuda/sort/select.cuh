// The first elements of long rows in order, from one read of the row. Of the least elements of `Groups` groups of threads
// the one of rank `k` bounds what can be among the first `k`: only `k` groups have elements up to it, so that few are left.
// These are put in order by counting for each how many come before it.

namespace ca {

template <class Packed, int Threads, int Chunks, int Vector, int Groups, bool Kept> struct row_select {
  typedef typename Packed::element element;
  typedef typename Packed::key key;
  static constexpr int lanes = Threads / Groups;  // of a group: neighbours in a warp
  key kept[Kept ? Chunks * Vector : 1];

  // The least of a group, in all of its threads.
  static CA_INLINE element group_least(element e) {
#pragma unroll
    for (int mask = 1; mask < lanes; mask *= 2) {
      const element o = shuffle_xor(e, mask);
      e = o < e ? o : e;
    }
    return e;
  }
  // Calls f(key, position) for all elements of this thread.
  template <class S, class Index, class F> static CA_INLINE void each(const S* in, Index step, int n, F f) {
#pragma unroll(Kept ? Chunks : 4)
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * Threads + int(threadIdx.x)) * Vector;
      if (at < n) {
        const auto x = Vector == 1 ? broadcast<Vector>(in + at * step) : load<Vector>(in + at);
#pragma unroll
        for (int v = 0; v < Vector; ++v) f(c * Vector + v, at + v, Packed::key_of(x.v[v]));
      }
    }
  }
  // `out(rank, position)` is called for the first `k`; `found` has room for `k` times the elements of a group.
  template <class S, class Index, class Out>
  CA_INLINE void run(const S* in, Index step, int n, int k, element* groups, element* found, int* count, Out out) {
    const int t = threadIdx.x;
    // Positions rise, so that the first of equal keys stays. Keys may all be as large as the one to begin with.
    key best = ~key(0);
    uint32_t where = 0xffffffffu;
    each(in, step, n, [&](int number, int at, key x) {
      if constexpr (Kept) kept[number] = x;
      const bool before = number == 0 || x < best;
      best = before ? x : best;
      where = before ? at : where;
    });
    const element least = group_least(Packed::make(best, where));
    if (t % lanes == 0) groups[t / lanes] = least;
    if (t == 0) *count = 0;
    __syncthreads();
    // Groups without elements come last, and there may be less than `k` with elements.
    for (int g = t; g < Groups; g += Threads) {
      const element own = groups[g];
      int rank = 0;
      for (int o = 0; o < Groups; ++o) rank += groups[o] < own || (o < g && !(own < groups[o]));
      if (rank == k - 1) groups[Groups] = own;
    }
    __syncthreads();
    const element bound = groups[Groups];
    const key bound_key = Packed::key_in(bound);
    const auto keep = [&](int at, key x) {
      if (x <= bound_key) {
        const element e = Packed::make(x, at);
        if (!(bound < e)) found[atomicAdd(count, 1)] = e;
      }
    };
    // A thread whose group has nothing up to the bound need not look.
    if (!(bound < least)) {
      if constexpr (Kept) {
#pragma unroll
        for (int c = 0; c < Chunks; ++c) {
          const int at = (c * Threads + t) * Vector;
#pragma unroll
          for (int v = 0; v < Vector; ++v)
            if (at < n) keep(at + v, kept[c * Vector + v]);
        }
      } else {
        each(in, step, n, [&](int, int at, key x) { keep(at, x); });
      }
    }
    __syncthreads();
    const int left = *count;
    for (int i = t; i < left; i += Threads) {
      const element own = found[i];
      int rank = 0;
      for (int o = 0; o < left; ++o) rank += found[o] < own;
      if (rank < k) out(rank, int(Packed::low(own)));
    }
  }
};

// A block selects from one row. Values are those of the row, to the bit.
template <class Packed, int Threads, int Chunks, int Vector, int Groups, bool Kept, bool Values, bool Places, class S, class Index>
CA_INLINE void select_row(
    const S* in, Index in_step, S* values, Index value_step, int64_t* places, Index place_step, int n, int k,
    unsigned char* memory) {
  typedef typename Packed::element element;
  element* const groups = reinterpret_cast<element*>(memory) + 1;
  element* const found = groups + Groups + 1;
  row_select<Packed, Threads, Chunks, Vector, Groups, Kept> one;
  one.run(in, in_step, n, k, groups, found, reinterpret_cast<int*>(memory), [&](int rank, int at) {
    if constexpr (Values) values[rank * value_step] = in[at * in_step];
    if constexpr (Places) places[rank * place_step] = at;
  });
}

}  // namespace ca
