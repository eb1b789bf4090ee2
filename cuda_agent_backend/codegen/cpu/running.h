// What running sums of exponentials and the places of running extremes need.
namespace ca {

template <int L> CA_INLINE vec<int32_t, L> float_bits(vec<float, L> a) {
  vec<int32_t, L> r{};
  for (int i = 0; i < L; ++i) set_lane(r, i, bits_of<int32_t>(lane(a, i)));
  return r;
}

// A running sum of exponentials in each lane: its largest term's exponent, and what the others come to beside that term.
// So an element costs one exponential, and a sum that is little more than its largest term loses nothing of the rest.
template <int L> struct exponentials {
  vec<double, L> top = splat<double, L>(-limits<double>::inf()), rest = splat<double, L>(0.0);
  CA_INLINE vec<double, L> result() const { return add(top, log1p(rest)); }
};
// One exponent more. Equal infinities, whose difference is NaN, stay what they are; a NaN stays.
CA_INLINE void take(double x, double& top, double& rest) {
  if (x < top) {
    rest += std::exp(x - top);
  } else if (x > top) {
    rest = (1.0 + rest) * std::exp(top - x);
    top = x;
  } else if (x != top) {
    top = limits<double>::nan();
  } else if (x - top == 0.0) {
    rest += 1.0;
  }
}
struct scan_logaddexp {
  template <int L> static CA_INLINE exponentials<L> combine(exponentials<L> a, vec<double, L> x) {
    for (int i = 0; i < L; ++i) {
      double top = lane(a.top, i), rest = lane(a.rest, i);
      take(lane(x, i), top, rest);
      set_lane(a.top, i, top);
      set_lane(a.rest, i, rest);
    }
    return a;
  }
};
template <class T, int L> CA_INLINE vec<T, L> to(const exponentials<L>& a) { return to<T>(a.result()); }
template <class Op, int L> CA_INLINE vec<double, L> scan_lanes(vec<double, L> v, exponentials<1>& carry) {
  exponentials<L> all;
  double top = carry.top.x, rest = carry.rest.x;
  for (int i = 0; i < L; ++i) {
    take(lane(v, i), top, rest);
    set_lane(all.top, i, top);
    set_lane(all.rest, i, rest);
  }
  carry.top.x = top;
  carry.rest.x = rest;
  return all.result();
}

}  // namespace ca
