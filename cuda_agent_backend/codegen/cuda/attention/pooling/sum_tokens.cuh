// A template: the body of the kernel in which each block adds up its tokens of a batch, each token weighed by its score
// relative to the highest one so far. `writer.py` fills in what begins with a dollar sign.
// ---
constexpr int L = 1, V = $vector, chunks = $chunks, team = $team;
constexpr int teams = $teams, flight = $flight, features = $features;
extern __shared__ __align__(16) unsigned char shared[];
float* const memory = reinterpret_cast<float*>(shared);
const int segment = blockIdx.x % $segments, batch = blockIdx.x / $segments;
const int member = threadIdx.x % team, own = threadIdx.x / team;
const int begin = segment * $size, end = min($tokens, begin + $size);
$batch_loops
$scaling
ca::vec<float, V> query[chunks], sum[chunks];
#pragma unroll
for (int c = 0; c < chunks; ++c) {
  const int f = (c * team + member) * V;
  query[c] = sum[c] = ca::splat<float, V>(0.f);
  if (f < features) query[c] = ca::load<V>($query + f);
}
float top = -INFINITY, mass = 0.f;
#pragma unroll 1
for (int first = begin; first < end; first += teams * flight) {
  ca::vec<float, V> x[flight][chunks];
  #pragma unroll
  for (int u = 0; u < flight; ++u) {
    const int $token = min(first + u * teams + own, end - 1);
    const float* const from = $place;
  #pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int f = (c * team + member) * V;
      x[u][c] = ca::splat<float, V>(0.f);
      if (f < features) x[u][c] = ca::load<V>(from + f);
    }
  }
  #pragma unroll
  for (int u = 0; u < flight; ++u) {
    float found = 0.f;
  #pragma unroll
    for (int c = 0; c < chunks; ++c)
  #pragma unroll
      for (int e = 0; e < V; ++e)
        if ((c * team + member) * V < features) found = fmaf(x[u][c].v[e], query[c].v[e], found);
  #pragma unroll
    for (int away = team / 2; away > 0; away /= 2) found += __shfl_xor_sync(~0u, found, away);
    const int $token = first + u * teams + own;
    if ($token >= end) continue;
    const auto total = ca::splat<float, 1>(found);
    $score_lines
    const float score = ca::to<float>($score).v[0];
    if (!(score <= top)) {
      const float risen = higher(top, score), by = factor(top, risen);
      top = risen;
      mass *= by;
  #pragma unroll
      for (int c = 0; c < chunks; ++c)
  #pragma unroll
        for (int e = 0; e < V; ++e) sum[c].v[e] *= by;
    }
    const float weight = factor(score, top) * ${least}f;
    mass += weight;
  #pragma unroll
    for (int c = 0; c < chunks; ++c)
  #pragma unroll
      for (int e = 0; e < V; ++e) sum[c].v[e] = fmaf(weight, x[u][c].v[e], sum[c].v[e]);
  }
}
float* const tops = memory;
float* const masses = memory + teams;
float* const sums = memory + 2 * teams;
if (member == 0) { tops[own] = top; masses[own] = mass; }
#pragma unroll
for (int c = 0; c < chunks; ++c)
#pragma unroll
  for (int e = 0; e < V; ++e) {
    const int f = (c * team + member) * V + e;
    if (f < features) sums[own * features + f] = sum[c].v[e];
  }
__syncthreads();
top = tops[0];
for (int k = 1; k < teams; ++k) top = higher(top, tops[k]);
for (int f = threadIdx.x; f < features; f += $threads) {
  float all = 0.f;
  for (int k = 0; k < teams; ++k) all = fmaf(factor(tops[k], top), sums[k * features + f], all);
  $part[blockIdx.x * features + f] = all;
}
if (threadIdx.x == 0) {
  mass = 0.f;
  for (int k = 0; k < teams; ++k) mass = fmaf(factor(tops[k], top), masses[k], mass);
  $top[blockIdx.x] = top;
  $mass[blockIdx.x] = mass;
}
