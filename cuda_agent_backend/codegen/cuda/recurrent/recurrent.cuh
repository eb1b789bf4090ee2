// Recurrent layers (LSTM, GRU, tanh, relu) in float32. What they make of their input alone is one product, `project`;
// `recurrent_scan` then goes through all steps with the recurrent weights at hand: a cluster of `ranks` blocks takes
// `rows` sequences, a block of it `own` units, all gates of them, and their weights stay in its registers and, where
// those do not hold them, in its shared memory. After each step every block sends its part of h to all of the cluster.
// The scan needs `cuda.cuh`, which has the functions of a unit, and `barrier.cuh`.

namespace ca {

// ---- h on its way: stores to other blocks that count towards a barrier there -------------------------------------
// A barrier of the whole cluster would make each block wait for its stores to global memory, too, at every step.

// Where `shared` of this block is in another block of the cluster.
CA_INLINE unsigned address_in(const void* shared, unsigned rank) {
  unsigned at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(unsigned(__cvta_generic_to_shared(shared))), "r"(rank));
  return at;
}
CA_INLINE void send(unsigned to, float4 x, unsigned barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
               :: "r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier) : "memory");
}

// Loads where it is written, and not where it is needed.
CA_INLINE float read_early(const float* p) {
  float r;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(r) : "l"(p) : "memory");
  return r;
}

// ---- many sums over the same threads -------------------------------------------------------------------------------

// How many of N sums each of Width threads ends up with.
template <int Width, int N> constexpr int shared_out() {
  if constexpr (Width == 1) return N; else return shared_out<Width / 2, (N + 1) / 2>();
}
// Which of them: `first` and those after it, `count` in all.
template <int Width, int N> CA_INLINE void find_share(int lane, int& first, int& count) {
  if constexpr (Width > 1) {
    constexpr int half = Width / 2, keep = (N + 1) / 2;
    const bool upper = lane & half;
    if (N > 1 && upper) first += keep;
    count = N == 1 ? (upper ? 0 : count) : upper ? imax(count - keep, 0) : imin(count, keep);
    find_share<half, keep>(lane, first, count);
  }
}
// Adds up v over Width neighbouring threads; the sums of a thread's share come to the front. A thread gives half of what
// it has for half of its partner's, so that N sums take about N exchanges and not N for each doubling.
template <int Width, int N, int M> CA_INLINE void share_sums(float (&v)[M], int lane) {
  if constexpr (Width > 1) {
    constexpr int half = Width / 2, keep = (N + 1) / 2;
    const bool upper = lane & half;
#pragma unroll
    for (int i = 0; i < keep; ++i) {
      const float above = keep + i < N ? v[keep + i < N ? keep + i : 0] : 0.f;
      const float given = N == 1 || upper ? v[i] : above, kept = N > 1 && upper ? above : v[i];
      v[i] = kept + __shfl_xor_sync(0xffffffffu, given, half);
    }
    share_sums<half, keep>(v, lane);
  }
}

// ---- what the input adds to the gates ------------------------------------------------------------------------------

// P[t, b] = x[t, b] W^T + biases, a tile of 16 * Each rows and columns for a block of 256 threads, each with Each x Each
// sums. Hidden biases are in the sums of the first `folded` columns only.
template <class S> struct project {
  typedef typename S::index index;
  static constexpr int each = S::each, tile = 16 * each, deep = 16, line = tile + 4, loads = tile / 16;
  static constexpr int shared_floats = 4 * deep * line;
  const float *x, *weights, *inner_bias, *hidden_bias;
  float* sums;

  // Threads of half a warp read neighbours along k.
  CA_INLINE void read(float (&a)[loads], float (&b)[loads], int row, int column, int k) const {
    const bool within = k < S::depth;
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const int m = row + 16 * i, n = column + 16 * i;
      const index at = idiv(m, S::batch) * S::x_time + imod(m, S::batch) * S::x_batch;
      a[i] = within && m < S::rows ? x[at + k * S::x_feature] : 0.f;
      b[i] = within && n < S::columns ? weights[index(n) * S::depth + k] : 0.f;
    }
  }
  CA_INLINE void put(float* part, const float (&a)[loads], const float (&b)[loads]) const {
    float* at = part + threadIdx.x % 16 * line + threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < loads; ++i) { at[16 * i] = a[i]; at[deep * line + 16 * i] = b[i]; }
  }
  CA_INLINE void multiply(const float* part, float (&sum)[each][each]) const {
    const float* left = part + threadIdx.x / 16 * 4;
    const float* right = part + deep * line + threadIdx.x % 16 * 4;
#pragma unroll
    for (int k = 0; k < deep; ++k) {
      float4 a[each / 4], b[each / 4];
#pragma unroll
      for (int i = 0; i < each / 4; ++i) {
        a[i] = *reinterpret_cast<const float4*>(left + k * line + 64 * i);
        b[i] = *reinterpret_cast<const float4*>(right + k * line + 64 * i);
      }
#pragma unroll
      for (int i = 0; i < each; ++i)
#pragma unroll
        for (int j = 0; j < each; ++j) sum[i][j] += component(a[i / 4], i % 4) * component(b[j / 4], j % 4);
    }
  }
  static CA_INLINE float component(const float4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
  CA_INLINE float bias(int column) const {
    if constexpr (!S::biased) return 0.f;
    else return inner_bias[column] + (column < S::folded ? hidden_bias[column] : 0.f);
  }
  CA_INLINE void run(float* shared) const {
    const int first_row = blockIdx.x * tile, first_column = blockIdx.y * tile, own_k = threadIdx.x % 16, line_of = threadIdx.x / 16;
    float sum[each][each] = {}, a[loads], b[loads];
    read(a, b, first_row + line_of, first_column + line_of, own_k);
    put(shared, a, b);
    __syncthreads();
    for (int k = 0, turn = 0; k < S::depth; k += deep, turn ^= 1) {
      const bool more = k + deep < S::depth;
      if (more) read(a, b, first_row + line_of, first_column + line_of, k + deep + own_k);
      multiply(shared + turn * 2 * deep * line, sum);
      if (more) put(shared + (turn ^ 1) * 2 * deep * line, a, b);
      __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int n = first_column + threadIdx.x % 16 * 4 + 64 * (j / 4) + j % 4;
      if (n >= S::columns) continue;
      const float more = bias(n);
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int m = first_row + threadIdx.x / 16 * 4 + 64 * (i / 4) + i % 4;
        if (m < S::rows) sums[index(m) * S::columns + n] = sum[i][j] + more;
      }
    }
  }
};

// ---- the steps -----------------------------------------------------------------------------------------------------

// As `sigmoid_`, within two roundings and without a branch: the gates of a unit are reckoned with side by side.
CA_INLINE float gate(float x) { return __fdividef(1.f, 1.f + ::exp(-x)); }
// The units' kinds. `next` takes what the input adds to a unit's gates, what h adds, and the unit's own state.
struct lstm_unit {
  static constexpr int gates = 4;
  static CA_INLINE float next(const float (&p)[4], const float (&q)[4], float, float, float& c) {
    const float in = gate(p[0] + q[0]), forget = gate(p[1] + q[1]), out = gate(p[3] + q[3]);
    c = forget * c + in * ::tanh(p[2] + q[2]);
    return out * ::tanh(c);
  }
};
struct gru_unit {
  static constexpr int gates = 3;
  static CA_INLINE float next(const float (&p)[3], const float (&q)[3], float bias, float h, float&) {
    const float reset = gate(p[0] + q[0]), keep = gate(p[1] + q[1]);
    const float fresh = ::tanh(p[2] + reset * (q[2] + bias));
    return (h - fresh) * keep + fresh;
  }
};
struct tanh_unit {
  static constexpr int gates = 1;
  static CA_INLINE float next(const float (&p)[1], const float (&q)[1], float, float, float&) { return ::tanh(p[0] + q[0]); }
};
struct relu_unit {
  static constexpr int gates = 1;
  static CA_INLINE float next(const float (&p)[1], const float (&q)[1], float, float, float&) { return max_(p[0] + q[0], 0.f); }
};

// Shared memory: h before and after a step, in rows where each block's units begin at a multiple of `slice`; sums of the
// gates; weights that registers do not hold; two barriers, one for each h.
template <class S> struct recurrent_scan {
  typedef typename S::unit unit;
  static constexpr int gates = unit::gates, own = S::own, slice = (own + 3) / 4 * 4, dots = gates * own;
  static constexpr int splits = S::splits, groups = S::threads / splits, each = (dots + groups - 1) / groups;
  static constexpr int deep = (S::ranks * slice + 4 * splits - 1) / (4 * splits), line = 4 * splits * deep;
  static constexpr int kept = S::kept < deep ? S::kept : deep, rest = deep - kept;
  static constexpr int values = each * S::rows, share = shared_out<splits, values>();
  static constexpr int items = S::rows * slice, turns = (items + S::threads - 1) / S::threads;
  static constexpr bool cluster = S::ranks > 1;
  // Blocks of a cluster meet once a step, so sums of the step before may still be read.
  static constexpr int one_sums = (S::rows * dots + 3) / 4 * 4, sum_floats = (cluster ? 2 : 1) * one_sums;
  static constexpr int h_floats = 2 * S::rows * line;
  static constexpr int rest_floats = 4 * rest * each * S::threads;
  static constexpr int in_flight = 8;  // groups of weights on their way to a thread's registers
  static constexpr int targets = (S::ranks + 3) / 4;
  // Blocks send the padding of their slices, too, so that threads need not be told apart.
  static constexpr int step_bytes = 4 * S::rows * S::ranks * slice;

  const float *added, *weights, *hidden_bias, *h, *c;
  float *out, *last_h, *last_c;
  int layer;

  // Of the cluster's block `rank`, its weight for a dot product and a place in h.
  static CA_INLINE float weight(const float* weights, int rank, int dot, int place) {
    const int row = rank * own + dot % own, from = place / slice * own + place % slice;
    const bool there = dot < dots && row < S::units && place % slice < own && from < S::units && place / slice < S::ranks;
    return there ? weights[(int64_t(dot / own) * S::units + row) * S::units + from] : 0.f;
  }
  static CA_INLINE float4 weight_4(const float* weights, int rank, int dot, int place) {
    return {weight(weights, rank, dot, place), weight(weights, rank, dot, place + 1),
            weight(weights, rank, dot, place + 2), weight(weights, rank, dot, place + 3)};
  }
  static CA_INLINE float dot_4(float4 a, float4 b, float sum) { return sum + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

  CA_INLINE void run(float* shared) const {
    float* const others_from = shared + h_floats + sum_floats;
    float4* const others = reinterpret_cast<float4*>(others_from);
    uint64_t* const barriers = reinterpret_cast<uint64_t*>(others_from + rest_floats);
    const int thread = threadIdx.x, lane = thread % splits, group = thread / splits;
    const int rank = cluster ? int(cluster_rank()) : 0, first_row = int(blockIdx.x) / S::ranks * S::rows;
    const int direction = blockIdx.y, state = layer * S::directions + direction;

    if constexpr (cluster) {
      if (thread == 0) {
        barrier_set(barriers);
        barrier_set(barriers + 1);
        barriers_are_set();
        barrier_expect(barriers, step_bytes);
        barrier_expect(barriers + 1, step_bytes);
      }
    }
    for (int i = thread; i < h_floats; i += S::threads) {
      const int row = first_row + i / line, place = i % line, u = place / slice * own + place % slice;
      const bool there = i < h_floats / 2 && row < S::batch && place % slice < own && u < S::units && place / slice < S::ranks;
      shared[i] = there ? h[state * S::h_layer + row * S::h_batch + u * S::h_unit] : 0.f;
    }
    const int nothing = layer >> 20;
    float4 held[kept > 0 ? kept : 1][each];
#pragma unroll
    for (int j = 0; j < kept; ++j)
#pragma unroll
      for (int e = 0; e < each; ++e) {
        // A few at a time: the addresses of all at once would take the registers. So each waits for one before it, by
        // way of a zero that the compiler does not know.
        const int n = j * each + e - in_flight, late = n < 0 ? 0 : __float_as_int(held[imax(n, 0) / each][imax(n, 0) % each].w);
        const int place = 4 * (lane + splits * j) + (late & nothing);
        held[j][e] = weight_4(weights, rank, e * groups + group, place);
      }
    for (int j = 0; j < rest; ++j)
      for (int e = 0; e < each; ++e)
        others[(j * each + e) * S::threads + thread] =
            weight_4(weights, rank, e * groups + group, 4 * (lane + splits * (kept + j)));

    // Where the thread's share of the sums goes.
    int first = 0, count = values, target[share];
    find_share<splits, values>(lane, first, count);
#pragma unroll
    for (int i = 0; i < share; ++i) {
      const int at = first + i, dot = at / S::rows * groups + group;
      target[i] = i < count && dot < dots ? at % S::rows * dots + dot : -1;
    }

    // The thread's units.
    const int64_t stride = (direction ? -1 : 1) * int64_t(S::batch) * gates * S::units;
    float own_h[turns], own_c[turns], bias[turns], p[turns][gates];
    const float* next_p[turns];
    bool there[turns];
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      const int item = thread + i * S::threads, row = first_row + item / slice, u = rank * own + item % slice;
      there[i] = item < items && row < S::batch && item % slice < own && u < S::units;
      own_h[i] = there[i] ? h[state * S::h_layer + row * S::h_batch + u * S::h_unit] : 0.f;
      own_c[i] = S::has_cell && there[i] ? c[state * S::c_layer + row * S::c_batch + u * S::c_unit] : 0.f;
      bias[i] = S::has_bias && there[i] ? hidden_bias[2 * S::units + u] : 0.f;
      const int64_t t = int64_t(direction) * S::steps + (direction ? S::steps - 1 : 0);
      next_p[i] = added + (there[i] ? (t * S::batch + row) * (gates * S::units) + u : 0);
#pragma unroll
      for (int g = 0; g < gates; ++g) p[i][g] = next_p[i][g * S::units];
    }
    unsigned windows[targets] = {};
    if constexpr (cluster) {
#pragma unroll
      for (int i = 0; i < targets; ++i) windows[i] = address_in(shared, (rank + thread % 4 + 4 * i) % S::ranks);
      cluster_arrive();
      cluster_wait();
    } else {
      __syncthreads();
    }

    for (int step = 0; step < S::steps; ++step) {
      const int64_t t = direction ? S::steps - 1 - step : step;
      const int from = step % 2 * S::rows * line, to = (step + 1) % 2 * S::rows * line;
      float* const sums = shared + h_floats + (cluster ? step % 2 * one_sums : 0);
      const bool last = step + 1 == S::steps;
      float ahead[turns][gates];
#pragma unroll
      for (int i = 0; i < turns; ++i) {
        if (there[i] && !last) next_p[i] += stride;
#pragma unroll
        for (int g = 0; g < gates; ++g) ahead[i][g] = read_early(next_p[i] + g * S::units);
      }
      if constexpr (cluster) {
        if (step > 0) {
          barrier_wait(barriers + step % 2, (step - 1) / 2 % 2);
          if (thread == 0) barrier_expect(barriers + step % 2, step_bytes);
        }
      }
      float sum[values] = {};
#pragma unroll
      for (int j = 0; j < kept; ++j)
#pragma unroll
        for (int r = 0; r < S::rows; ++r) {
          const float4 x = *reinterpret_cast<const float4*>(shared + from + r * line + 4 * (lane + splits * j));
#pragma unroll
          for (int e = 0; e < each; ++e) sum[e * S::rows + r] = dot_4(held[j][e], x, sum[e * S::rows + r]);
        }
#pragma unroll 1
      for (int j = 0; j < rest; ++j) {
        float4 w[each];
#pragma unroll
        for (int e = 0; e < each; ++e) w[e] = others[(j * each + e) * S::threads + thread];
#pragma unroll
        for (int r = 0; r < S::rows; ++r) {
          const float4 x = *reinterpret_cast<const float4*>(shared + from + r * line + 4 * (lane + splits * (kept + j)));
#pragma unroll
          for (int e = 0; e < each; ++e) sum[e * S::rows + r] = dot_4(w[e], x, sum[e * S::rows + r]);
        }
      }
      share_sums<splits, values>(sum, lane);
#pragma unroll
      for (int i = 0; i < share; ++i)
        if (target[i] >= 0) sums[target[i]] = sum[i];
      __syncthreads();

#pragma unroll
      for (int i = 0; i < turns; ++i) {
        const int item = thread + i * S::threads, u = item % slice, in_slice = item / slice;
        // whole warps, as four threads exchange what they made
        if (item / 32 * 32 >= items) continue;
        float q[gates];
#pragma unroll
        for (int g = 0; g < gates; ++g) q[g] = there[i] ? sums[in_slice * dots + g * own + u] : 0.f;
        const float made = there[i] ? unit::next(p[i], q, bias[i], own_h[i], own_c[i]) : 0.f;
        own_h[i] = made;
        if (!last) {
          const int place = to + in_slice * line + rank * slice + u;
          if constexpr (cluster) {
            const int quad = thread % 32 / 4 * 4;
            const float4 x = {__shfl_sync(0xffffffffu, made, quad), __shfl_sync(0xffffffffu, made, quad + 1),
                              __shfl_sync(0xffffffffu, made, quad + 2), __shfl_sync(0xffffffffu, made, quad + 3)};
#pragma unroll
            for (int n = 0; n < targets; ++n)
              if (item < items && (S::ranks % 4 == 0 || thread % 4 + 4 * n < S::ranks))
                send(windows[n] + 4 * (place - thread % 4), x,
                     windows[n] + 4 * (h_floats + sum_floats + rest_floats) + 8 * ((step + 1) % 2));
          } else if (there[i]) {
            shared[place] = made;
          }
        }
        if (there[i]) {
          const int64_t row = first_row + in_slice, at = rank * own + u;
          if constexpr (S::has_out) out[t * S::out_time + row * S::out_batch + (int64_t(direction) * S::units + at) * S::out_unit] = made;
          if (last) {
            if constexpr (S::has_last_h) last_h[state * S::last_h_layer + row * S::last_h_batch + at * S::last_h_unit] = made;
            if constexpr (S::has_last_c) last_c[state * S::last_c_layer + row * S::last_c_batch + at * S::last_c_unit] = own_c[i];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < turns; ++i)
#pragma unroll
        for (int g = 0; g < gates; ++g) p[i][g] = ahead[i][g];
      if constexpr (!cluster) __syncthreads();
    }
  }
};

}  // namespace ca
