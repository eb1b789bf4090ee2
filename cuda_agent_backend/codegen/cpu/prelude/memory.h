// ---- memory -------------------------------------------------------------------------------------------------

template <class S> struct compute { typedef S type; };
template <> struct compute<bf16> { typedef float type; };
template <> struct compute<f16> { typedef float type; };
template <class S> using compute_t = typename compute<S>::type;

CA_INLINE float widen(bf16 v) { return bits_of<float>(uint32_t(v.bits) << 16); }
CA_INLINE float widen(f16 v) { return float(v.value); }
template <class S> CA_INLINE S widen(S v) { return v; }
template <class S, class T> CA_INLINE S narrow(T v) {
  if constexpr (std::is_same_v<S, bf16>) {
    const uint32_t u = bits_of<uint32_t>(float(v));
    const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return {uint16_t(float(v) != float(v) ? (u >> 16) | 0x40 : rounded)};
  } else if constexpr (std::is_same_v<S, f16>) {
    return {static_cast<_Float16>(float(v))};
  } else {
    return static_cast<S>(v);
  }
}

template <int L, class S> CA_INLINE vec<compute_t<S>, L> load(const S* p) {
  typedef compute_t<S> T;
  vec<T, L> r;
  if constexpr (L == 1) {
    r.x = widen(*p);
  } else if constexpr (std::is_same_v<S, bool>) {
    typename raw<int8_t, L>::type b;
    memcpy(&b, p, L);
    r.x = -__builtin_convertvector(b, typename raw<int32_t, L>::type);
  } else if constexpr (std::is_same_v<S, bf16>) {
    typename raw<uint16_t, L>::type b;
    memcpy(&b, p, sizeof(b));
    r.x = (typename raw<float, L>::type)(__builtin_convertvector(b, typename raw<uint32_t, L>::type) << 16);
  } else if constexpr (std::is_same_v<S, f16>) {
    for (int i = 0; i < L; ++i) r.x[i] = widen(p[i]);
  } else {
    memcpy(&r.x, p, sizeof(r.x));
  }
  return r;
}
template <int L, class S> CA_INLINE vec<compute_t<S>, L> broadcast(const S* p) {
  return splat<compute_t<S>, L>(widen(*p));
}
template <class T, int L> CA_INLINE T lane(vec<T, L> a, int i) {
  if constexpr (L == 1) return a.x; else return static_cast<T>(a.x[i]);
}
template <class T, int L> CA_INLINE void set_lane(vec<T, L>& a, int i, T v) {
  if constexpr (L == 1) a.x = v;
  else if constexpr (std::is_same_v<T, bool>) a.x[i] = -int32_t(v);
  else a.x[i] = v;
}
template <int L, class S> CA_INLINE vec<compute_t<S>, L> load_strided(const S* p, int64_t step) {
  vec<compute_t<S>, L> r{};
  for (int i = 0; i < L; ++i) set_lane(r, i, compute_t<S>(widen(p[i * step])));
  return r;
}
// Integers as indices; negative ones count from the end where that is asked for.
template <bool Check, bool Wrap, class T, int L> CA_INLINE vec<int64_t, L> place(vec<T, L> x, int64_t size) {
  static_assert(!Check);
  vec<int64_t, L> r = to<int64_t>(x);
  for (int i = 0; Wrap && i < L; ++i) set_lane(r, i, lane(r, i) < 0 ? lane(r, i) + size : lane(r, i));
  return r;
}
template <int L, class S> CA_INLINE vec<compute_t<S>, L> gather(const S* p, vec<int64_t, L> at) {
  vec<compute_t<S>, L> r{};
  for (int i = 0; i < L; ++i) set_lane(r, i, compute_t<S>(widen(p[lane(at, i)])));
  return r;
}
template <int L, class S> CA_INLINE vec<compute_t<S>, L> gather_masked(const S* p, vec<int64_t, L> at, vec<bool, L> m) {
  vec<compute_t<S>, L> r{};
  for (int i = 0; i < L; ++i) if (lane(m, i)) set_lane(r, i, compute_t<S>(widen(p[lane(at, i)])));
  return r;
}

template <int L, class S, class T> CA_INLINE void store(S* p, vec<T, L> v) {
  if constexpr (L == 1) {
    *p = narrow<S>(v.x);
  } else if constexpr (std::is_same_v<S, bool>) {
    typename raw<int8_t, L>::type b = __builtin_convertvector(-to<bool>(v).x, typename raw<int8_t, L>::type);
    memcpy(p, &b, L);
  } else if constexpr (std::is_same_v<S, bf16> || std::is_same_v<S, f16>) {
    for (int i = 0; i < L; ++i) p[i] = narrow<S>(lane(v, i));
  } else {
    auto c = to<S>(v);
    memcpy(p, &c.x, sizeof(c.x));
  }
}
// Past the caches where the address allows it: an output that is not read again need not evict what is.
template <int L, class S, class T> CA_INLINE void store_stream(S* p, vec<T, L> v) {
#if defined(__AVX__)
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, float> && L == 8) {
    if ((reinterpret_cast<uintptr_t>(p) & 31) == 0) { _mm256_stream_ps(p, (__m256)v.x); return; }
  }
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, float> && L == 4) {
    if ((reinterpret_cast<uintptr_t>(p) & 15) == 0) { _mm_stream_ps(p, (__m128)v.x); return; }
  }
#endif
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, float> && L == 16) {
    if ((reinterpret_cast<uintptr_t>(p) & 63) == 0) { _mm512_stream_ps(p, (__m512)v.x); return; }
  }
#endif
  store<L>(p, v);
}
CA_INLINE void stream_fence() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}
template <int L, class S, class T> CA_INLINE void store_scalar(S* p, vec<T, L> v) { *p = narrow<S>(lane(v, 0)); }
template <int L, class S, class T> CA_INLINE void store_strided(S* p, int64_t step, vec<T, L> v) {
  for (int i = 0; i < L; ++i) p[i * step] = narrow<S>(lane(v, i));
}
template <int L, class S, class T> CA_INLINE void scatter(S* p, vec<int64_t, L> at, vec<T, L> v) {
  for (int i = 0; i < L; ++i) p[lane(at, i)] = narrow<S>(lane(v, i));
}
