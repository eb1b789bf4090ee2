// Sorted rows and the largest or smallest elements of rows. An element is compared as an unsigned number that has torch's
// order (NaN is the largest), followed by its position where that is wanted: elements then differ, and all is stable.

namespace ca {

template <class T> struct ordered {  // integers of up to 32 bits
  typedef uint32_t key;
  static constexpr uint32_t sign = is_signed<T> ? 0x80000000u : 0u;
  static CA_INLINE key of(T x) { return uint32_t(int32_t(x)) ^ sign; }
  static CA_INLINE T back(key k) { return T(int32_t(k ^ sign)); }
};
template <> struct ordered<int64_t> {
  typedef uint64_t key;
  static CA_INLINE key of(int64_t x) { return uint64_t(x) ^ 0x8000000000000000ull; }
  static CA_INLINE int64_t back(key k) { return int64_t(k ^ 0x8000000000000000ull); }
};
template <> struct ordered<float> {
  typedef uint32_t key;
  static CA_INLINE key of(float x) {
    const int b = __float_as_int(x);
    return x != x ? 0xffffffffu : uint32_t(b) ^ (uint32_t(b >> 31) | 0x80000000u);
  }
  static CA_INLINE float back(key k) { return __int_as_float(int(k ^ (k >> 31 ? 0x80000000u : 0xffffffffu))); }
};
template <> struct ordered<double> {
  typedef uint64_t key;
  static CA_INLINE key of(double x) {
    const long long b = __double_as_longlong(x);
    return x != x ? ~0ull : uint64_t(b) ^ (uint64_t(b >> 63) | 0x8000000000000000ull);
  }
  static CA_INLINE double back(key k) {
    return __longlong_as_double((long long)(k ^ (k >> 63 ? 0x8000000000000000ull : ~0ull)));
  }
};

// A number of 64 bits and its position.
struct wide_element {
  uint64_t key;
  uint32_t at;
  CA_INLINE bool operator<(const wide_element& o) const { return key < o.key || (key == o.key && at < o.at); }
};
template <class Key, bool Placed> struct element_ { typedef Key type; };
template <> struct element_<uint32_t, true> { typedef uint64_t type; };
template <> struct element_<uint64_t, true> { typedef wide_element type; };

// Values of memory's type S as elements. A position has one bit more, for the sign of a zero: 0.0 equals -0.0, and which
// of them it was has to be put out.
template <class S, bool Placed, bool Descending> struct elements {
  typedef compute<S> value;
  typedef typename ordered<value>::key key;
  typedef typename element_<key, Placed>::type element;
  static constexpr key flip = Descending ? ~key(0) : key(0);
  static CA_INLINE element make(key k, uint32_t at) {
    if constexpr (!Placed) return k;
    else if constexpr (sizeof(key) == 4) return uint64_t(k) << 32 | at;
    else return wide_element{k, at};
  }
  // Behind all others.
  static CA_INLINE element last() { return make(~key(0), 0xffffffffu); }
  static CA_INLINE key key_of(value x) {
    if constexpr (Placed && is_real<value>) x += value(0);  // -0.0 becomes 0.0
    return ordered<value>::of(x) ^ flip;
  }
  static CA_INLINE element of(value x, uint32_t at) {
    uint32_t negative = 0;
    if constexpr (Placed && is_real<value>) negative = x == value(0) && is_negative(x);
    return make(key_of(x), at << 1 | negative);
  }
  static CA_INLINE bool is_negative(float x) { return __float_as_int(x) < 0; }
  static CA_INLINE bool is_negative(double x) { return __double_as_longlong(x) < 0; }
  static CA_INLINE key key_in(element e) {
    if constexpr (!Placed) return e;
    else if constexpr (sizeof(key) == 4) return key(e >> 32);
    else return e.key;
  }
  static CA_INLINE uint32_t low(element e) {
    if constexpr (!Placed) return 0;
    else if constexpr (sizeof(key) == 4) return uint32_t(e);
    else return e.at;
  }
  static CA_INLINE int64_t position(element e) { return low(e) >> 1; }
  static CA_INLINE value back(element e) {
    const value x = ordered<value>::back(key_in(e) ^ flip);
    if constexpr (Placed && is_real<value>) return low(e) & 1 && x == value(0) ? -value(0) : x;
    else return x;
  }
};

CA_INLINE void order(uint32_t& a, uint32_t& b) {
  const uint32_t low = min(a, b);
  b = max(a, b);
  a = low;
}
template <class E> CA_INLINE void order(E& a, E& b) {
  const bool swap = b < a;
  const E low = swap ? b : a;
  b = swap ? a : b;
  a = low;
}

template <int Team> CA_INLINE void team_sync() {
  if constexpr (Team <= 32) __syncwarp(); else __syncthreads();
}

// Sorts a row of up to `Team * Each` elements by the threads of a team, which all come here. Runs of a thread are sorted by
// a network in registers, then merged two by two: every thread finds where its `Each` results begin in both runs, takes
// them out of shared memory as one falling and one rising part, and orders these by a network. `Each` is odd, so that
// threads next to each other store to different banks.
template <class Packed, class Network, int Team, int Each> struct row_sort {
  typedef typename Packed::element element;
  static constexpr int total = Team * Each;
  element x[Each];

  // How many of the first `diagonal` elements of two runs of `left` and `right` are in the first one.
  static CA_INLINE int cut(const element* a, const element* b, int left, int right, int diagonal) {
    int low = max(0, diagonal - right), high = min(diagonal, left);
    while (low < high) {
      const int middle = (low + high) >> 1;
      if (b[diagonal - 1 - middle] < a[middle]) high = middle; else low = middle + 1;
    }
    return low;
  }
  CA_INLINE void put(element* shared, int t) const {
#pragma unroll
    for (int e = 0; e < Each; ++e) shared[t * Each + e] = x[e];
  }
  // Leaves the sorted row in `shared`, for all of the team. `cuts` has room for `Team`.
  CA_INLINE void run(element* shared, int* cuts, int t) {
    Network::sort(x);
    put(shared, t);
    team_sync<Team>();
#pragma unroll 1
    for (int width = 1; width < Team; width *= 2) {
      const int head = t & -2 * width, first = head * Each, diagonal = (t - head) * Each;
      const int left = min(width * Each, total - first), right = min(width * Each, total - first - left);
      const element* const a = shared + first;
      const element* const b = a + left;
      const int from = cut(a, b, left, right, diagonal);
      cuts[t] = from;
      team_sync<Team>();
      const bool ends = t + 1 == Team || t + 1 == head + 2 * width;
      const int upto = ends ? left : cuts[t + 1];
      const int falling = Each - (upto - from);
      const element* const rise = a + from - falling;
      const element* const fall = b + (diagonal - from) + falling - 1;
#pragma unroll
      for (int e = 0; e < Each; ++e) x[e] = *(e < falling ? fall - e : rise + e);
      Network::merge(x);
      team_sync<Team>();
      put(shared, t);
      team_sync<Team>();
    }
  }
};

// Sorts `Across` rows by a block, one by each of its teams; `n` elements to a row. Either result may be null.
template <class Packed, class Network, int Team, int Across, int Each, bool Values, bool Places, class S, class Index>
CA_INLINE void sort_row(
    const S* in, Index in_step, S* values, Index value_step, int64_t* places, Index place_step, int n, bool there,
    unsigned char* memory) {
  typedef typename Packed::element element;
  const int t = threadIdx.x % Team, team = threadIdx.x / Team;
  element* const shared = reinterpret_cast<element*>(memory) + team * Team * Each;
  int* const cuts =
      reinterpret_cast<int*>(memory + sizeof(element) * Across * Team * Each) + team * Team;
  row_sort<Packed, Network, Team, Each> one;
#pragma unroll
  for (int e = 0; e < Each; ++e) {
    const int at = e * Team + t;
    one.x[e] = there && at < n ? Packed::of(widen(in[at * in_step]), at) : Packed::last();
  }
  one.run(shared, cuts, t);
  if (!there) return;
#pragma unroll
  for (int e = 0; e < Each; ++e) {
    const int at = e * Team + t;
    if (at < n) {
      const element found = shared[at];
      if constexpr (Values) values[at * value_step] = narrow<S>(Packed::back(found));
      if constexpr (Places) places[at * place_step] = Packed::position(found);
    }
  }
}

}  // namespace ca
