// Functions that few kernels have: those of CUDA's mathematical library.
namespace ca {

#define CA_SPECIAL1(NAME, SINGLE, DOUBLE)                                                                             \
  CA_INLINE float NAME##_(float x) { return SINGLE(x); }                                                              \
  CA_INLINE double NAME##_(double x) { return DOUBLE(x); }                                                            \
  template <class T, int L> CA_INLINE vec<T, L> NAME(vec<T, L> a) {                                                   \
    vec<T, L> r; CA_LANES r.v[i] = NAME##_(a.v[i]); return r;                                                         \
  }
CA_SPECIAL1(special_erfcx, ::erfcxf, ::erfcx) CA_SPECIAL1(special_erfinv, ::erfinvf, ::erfinv)
#undef CA_SPECIAL1
CA_INLINE float next_(float x, float y) { return ::nextafterf(x, y); }
CA_INLINE double next_(double x, double y) { return ::nextafter(x, y); }
template <class T, int L> CA_INLINE vec<T, L> special_nextafter(vec<T, L> a, vec<T, L> b) {
  vec<T, L> r; CA_LANES r.v[i] = next_(a.v[i], b.v[i]); return r;
}

}  // namespace ca
