// ---- reductions ---------------------------------------------------------------------------------------------
// An accumulator takes vectors with `update`, is closed with `flush` now and then (sums cascade: short runs are
// added to a second level, so that the error grows with the run, not with the row), and joins others with `merge`.

template <class T, int L> struct sum_acc {
  vec<T, L> run = splat<T, L>(T(0)), total = splat<T, L>(T(0)), lost = splat<T, L>(T(0));
  CA_INLINE void update(vec<T, L> v, int64_t) { run = add(run, v); }
  // The second level keeps what rounding loses (two-sum), so only the short runs decide the error.
  CA_INLINE void flush() {
    if constexpr (std::is_floating_point_v<T>) {
      const auto sum = add(total, run), from_run = sub(sum, total);
      lost = add(lost, add(sub(total, sub(sum, from_run)), sub(run, from_run)));
      total = sum;
    } else {
      total = add(total, run);
    }
    run = splat<T, L>(T(0));
  }
  CA_INLINE vec<T, L> result() {
    flush();
    if constexpr (std::is_floating_point_v<T>) return where(eq(lost, lost), add(total, lost), total);  // inf - inf
    else return total;
  }
  CA_INLINE void merge(sum_acc o) { run = add(run, o.result()); flush(); }
  static CA_INLINE T combine(T a, T b) { return a + b; }
};
template <class T, int L> struct prod_acc {
  vec<T, L> total = splat<T, L>(T(1));
  CA_INLINE void update(vec<T, L> v, int64_t) { total = mul(total, v); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(prod_acc o) { total = mul(total, o.total); }
  CA_INLINE vec<T, L> result() { return total; }
  static CA_INLINE T combine(T a, T b) { return a * b; }
};
template <class T, int L> struct max_acc {
  vec<T, L> total = splat<T, L>(lowest<T>());
  CA_INLINE void update(vec<T, L> v, int64_t) { total = maximum(v, total); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(max_acc o) { total = maximum(total, o.total); }
  CA_INLINE vec<T, L> result() { return total; }
  static CA_INLINE T combine(T a, T b) { return maximum(vec<T, 1>{a}, vec<T, 1>{b}).x; }
};
template <class T, int L> struct min_acc {
  vec<T, L> total = splat<T, L>(highest<T>());
  CA_INLINE void update(vec<T, L> v, int64_t) { total = minimum(v, total); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(min_acc o) { total = minimum(total, o.total); }
  CA_INLINE vec<T, L> result() { return total; }
  static CA_INLINE T combine(T a, T b) { return minimum(vec<T, 1>{a}, vec<T, 1>{b}).x; }
};
template <class T, int L> struct any_acc {
  vec<bool, L> total = splat<bool, L>(false);
  CA_INLINE void update(vec<T, L> v, int64_t) { total = logical_or(total, v); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(any_acc o) { total = logical_or(total, o.total); }
  CA_INLINE vec<bool, L> result() { return total; }
  static CA_INLINE bool combine(bool a, bool b) { return a || b; }
};
template <class T, int L> struct xor_sum_acc {
  vec<T, L> total = splat<T, L>(T(0));
  CA_INLINE void update(vec<T, L> v, int64_t) { total = bitwise_xor(total, v); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(xor_sum_acc o) { total = bitwise_xor(total, o.total); }
  CA_INLINE vec<T, L> result() { return total; }
  static CA_INLINE T combine(T a, T b) { return a ^ b; }
};
// One value out of a vector's lanes and the accumulator of the scalar tail.
template <template <class, int> class Acc, class T, int L> CA_INLINE auto across(Acc<T, L> a, Acc<T, 1> tail) {
  auto v = a.result();
  auto r = tail.result();
  for (int i = 0; i < L; ++i) r.x = Acc<T, 1>::combine(r.x, lane(v, i));
  return r;
}

// Position of the first extreme value; NaN beats every number, as in PyTorch. Positions fit 32 bits.
template <class T, int L, bool Max> struct arg_acc {
  vec<T, L> best = splat<T, L>(Max ? lowest<T>() : highest<T>());
  vec<int32_t, L> at = splat<int32_t, L>(0x7fffffff);
  CA_INLINE void take(vec<T, L> v, vec<int32_t, L> where_) {
    vec<bool, L> better = Max ? gt(v, best) : lt(v, best);
    if constexpr (std::is_floating_point_v<T>)
      better = logical_and(logical_not(Max ? le(v, best) : ge(v, best)), eq(best, best));
    best = where(better, v, best);
    at = where(better, where_, at);
  }
  // `position` is that of lane 0; `Step` apart along the lanes (0: one row per lane)
  template <int Step = 1> CA_INLINE void update(vec<T, L> v, int64_t position) {
    vec<int32_t, L> p = splat<int32_t, L>(int32_t(position));
    if constexpr (L > 1 && Step) for (int i = 0; i < L; ++i) p.x[i] = int32_t(position) + i * Step;
    take(v, p);
  }
  CA_INLINE void flush() {}
  static CA_INLINE bool before(T a, int32_t ia, T b, int32_t ib) {
    if (a != a || b != b) return a != a && (b == b || ia < ib);
    if (a == b) return ia < ib;
    return Max ? a > b : a < b;
  }
  CA_INLINE void merge(arg_acc o) {
    for (int i = 0; i < L; ++i)
      if (before(lane(o.best, i), lane(o.at, i), lane(best, i), lane(at, i))) {
        set_lane(best, i, lane(o.best, i));
        set_lane(at, i, lane(o.at, i));
      }
  }
  CA_INLINE vec<int64_t, L> result() {
    // never updated: every value was the worst one, so the first is as good as any
    return to<int64_t>(where(eq(at, splat<int32_t, L>(0x7fffffff)), splat<int32_t, L>(0), at));
  }
};
template <class T, int L> struct argmax_acc : arg_acc<T, L, true> {};
template <class T, int L> struct argmin_acc : arg_acc<T, L, false> {};
// For a mean that is then subtracted: what rounding loses here comes back in every difference. Runs are shorter
// (loop_nest.py's MEAN_RUNS), and what they add up to is kept whole until the end.
template <class T, int L> struct mean_sum_acc : sum_acc<T, L> {
  CA_INLINE void merge(mean_sum_acc o) {
    o.flush();
    this->run = add(this->run, o.total);
    this->flush();
    this->lost = add(this->lost, o.lost);
  }
};
template <class T, int L> CA_INLINE vec<T, 1> across(mean_sum_acc<T, L> a, mean_sum_acc<T, 1> tail) {
  a.flush();
  tail.flush();
  const auto whole = [](T total, T lost) { return lost == lost ? double(total) + double(lost) : double(total); };  // inf - inf
  double sum = whole(tail.total.x, tail.lost.x);
  for (int i = 0; i < L; ++i) sum += whole(lane(a.total, i), lane(a.lost, i));
  return {T(sum)};
}
template <class T, int L> CA_INLINE vec<bool, L> finite(vec<T, L> a) { return eq(sub(a, a), splat<T, L>(T(0))); }
template <class T, int L> CA_INLINE bool all_finite(vec<T, L> a) {
  const auto differences = sub(a, a);
  T sum = T(0);
  for (int i = 0; i < L; ++i) sum += lane(differences, i);
  return sum == T(0);
}
// The mean of numbers whose sum overflows, as a whole or on the way: in double, and of doubles that are scaled by a
// power of two.
template <class T, int L> struct far_mean_acc {
  static constexpr double scale = std::is_same_v<T, double> ? 0x1p-64 : 1.0;
  vec<double, L> total = splat<double, L>(0.0);
  CA_INLINE void update(vec<T, L> v) { total = add(total, mul(to<double>(v), splat<double, L>(scale))); }
  CA_INLINE vec<T, L> mean(double count) {
    return to<T>(mul(truediv(total, splat<double, L>(count)), splat<double, L>(1.0 / scale)));
  }
};
// `total` divided by `count`. Where that is not finite the values are added up once more, by `again`, to a `far_mean_acc`:
// a sum may overflow where the mean does not, and one part of it to each infinity.
template <class T, int L, class Again> CA_INLINE vec<T, L> mean_of(vec<T, L> total, int64_t count, Again again) {
  const auto mean = truediv(total, splat<T, L>(T(count)));
  if (__builtin_expect(all_finite(mean), 1)) return mean;
  far_mean_acc<T, L> far;
  again(far);
  return where(finite(mean), mean, far.mean(double(count)));
}
// A sum whose terms may cancel: rounded terms are added up in double, where no product can be merged with its addition.
template <class T, int L> struct wide_sum_acc {
  vec<double, L> total = splat<double, L>(0.0);
  CA_INLINE void update(vec<T, L> v, int64_t) { total = add(total, to<double>(v)); }
  CA_INLINE void flush() {}
  CA_INLINE void merge(wide_sum_acc o) { total = add(total, o.total); }
  CA_INLINE vec<T, L> result() { return to<T>(total); }
};
template <class T, int L> CA_INLINE vec<T, 1> across(wide_sum_acc<T, L> a, wide_sum_acc<T, 1> tail) {
  double sum = tail.total.x;
  for (int i = 0; i < L; ++i) sum += lane(a.total, i);
  return {T(sum)};
}
template <class T, int L, bool Max> CA_INLINE vec<int64_t, 1> across_arg(arg_acc<T, L, Max> a, arg_acc<T, 1, Max> tail) {
  for (int i = 0; i < L; ++i) tail.merge({{lane(a.best, i)}, {lane(a.at, i)}});
  return tail.result();
}
template <class T, int L> CA_INLINE auto across(argmax_acc<T, L> a, argmax_acc<T, 1> t) { return across_arg<T, L, true>(a, t); }
template <class T, int L> CA_INLINE auto across(argmin_acc<T, L> a, argmin_acc<T, 1> t) { return across_arg<T, L, false>(a, t); }
