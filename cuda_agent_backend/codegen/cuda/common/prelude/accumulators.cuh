// ---- accumulators: `update` takes values, `merge` another accumulator, `result` closes ---------------------------
// Lanes stay apart until `across`; threads, warps and blocks join by `merge` in a fixed order, so results repeat.

#define CA_ACCUMULATOR(NAME, IDENTITY, JOIN)                                                                          \
  template <class T, int L> struct NAME {                                                                             \
    typedef typename select_<(sizeof(T) < 4), int, T>::type W;                                                        \
    typedef T result_type;                                                                                            \
    W v[L];                                                                                                           \
    CA_INLINE NAME() { CA_LANES v[i] = W(IDENTITY); }                                                                 \
    static CA_INLINE W join(W x, W y) { return W(JOIN); }                                                             \
    CA_INLINE void update(vec<T, L> a, int = 0, int = 0) { CA_LANES v[i] = join(v[i], W(a.v[i])); }                   \
    CA_INLINE void update_together(vec<T, L> a, int = 0, int = 0) {                                                   \
      W w[L]; CA_LANES w[i] = W(a.v[i]);                                                                              \
      _Pragma("unroll") for (int h = 1; h < L; h *= 2) {                                                              \
        _Pragma("unroll") for (int i = 0; i + h < L; i += 2 * h) w[i] = join(w[i], w[i + h]);                         \
      }                                                                                                               \
      v[0] = join(v[0], w[0]);                                                                                        \
    }                                                                                                                 \
    CA_INLINE void merge(const NAME& o) { CA_LANES v[i] = join(v[i], o.v[i]); }                                       \
    CA_INLINE vec<T, L> result() const { vec<T, L> r; CA_LANES r.v[i] = T(v[i]); return r; }                          \
    CA_INLINE NAME<T, 1> lane(int i) const { NAME<T, 1> r; r.v[0] = v[i]; return r; }                                 \
  };
CA_ACCUMULATOR(sum_acc, T(0), x + y)
CA_ACCUMULATOR(prod_acc, T(1), x * y)
CA_ACCUMULATOR(max_acc, lowest<T>(), max_(x, y))
CA_ACCUMULATOR(min_acc, highest<T>(), min_(x, y))
CA_ACCUMULATOR(xor_sum_acc, T(0), x ^ y)
#undef CA_ACCUMULATOR
// A sum whose terms may cancel: rounded terms are added up in double, where no product can be merged with its addition.
template <class T, int L> struct wide_sum_acc {
  typedef T result_type;
  double v[L];
  CA_INLINE wide_sum_acc() { CA_LANES v[i] = 0.0; }
  CA_INLINE void update(vec<T, L> a, int = 0, int = 0) { CA_LANES v[i] += double(a.v[i]); }
  CA_INLINE void merge(const wide_sum_acc& o) { CA_LANES v[i] += o.v[i]; }
  CA_INLINE vec<T, L> result() const { vec<T, L> r; CA_LANES r.v[i] = T(v[i]); return r; }
  CA_INLINE wide_sum_acc<T, 1> lane(int i) const { wide_sum_acc<T, 1> r; r.v[0] = v[i]; return r; }
};
template <class T, int L> struct any_acc {
  typedef bool result_type;
  int v[L];
  CA_INLINE any_acc() { CA_LANES v[i] = 0; }
  CA_INLINE void update(vec<T, L> a, int = 0, int = 0) { CA_LANES v[i] |= a.v[i] != T(0); }
  CA_INLINE void merge(const any_acc& o) { CA_LANES v[i] |= o.v[i]; }
  CA_INLINE vec<bool, L> result() const { vec<bool, L> r; CA_LANES r.v[i] = v[i] != 0; return r; }
  CA_INLINE any_acc<T, 1> lane(int i) const { any_acc<T, 1> r; r.v[0] = v[i]; return r; }
};
// Position of the first extreme value; NaN beats every number, as in PyTorch. Positions fit 32 bits.
template <class T, int L, bool Max> struct arg_acc {
  typedef typename select_<(sizeof(T) < 4), int, T>::type W;
  typedef int64_t result_type;
  W v[L];
  int at[L];
  CA_INLINE arg_acc() { CA_LANES { v[i] = W(Max ? lowest<T>() : highest<T>()); at[i] = 0x7fffffff; } }
  // Positions of the lanes are `step` apart. A thread meets its positions in rising order.
  CA_INLINE void update(vec<T, L> a, int position, int step) {
    CA_LANES {
      const W x = W(a.v[i]);
      const bool better = !(Max ? x <= v[i] : x >= v[i]) && v[i] == v[i];
      v[i] = better ? x : v[i];
      at[i] = better ? position + i * step : at[i];
    }
  }
  static CA_INLINE bool before(W a, int ia, W b, int ib) {
    if (a != a || b != b) return a != a && (b == b || ia < ib);
    return a == b ? ia < ib : Max ? a > b : a < b;
  }
  CA_INLINE void merge(const arg_acc& o) {
    CA_LANES {
      const bool take = before(o.v[i], o.at[i], v[i], at[i]);
      v[i] = take ? o.v[i] : v[i];
      at[i] = take ? o.at[i] : at[i];
    }
  }
  // Never updated: every value was the worst there is, so the first is as good as any.
  CA_INLINE vec<int64_t, L> result() const { vec<int64_t, L> r; CA_LANES r.v[i] = at[i] == 0x7fffffff ? 0 : at[i]; return r; }
  CA_INLINE arg_acc<T, 1, Max> lane(int i) const { arg_acc<T, 1, Max> r; r.v[0] = v[i]; r.at[0] = at[i]; return r; }
};
template <class T, int L> using argmax_acc = arg_acc<T, L, true>;
template <class T, int L> using argmin_acc = arg_acc<T, L, false>;

// Mean and sum of squared deviations; parts join as Chan, Golub and LeVeque do.
template <class T, int L> struct welford_acc {
  T mean[L], m2[L], n[L];
  CA_INLINE welford_acc() { CA_LANES mean[i] = m2[i] = n[i] = T(0); }
  CA_INLINE void update(vec<T, L> a, int = 0, int = 0) {
    const T next = n[0] + T(1), share = inverse(next);
    CA_LANES { const T d = a.v[i] - mean[i]; mean[i] += d * share; m2[i] += d * (a.v[i] - mean[i]); n[i] = next; }
  }
  // The same in two passes over values at hand: first their sum, then deviations from their own mean.
  CA_INLINE void count(vec<T, L> a) { CA_LANES mean[i] += a.v[i]; n[0] += T(1); CA_LANES n[i] = n[0]; }
  CA_INLINE void center() { CA_LANES mean[i] = n[i] > T(0) ? mean[i] / n[i] : T(0); }
  CA_INLINE void deviate(vec<T, L> a) { CA_LANES { const T d = a.v[i] - mean[i]; m2[i] += d * d; } }
  CA_INLINE void merge(const welford_acc& o) {
    CA_LANES {
      const T both = n[i] + o.n[i], share = both > T(0) ? ratio(o.n[i], both) : T(0), d = o.mean[i] - mean[i];
      mean[i] += d * share;
      m2[i] += o.m2[i] + d * (d * (n[i] * share));  // nothing where this part is empty, even if d * d overflows
      n[i] = both;
    }
  }
  // A weight within two roundings: it scales the difference of two means of the same row. Exact where one part is all.
  static CA_INLINE float ratio(float a, float b) { return a == b ? 1.f : __fdividef(a, b); }
  static CA_INLINE double ratio(double a, double b) { return a / b; }
  // Of a count, as rounded as a division, whose slow routine is behind a branch that all loads after it wait for.
  static CA_INLINE float inverse(float n) {
    const float rough = rough_reciprocal_(n);
    return fmaf(rough, fmaf(-n, rough, 1.f), rough);
  }
  static CA_INLINE double inverse(double n) { return 1. / n; }
  CA_INLINE vec<T, L> result(int field) const {
    vec<T, L> r; CA_LANES r.v[i] = field == 0 ? mean[i] : field == 1 ? m2[i] : n[i]; return r;
  }
  CA_INLINE welford_acc<T, 1> lane(int i) const {
    welford_acc<T, 1> r; r.mean[0] = mean[i]; r.m2[0] = m2[i]; r.n[0] = n[i]; return r;
  }
};

// The accumulator of all lanes, joined as a tree.
template <int L, class A> CA_INLINE auto across(A a) {
  auto lanes = [&](int i) { return a.lane(i); };
  decltype(a.lane(0)) part[L];
  CA_LANES part[i] = lanes(i);
#pragma unroll
  for (int step = L / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < step; ++i) part[i].merge(part[i + step]);
  return part[0];
}
