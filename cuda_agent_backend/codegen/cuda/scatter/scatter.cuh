// Values that go where indices say, joined with what is there: sums, or extremes as integers whose order is that of the
// numbers (a set sign turns the order round, so negative numbers are compared as unsigned ones, the other way).
namespace ca {

enum { Sum, Largest, Smallest };

// A number as it is to be joined: a NaN becomes the one that every comparison keeps.
template <int How> CA_INLINE float scatter_value(float x) {
  if (How == Sum || x == x) return x;
  return __int_as_float(How == Largest ? 0x7fffffff : -1);
}

template <int How> CA_INLINE void scatter_join(float* to, float x) {
  if (How == Sum) {
    atomicAdd(to, x);
    return;
  }
  const int bits = __float_as_int(scatter_value<How>(x));
  if ((bits >= 0) == (How == Largest)) {
    if (How == Largest) atomicMax(reinterpret_cast<int*>(to), bits);
    else atomicMax(reinterpret_cast<unsigned*>(to), unsigned(bits));
  } else {
    if (How == Largest) atomicMin(reinterpret_cast<unsigned*>(to), unsigned(bits));
    else atomicMin(reinterpret_cast<int*>(to), bits);
  }
}

// Whether `x` cannot change what was `there` before: an extreme only ever grows, so what holds then holds later.
template <int How> CA_INLINE bool scatter_settled(float there, float x) {
  return there != there || (How == Largest ? there > x : there < x);
}

template <int How, int V> CA_INLINE void scatter_join_vector(float* to, const float (&x)[V]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (How == Sum && V == 4) {
    atomicAdd(reinterpret_cast<float4*>(to), make_float4(x[0], x[1 % V], x[2 % V], x[3 % V]));
    return;
  }
#endif
#pragma unroll
  for (int v = 0; v < V; ++v) scatter_join<How>(to + v, x[v]);
}

// S::wraps: an index below zero counts from the end.
template <class S, class I> CA_INLINE int scatter_place(I index) {
  const int64_t place = int64_t(index) + (S::wraps && index < 0 ? S::size : 0);
  if (uint64_t(place) >= uint64_t(S::size)) __trap();
  return int(place);
}

// One block for each piece of results that fits into shared memory: `tile` neighbours of each of the `size` places.
// S::counts: all values are equal, so they are counted. kept: whether a value goes anywhere, the same for all neighbours.
template <class S, class I, class Self, class Source, class Kept> CA_INLINE void scatter_shared(
    unsigned* shared, float* __restrict__ out, const I* __restrict__ index, Self self, Source source, Kept kept) {
  constexpr int tiles = (S::inner + S::tile - 1) / S::tile;
  const int64_t outer = blockIdx.x / tiles;
  const int first = int(blockIdx.x % tiles) * S::tile;
  float* const sums = reinterpret_cast<float*>(shared);
  for (int i = threadIdx.x; i < S::size * S::tile; i += S::threads) {
    const int f = first + i % S::tile;
    if (S::counts) shared[i] = 0u;
    else if (f < S::inner) sums[i] = scatter_value<S::how>(self(outer, i / S::tile, f));
  }
  __syncthreads();
  constexpr int total = S::count * S::tile;
  for (int begin = threadIdx.x; begin < total; begin += S::threads * S::flight) {
    I place[S::flight];
    float value[S::flight];
    bool goes[S::flight];
#pragma unroll
    for (int u = 0; u < S::flight; ++u) {
      const int i = begin + u * S::threads, k = i / S::tile, f = first + i % S::tile;
      goes[u] = i < total && f < S::inner && kept(outer, k, f);
      if (goes[u]) {
        place[u] = index[outer * S::index_outer + k * S::index_step + f * S::index_inner];
        if (!S::counts) value[u] = source(outer, k, f).v[0];
      }
    }
#pragma unroll
    for (int u = 0; u < S::flight; ++u) {
      const int i = begin + u * S::threads;
      if (goes[u]) {
        const int at = scatter_place<S>(place[u]) * S::tile + i % S::tile;
        if (S::counts) atomicAdd(shared + at, 1u);
        else scatter_join<S::how>(sums + at, value[u]);
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < S::size * S::tile; i += S::threads) {
    const int f = first + i % S::tile, m = i / S::tile;
    if (f >= S::inner) continue;
    float x = sums[i];
    if (S::counts) {
      x = self(outer, m, f);
      if (shared[i]) x += float(shared[i]) * source(outer, 0, f).v[0];
    }
    out[outer * S::out_outer + m * S::out_step + f * S::out_inner] = x;
  }
}

// What the results are before anything is joined.
template <class S, class Self> CA_INLINE void scatter_begin(float* __restrict__ out, Self self) {
  const int64_t i = int64_t(blockIdx.x) * S::threads + threadIdx.x;
  if (i >= S::results) return;
  const int64_t f = i % S::inner, m = i / S::inner % S::size, outer = i / S::inner / S::size;
  out[outer * S::out_outer + m * S::out_step + f * S::out_inner] = scatter_value<S::how>(self(outer, m, f));
}

// Every value joins its result in memory; `vector` neighbours, `flight` times, to a thread.
template <class S, class I, class Source, class Kept> CA_INLINE void scatter_global(
    float* __restrict__ out, const I* __restrict__ index, Source source, Kept kept) {
  constexpr int V = S::vector, groups = S::inner / V;
  int64_t to[S::flight][S::apart ? V : 1];
  float value[S::flight][V];
  bool goes[S::flight];
  const int64_t begin = int64_t(blockIdx.x) * S::flight * S::threads + threadIdx.x;
#pragma unroll
  for (int u = 0; u < S::flight; ++u) {
    const int64_t i = begin + u * S::threads;
    const int64_t f = i % groups * V, k = i / groups % S::count, outer = i / groups / S::count;
    goes[u] = i < S::values / V && kept(outer, k, f);
    if (!goes[u]) continue;
#pragma unroll
    for (int v = 0; v < (S::apart ? V : 1); ++v) {
      const int m = scatter_place<S>(index[outer * S::index_outer + k * S::index_step + (f + v) * S::index_inner]);
      to[u][v] = outer * S::out_outer + m * S::out_step + (f + v) * S::out_inner;
    }
    const auto x = source(outer, k, f);
#pragma unroll
    for (int v = 0; v < V; ++v) value[u][v] = x.v[v];
  }
  constexpr bool whole = !S::apart && S::out_inner == 1;
  const auto place = [&](int u, int v) { return out + to[u][S::apart ? v : 0] + (S::apart ? 0 : v * S::out_inner); };
  float there[S::flight][V];
#pragma unroll
  for (int u = 0; u < S::flight; ++u) {
    if (!S::test || !goes[u]) continue;
    if (whole && V == 4) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(place(u, 0)));
      there[u][0] = x.x, there[u][1 % V] = x.y, there[u][2 % V] = x.z, there[u][3 % V] = x.w;
      continue;
    }
#pragma unroll
    for (int v = 0; v < V; ++v) there[u][v] = __ldcg(place(u, v));
  }
#pragma unroll
  for (int u = 0; u < S::flight; ++u) {
    if (!goes[u]) continue;
    if (whole && !S::test) {
      scatter_join_vector<S::how, V>(place(u, 0), value[u]);
      continue;
    }
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (!S::test || !scatter_settled<S::how>(there[u][v], value[u][v])) scatter_join<S::how>(place(u, v), value[u][v]);
  }
}

}  // namespace ca
