// What the places of running extremes need.
namespace ca {

template <int L> CA_INLINE vec<int32_t, L> float_bits(vec<float, L> a) {
  vec<int32_t, L> r; CA_LANES r.v[i] = __float_as_int(a.v[i]); return r;
}

}  // namespace ca
