// Matrix products for the cpu target: tiles of R rows and two vectors of columns, summed in registers.
#include <omp.h>

namespace ca {

constexpr int64_t PRODUCT_RUN = 512;  // terms of a sum between two additions to its total: the length of a rounding chain

// A vector anywhere in memory, and one with the same value in all lanes.
template <int W> struct at { typedef typename raw<float, W>::type type __attribute__((aligned(4), may_alias)); };
template <int W> CA_INLINE typename raw<float, W>::type spread(float v) {
  typedef typename raw<float, W>::type V;
#if defined(__AVX512F__)
  if constexpr (W == 16) return (V)_mm512_set1_ps(v);
#endif
#if defined(__AVX__)
  if constexpr (W == 8) return (V)_mm256_set1_ps(v);
#endif
  V r;
  for (int i = 0; i < W; ++i) r[i] = v;
  return r;
}

// tile[r][2W] = sum over k < terms of a[r * RS + k * KS] * b[k * 2W + column]
template <int R, int W, int64_t RS, int64_t KS>
__attribute__((noinline)) void product_tile(const float* __restrict__ a, const float* __restrict__ b, int64_t terms,
                                            float* __restrict__ tile) {
  typedef typename raw<float, W>::type V;
  typedef typename at<W>::type U;
  for (int64_t done = 0; done < terms; done += PRODUCT_RUN) {
    const int64_t run = imin(PRODUCT_RUN, terms - done);
    V low[R], high[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) low[r] = high[r] = V{};
    const float* ak = a + done * KS;
    const float* bk = b + done * 2 * W;
    for (int64_t k = 0; k < run; ++k, ak += KS, bk += 2 * W) {
      const V first = *reinterpret_cast<const U*>(bk), second = *reinterpret_cast<const U*>(bk + W);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const V x = spread<W>(ak[r * RS]);
        low[r] += x * first;
        high[r] += x * second;
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      U* to = reinterpret_cast<U*>(tile + r * 2 * W);
      U* beside = reinterpret_cast<U*>(tile + r * 2 * W + W);
      *to = done ? *to + low[r] : low[r];
      *beside = done ? *beside + high[r] : high[r];
    }
  }
}

// The tile of `rows` <= R rows.
template <int R, int W, int64_t RS, int64_t KS>
CA_INLINE void product_rows(int64_t rows, const float* a, const float* b, int64_t terms, float* tile) {
  if constexpr (R > 1) {
    if (rows < R) { product_rows<R - 1, W, RS, KS>(rows, a, b, terms, tile); return; }
  }
  product_tile<R, W, RS, KS>(a, b, terms, tile);
}

// out[k][P] = the P values from p + k * KS on, PS apart; those from `valid` on are 0.
template <int P, int64_t PS, int64_t KS>
CA_INLINE void pack(const float* __restrict__ p, int64_t terms, int64_t valid, float* __restrict__ out) {
  int64_t k = 0;
#if defined(__AVX__)
  if constexpr (KS == 1 && P % 8 == 0) {
    if (valid >= P) {
      for (; k + 8 <= terms; k += 8)
        for (int c = 0; c < P; c += 8) {
          __m256 v[8], t[8];
          for (int i = 0; i < 8; ++i) v[i] = _mm256_loadu_ps(p + (c + i) * PS + k);
          for (int i = 0; i < 8; i += 2) {
            t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
            t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
          }
          for (int i = 0; i < 8; i += 4) {
            v[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
            v[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
            v[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
            v[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
          }
          for (int i = 0; i < 4; ++i) {
            _mm256_storeu_ps(out + (k + i) * P + c, _mm256_permute2f128_ps(v[i], v[i + 4], 0x20));
            _mm256_storeu_ps(out + (k + i + 4) * P + c, _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
          }
        }
    }
  }
#endif
  if (valid >= P) {
    for (; k < terms; ++k)
      for (int i = 0; i < P; ++i) out[k * P + i] = p[i * PS + k * KS];
  } else {
    for (; k < terms; ++k)
      for (int i = 0; i < P; ++i) out[k * P + i] = i < valid ? p[i * PS + k * KS] : 0.0f;
  }
}

// What a thread does of a product: ranges of batches, of tiles of rows and of panels of columns.
struct share {
  int64_t batch, batch_end, tile, tile_end, panel, panel_end;
};

// Split along the dimension that leaves the threads the most equal parts; batches first, for they share nothing, then
// rows, whose threads share the copied columns.
CA_INLINE share product_share(int64_t batches, int64_t tiles, int64_t panels) {
  const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
  const auto longest = [&](int64_t parts) { return double((parts + threads - 1) / threads) / double(parts); };
  share r = {0, batches, 0, tiles, 0, panels};
  const double by_batch = longest(batches), by_tile = longest(tiles), by_panel = longest(panels);
  const auto take = [&](int64_t parts, int64_t& first, int64_t& end) {
    first = parts * me / threads;
    end = parts * (me + 1) / threads;
  };
  if (by_batch <= by_tile && by_batch <= by_panel) take(batches, r.batch, r.batch_end);
  else if (by_tile <= by_panel) take(tiles, r.tile, r.tile_end);
  else take(panels, r.panel, r.panel_end);
  return r;
}

}  // namespace ca
