// ---- indices: `int` or `int64_t`, never negative where they are divided ---------------------------------------

CA_INLINE int idiv(int a, int b) { return int(unsigned(a) / unsigned(b)); }
CA_INLINE int imod(int a, int b) { return int(unsigned(a) % unsigned(b)); }
CA_INLINE int64_t idiv(int64_t a, int64_t b) { return int64_t(uint64_t(a) / uint64_t(b)); }
CA_INLINE int64_t imod(int64_t a, int64_t b) { return int64_t(uint64_t(a) % uint64_t(b)); }
CA_INLINE int64_t idiv(int64_t a, int b) { return idiv(a, int64_t(b)); }
CA_INLINE int64_t imod(int64_t a, int b) { return imod(a, int64_t(b)); }
#define CA_INDEX(NAME, OP)                                                                                            \
  CA_INLINE int NAME(int a, int b) { return OP; }                                                                     \
  CA_INLINE int64_t NAME(int64_t a, int64_t b) { return OP; }                                                         \
  CA_INLINE int64_t NAME(int64_t a, int b) { return OP; }                                                             \
  CA_INLINE int64_t NAME(int a, int64_t b) { return OP; }
CA_INDEX(imax, a > b ? a : b) CA_INDEX(imin, a < b ? a : b) CA_INDEX(plus_, a + b) CA_INDEX(times_, a * b)
#undef CA_INDEX
template <int L, class I> CA_INLINE vec<I, L> iota(I start) { vec<I, L> r; CA_LANES r.v[i] = start + i; return r; }
template <int L, class I> CA_INLINE vec<int32_t, L> iota32(I start) { vec<int32_t, L> r; CA_LANES r.v[i] = int32_t(start) + i; return r; }
#define CA_INDEX(NAME)                                                                                               \
  template <int L, class I> CA_INLINE vec<I, L> NAME(vec<I, L> a, int b) {                                            \
    vec<I, L> r; CA_LANES r.v[i] = I(NAME(a.v[i], b)); return r;                                                      \
  }                                                                                                                  \
  template <int L, class I> CA_INLINE vec<I, L> NAME(int a, vec<I, L> b) {                                            \
    vec<I, L> r; CA_LANES r.v[i] = I(NAME(a, b.v[i])); return r;                                                      \
  }                                                                                                                  \
  template <int L> CA_INLINE vec<int64_t, L> NAME(vec<int64_t, L> a, int64_t b) {                                     \
    vec<int64_t, L> r; CA_LANES r.v[i] = NAME(a.v[i], b); return r;                                                   \
  }                                                                                                                  \
  template <int L> CA_INLINE vec<int64_t, L> NAME(int64_t a, vec<int64_t, L> b) {                                     \
    vec<int64_t, L> r; CA_LANES r.v[i] = NAME(a, b.v[i]); return r;                                                   \
  }                                                                                                                  \
  template <int L, class I> CA_INLINE vec<I, L> NAME(vec<I, L> a, vec<I, L> b) {                                      \
    vec<I, L> r; CA_LANES r.v[i] = NAME(a.v[i], b.v[i]); return r;                                                    \
  }
CA_INDEX(idiv) CA_INDEX(imod) CA_INDEX(imax) CA_INDEX(imin) CA_INDEX(plus_) CA_INDEX(times_)
#undef CA_INDEX
#define CA_INDEX(OP, NAME)                                                                                            \
  template <int L, class I> CA_INLINE vec<I, L> operator OP(vec<I, L> a, vec<I, L> b) { return NAME(a, b); }          \
  template <int L, class I> CA_INLINE vec<I, L> operator OP(vec<I, L> a, int b) { return NAME(a, b); }                \
  template <int L, class I> CA_INLINE vec<I, L> operator OP(int a, vec<I, L> b) { return NAME(a, b); }                \
  template <int L> CA_INLINE vec<int64_t, L> operator OP(vec<int64_t, L> a, int64_t b) { return NAME(a, b); }         \
  template <int L> CA_INLINE vec<int64_t, L> operator OP(int64_t a, vec<int64_t, L> b) { return NAME(a, b); }
CA_INDEX(+, plus_) CA_INDEX(*, times_)
#undef CA_INDEX
