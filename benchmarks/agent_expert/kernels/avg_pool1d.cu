// The average of eleven values at every second place, zeros beside the row. A thread makes four neighbouring results from
// five words of 16 bytes, of which its neighbours need three as well and find them in the L1 cache.
constexpr int WORDS = LENGTH / 4;
constexpr int GROUPS = OUT_LENGTH / 4;
static_assert(LENGTH == 2 * OUT_LENGTH && OUT_LENGTH % 4 == 0, "");

extern "C" __global__ void __launch_bounds__(THREADS) avg_pool(const float* __restrict__ x, float* __restrict__ out) {
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const long long at = ((long long)blockIdx.x * EACH + i) * THREADS + threadIdx.x;
    if (at >= (long long)ROWS * GROUPS) continue;
    const int group = int(at % GROUPS);
    const float4* row = reinterpret_cast<const float4*>(x) + at / GROUPS * WORDS;
    float v[20];  // from 8 before the first result's middle
#pragma unroll
    for (int k = 0; k < 5; ++k) {
      const int word = 2 * group - 2 + k;
      const float4 four = word >= 0 && word < WORDS ? row[word] : float4{0.f, 0.f, 0.f, 0.f};
      v[4 * k] = four.x, v[4 * k + 1] = four.y, v[4 * k + 2] = four.z, v[4 * k + 3] = four.w;
    }
    const float core = (v[9] + v[10]) + (v[11] + v[12]) + v[13];
    const float a = v[3] + v[4], b = v[5] + v[6], c = v[7] + v[8];
    const float d = v[14] + v[15], e = v[16] + v[17], f = v[18] + v[19];
    reinterpret_cast<float4*>(out)[at] = float4{(core + c + b + a) / 11.f, (core + c + b + d) / 11.f,
                                                (core + c + d + e) / 11.f, (core + d + e + f) / 11.f};
  }
}
