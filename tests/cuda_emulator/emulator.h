// Runs CUDA kernels of our sketches on the CPU: one block or cluster of blocks at a time, or, of a cooperative launch, all
// blocks, each of which goes as far as it can before the next one does. Every thread is a fiber, switched at barriers and
// at what a warp does together. Copies to shared memory take place when they are waited for and not
// before, unset memory is NaN, so that a wait or a barrier that is missing shows. So do stores to other blocks of a
// cluster, and until then what they go to is NaN. What holds for memory models and timing is not shown.
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <type_traits>
#include <vector>

#define __CUDACC_RTC__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
using std::max;
using std::min;

struct dim3 { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static dim3 threadIdx, blockIdx, blockDim, gridDim;
constexpr unsigned SHARED = 1 << 18, MOST_BLOCKS = 40;  // of a cluster, or of a cooperative launch
alignas(1024) static unsigned char all_shared[MOST_BLOCKS * SHARED];
static unsigned char* shared_memory = all_shared;  // of the running thread's block

typedef _Float16 __half;
struct __nv_bfloat16 { uint16_t bits; };
template <class To, class From> inline To bits_of(From x) { To r; static_assert(sizeof r == sizeof x); memcpy(&r, &x, sizeof r); return r; }
inline float __half2float(__half x) { return float(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return bits_of<float>(uint32_t(x.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (x != x) return {0x7fff};
  const uint32_t b = bits_of<uint32_t>(x);
  return {uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16)};
}
inline float __int_as_float(int x) { return bits_of<float>(x); }
inline float __uint_as_float(unsigned x) { return bits_of<float>(x); }
inline int __float_as_int(float x) { return bits_of<int>(x); }
inline double __longlong_as_double(long long x) { return bits_of<double>(x); }
inline long long __double_as_longlong(double x) { return bits_of<long long>(x); }
inline float __fdividef(float a, float b) { return a * (1.f / b); }  // within two roundings, as the hardware
inline float __frcp_rn(float a) { return 1.f / a; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrt(float a) { return 1.f / sqrtf(a); }
inline double rsqrt(double a) { return 1. / sqrt(a); }
inline void __trap() { fputs("the kernel stopped itself\n", stderr); abort(); }
// Threads take turns at barriers only, so that nothing comes between.
template <class T> inline T atomicAdd(T* to, T x) { const T old = *to; *to = old + x; return old; }
template <class T> inline T atomicMax(T* to, T x) { const T old = *to; *to = max(old, x); return old; }
template <class T> inline T atomicMin(T* to, T x) { const T old = *to; *to = min(old, x); return old; }
template <class T> inline void __stcs(T* to, T value) { *to = value; }
template <class T> inline T __ldcg(const T* from) { return *from; }
template <class T> inline T __ldg(const T* from) { return *from; }

namespace emulator {

struct Copy { void* to; const void* from; int bytes, filled; };
struct Store { void* to; std::vector<unsigned char> bytes; };
// For so many bytes from other blocks; `opened` counts how often they were all there.
struct Barrier { int64_t expected = 0; int arrivals = 0, opened = 0; std::vector<Store> stores; };
constexpr int WARP = 1, BLOCK = 2, OVER = 3, CLUSTER = 4, BYTES = 5, MEETING = 6;
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  int waits_for = 0;  // 0: nobody, or one of the above, below 0: the barrier of this number
  unsigned block = 0;  // its number in the cluster
  dim3 block_index;
  bool arrived = false;  // at the cluster's barrier
  unsigned barrier = 0, seen = 0;  // with BYTES: for which barrier, and how often it had opened
  const uint64_t* left = nullptr;  // with MEETING: a word that another block leaves, and the meeting that it is for
  int number = 0;
  std::vector<std::vector<Copy>> groups{1};
  std::vector<std::vector<std::function<void()>>> products{1};
  alignas(16) unsigned char slot[64];
};
static std::vector<Fiber> fibers;  // of the running launch: each library has its own, and none is ever unloaded
static ucontext_t scheduler;
static int current;
static int arrived[MOST_BLOCKS][16];  // at named barriers, by block
static std::map<unsigned, Barrier> barriers;  // by address in the cluster
static std::vector<Store> stores;  // to other blocks, under way
static std::function<void()> body;
static unsigned blocks_of_cluster = 1;

inline Fiber& self() { return fibers[current]; }
inline void wait_for(int whom) {
  const int me = current;
  fibers[me].waits_for = whom;
  swapcontext(&fibers[me].context, &scheduler);
}
inline void warp_barrier() { wait_for(1); }
// Whether this thread was the last of `threads`.
inline bool arrive(int barrier, int threads) {
  if (barrier < 1 || barrier > 15 || threads % 32) { fprintf(stderr, "emulator: no such barrier\n"); abort(); }
  const unsigned block = self().block;
  if (++arrived[block][barrier] < threads) return false;
  arrived[block][barrier] = 0;
  for (Fiber& f : fibers) if (f.block == block && f.waits_for == -barrier) f.waits_for = 0;
  return true;
}
inline void run_body() {
  body();
  self().waits_for = OVER;
  swapcontext(&self().context, &scheduler);
}
inline void resume(int number) {
  current = number;
  const Fiber& f = fibers[number];
  const unsigned own = unsigned(number) - f.block * blockDim.x * blockDim.y * blockDim.z;
  threadIdx = {own % blockDim.x, own / blockDim.x % blockDim.y, own / blockDim.x / blockDim.y};
  blockIdx = f.block_index;
  shared_memory = all_shared + f.block * SHARED;
  swapcontext(&scheduler, &fibers[number].context);
}
// Lets all of a group go on if nobody of it still runs.
inline bool release(int first, int last, int whom) {
  bool any = false;
  for (int i = first; i < last; ++i) {
    if (fibers[i].waits_for < whom || fibers[i].waits_for > OVER) return false;
    any = any || fibers[i].waits_for == whom;
  }
  for (int i = first; i < last; ++i) if (fibers[i].waits_for == whom) fibers[i].waits_for = 0;
  return any;
}
inline void take_place(std::vector<Store>& stores) {
  for (const Store& s : stores) memcpy(s.to, s.bytes.data(), s.bytes.size());
  stores.clear();
}
// Nothing may be read where a store is under way.
inline Store on_its_way(void* to, const void* from, size_t bytes) {
  const auto* first = static_cast<const unsigned char*>(from);
  Store made{to, {first, first + bytes}};
  memset(to, 0xff, bytes);
  return made;
}
inline unsigned char* in_cluster(unsigned address) {
  if (address >= blocks_of_cluster * SHARED) { fprintf(stderr, "emulator: no such block of the cluster\n"); abort(); }
  return all_shared + address;
}
inline bool release_cluster() {
  for (const Fiber& f : fibers) if (f.waits_for != OVER && !f.arrived) return false;
  bool any = false;
  take_place(stores);
  for (Fiber& f : fibers) {
    any = any || f.arrived;
    f.arrived = false;
    if (f.waits_for == CLUSTER) f.waits_for = 0;
  }
  return any;
}
inline bool release_barriers() {
  bool any = false;
  for (auto& [_, b] : barriers)
    if (b.arrivals && b.expected == 0) { take_place(b.stores); b.arrivals = 0; ++b.opened; any = true; }
  for (Fiber& f : fibers)
    if (f.waits_for == BYTES && barriers[f.barrier].opened > int(f.seen)) { f.waits_for = 0; any = true; }
  return any;
}
inline bool release_meetings() {
  bool any = false;
  for (Fiber& f : fibers)
    if (f.waits_for == MEETING && int(*f.left >> 32) == f.number) { f.waits_for = 0; any = true; }
  return any;
}
inline void prepare(Fiber& f, unsigned block, dim3 block_index) {
  if (f.stack.empty()) f.stack.resize(1 << 16);
  f.waits_for = 0;
  f.block = block;
  f.block_index = block_index;
  f.arrived = false;
  f.groups.assign(1, {});
  f.products.assign(1, {});
  getcontext(&f.context);
  f.context.uc_stack = {.ss_sp = f.stack.data(), .ss_flags = 0, .ss_size = f.stack.size()};
  f.context.uc_link = &scheduler;
  makecontext(&f.context, run_body, 0);
}
inline void check_end() {
  for (const auto& of : arrived)
    for (int left : of) if (left) { fprintf(stderr, "emulator: a barrier that is not complete at the end\n"); abort(); }
  bool lost = !stores.empty();
  for (const auto& [_, b] : barriers) lost = lost || !b.stores.empty();
  if (lost) { fprintf(stderr, "emulator: a store to a block that may be over by then\n"); abort(); }
}
// Fibers `first` up to `last` go on, each to where it waits; whether any did, or now may.
inline bool take_turns(int first, int last, int threads) {
  bool any = false;
  for (int i = first; i < last; ++i)
    if (fibers[i].waits_for == 0) { resume(i); any = true; }
  for (int block = first; block < last; block += threads) {
    for (int w = 0; w < threads; w += 32) any |= release(block + w, block + min(w + 32, threads), WARP);
    any |= release(block, block + threads, BLOCK);
  }
  any |= release_cluster();
  any |= release_barriers();
  any |= release_meetings();
  return any;
}
// The blocks of a cluster, which are neighbours along x, or all of a launch.
inline void run_blocks(dim3 first, int threads, bool cooperative) {
  const int all = threads * int(blocks_of_cluster);
  fibers.resize(all);
  for (int i = 0; i < all; ++i) prepare(fibers[i], i / threads, {first.x + i / threads, first.y, first.z});
  memset(all_shared, 0xff, blocks_of_cluster * SHARED);
  memset(arrived, 0, sizeof arrived);
  barriers.clear();
  auto over = [](const Fiber& f) { return f.waits_for == OVER; };
  const int together = cooperative ? threads : all;
  while (!std::all_of(fibers.begin(), fibers.end(), over)) {
    bool any = false;
    for (int block = 0; block < all; block += together)
      while (take_turns(block, block + together, threads)) any = true;
    if (!any) { fprintf(stderr, "emulator: threads wait for each other\n"); abort(); }
  }
  check_end();
}
// shared: bytes of dynamic shared memory that a block asked for; what lies behind them must not change. A cluster of as
// many blocks as there are is a cooperative launch where `cooperative` says so.
template <class Kernel>
void launch(const unsigned* grid, const unsigned* block, unsigned cluster, unsigned cooperative, unsigned shared, Kernel kernel) {
  if (cluster > MOST_BLOCKS || grid[0] % cluster) { fprintf(stderr, "emulator: no such cluster\n"); abort(); }
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  blocks_of_cluster = cluster;
  body = kernel;
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; x += cluster) {
        run_blocks({x, y, z}, int(block[0] * block[1] * block[2]), cooperative);
        for (size_t i = 0; i < cluster * SHARED; ++i)
          if (i % SHARED >= shared && all_shared[i] != 0xff) { fprintf(stderr, "emulator: a write beyond the %u bytes of shared memory\n", shared); abort(); }
      }
  std::vector<Fiber>().swap(fibers);
}
// What the thread `from(lane)` of this warp hands in.
template <class T, class From> T exchange(T mine, From from) {
  static_assert(sizeof(T) <= sizeof(Fiber::slot));
  memcpy(self().slot, &mine, sizeof mine);
  const int warp = current / 32 * 32, lane = current % 32;
  warp_barrier();
  T found;
  memcpy(&found, fibers[warp + from(lane)].slot, sizeof found);
  warp_barrier();
  return found;
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait_for(2); }
inline int __syncthreads_or(int mine) {
  using namespace emulator;
  memcpy(self().slot, &mine, sizeof mine);
  wait_for(2);
  const int threads = blockDim.x * blockDim.y * blockDim.z, begin = current / threads * threads;
  int any = 0;
  for (int i = begin; i < begin + threads; ++i) {
    int one;
    memcpy(&one, fibers[i].slot, sizeof one);
    any |= one != 0;
  }
  wait_for(2);
  return any;
}
inline void __syncwarp(unsigned = 0) { emulator::warp_barrier(); }
template <class T> T __shfl_xor_sync(unsigned, T x, int mask, int = 32) { return emulator::exchange(x, [=](int l) { return l ^ mask; }); }
template <class T> T __shfl_sync(unsigned, T x, int from, int width = 32) {
  return emulator::exchange(x, [=](int l) { return l / width * width + from % width; });
}
inline int __any_sync(unsigned, int mine) {
  int any = mine != 0;
  for (int step = 1; step < 32; step *= 2) any |= emulator::exchange(any, [=](int l) { return l ^ step; });
  return any;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T> T __shfl_up_sync(unsigned, T x, int by, int width = 32) {
  return emulator::exchange(x, [=](int l) { return l % width < by ? l : l - by; });
}

// In place of what the sketches write in PTX.
namespace ca {

inline float anew(float x) { return x; }
inline uint64_t once_policy() { return 0; }
inline unsigned cluster_rank() { return emulator::self().block; }
inline void cluster_arrive() { emulator::self().arrived = true; }
inline void cluster_here() { emulator::self().arrived = true; }
inline void cluster_wait() { emulator::wait_for(emulator::CLUSTER); }
inline unsigned address_in(const void* shared, unsigned rank) {
  return unsigned(static_cast<const unsigned char*>(shared) - shared_memory) + rank * SHARED;
}
template <class A> inline void store_remote(A* shared, unsigned rank, const A& a) {
  emulator::stores.push_back(emulator::on_its_way(emulator::in_cluster(address_in(shared, rank)), &a, sizeof a));
}
inline void leave_word(uint64_t* at, int word, int number) { *at = uint64_t(unsigned(number)) << 32 | unsigned(word); }
inline uint64_t look(const uint64_t* at) { return *at; }
inline int word_for(int number, uint64_t seen, const uint64_t* at) {
  if (int(seen >> 32) == number) return int(seen);
  emulator::self().left = at;
  emulator::self().number = number;
  emulator::wait_for(emulator::MEETING);
  return int(*at);
}
inline emulator::Barrier& barrier_at(const void* barrier) { return emulator::barriers[address_in(barrier, cluster_rank())]; }
inline void barrier_set(uint64_t* barrier) { *barrier = 0; barrier_at(barrier) = {}; }
inline void barriers_are_set() {}
inline float read_early(const float* p) { return *p; }
inline void barrier_expect(uint64_t* barrier, int bytes) { barrier_at(barrier).expected += bytes; ++barrier_at(barrier).arrivals; }
inline void barrier_wait(uint64_t* barrier, int parity) {
  const int opened = barrier_at(barrier).opened;
  if (opened % 2 != parity) return;  // as the hardware: the phase of this parity is behind it
  emulator::self().barrier = address_in(barrier, cluster_rank());
  emulator::self().seen = opened;
  emulator::wait_for(emulator::BYTES);
}
inline void send(unsigned to, float4 x, unsigned barrier) {
  if (to % 16) { fprintf(stderr, "emulator: a store that is not aligned\n"); abort(); }
  emulator::Barrier& b = emulator::barriers.at(barrier);
  b.expected -= sizeof x;
  b.stores.push_back(emulator::on_its_way(emulator::in_cluster(to), &x, sizeof x));
}
// As the plan has it (see `_described`), instead of what the driver makes of it: address, dimensions and bytes of an
// element; five sizes, four strides in bytes, four of the box, of which the fifth is 1.
struct tensor_map;
inline void copy_box(float* to, const tensor_map& from, uint64_t* barrier, const std::vector<int>& at) {
  const auto* words = reinterpret_cast<const int64_t*>(&from);
  const int rank = int(words[1] / 256), item = int(words[1] % 256);
  auto size = [&](int d) { return d < rank ? words[2 + d] : 1; };
  auto stride = [&](int d) { return d == 0 ? int64_t(item) : d < rank ? words[6 + d] : 0; };
  auto box = [&](int d) { return d < rank && d < 4 ? words[11 + d] : 1; };
  if (int(at.size()) != rank || uintptr_t(to) % 1024) { fprintf(stderr, "emulator: a box that does not fit its tensor\n"); abort(); }
  emulator::Barrier& b = barrier_at(barrier);
  const int elements = 16 / item;
  for (int64_t line = 0; line < box(1) * box(2) * box(3); ++line)
    for (int piece = 0; piece < 8; ++piece) {
      unsigned char bytes[16] = {};
      const int64_t other[4] = {line % box(1), line / box(1) % box(2), line / box(1) / box(2), 0};
      for (int e = 0; e < elements; ++e) {
        const int64_t first = at[0] + piece * elements + e;
        bool there = first >= 0 && first < size(0);
        int64_t place = first * item;
        for (int d = 1; d < rank; ++d) {
          const int64_t x = at[d] + other[d - 1];
          there = there && x >= 0 && x < size(d);
          place += x * stride(d);
        }
        if (there) memcpy(bytes + e * item, reinterpret_cast<const char*>(words[0]) + place, item);
      }
      char* const where = reinterpret_cast<char*>(to) + line * 128 + (piece ^ int(line % 8)) * 16;
      b.expected -= sizeof bytes;
      b.stores.push_back(emulator::on_its_way(where, bytes, sizeof bytes));
    }
}
template <class... At> inline void copy_box(float* to, const tensor_map& from, uint64_t* barrier, int first, At... at) {
  copy_box(to, from, barrier, std::vector<int>{first, at...});
}
template <class W> inline W read_once(const W* p) { return *p; }
inline void queue_copy(void* to, const void* from, int bytes, int filled) {
  if (uintptr_t(to) % bytes || uintptr_t(from) % bytes) { fprintf(stderr, "emulator: a copy that is not aligned\n"); abort(); }
  emulator::self().groups.back().push_back({to, from, bytes, filled});
}
inline void copy_async(void* shared, const void* global) { queue_copy(shared, global, 16, 16); }
template <int Bytes> inline void copy_async_narrow(void* shared, const void* global) { queue_copy(shared, global, Bytes, Bytes); }
template <int V> inline void copy_bytes_if(void* shared, const void* global, bool there) {
  queue_copy(shared, there ? global : shared_memory, V, there ? V : 0);
}
inline void copy_commit() { emulator::self().groups.emplace_back(); }
template <int Pending> inline void copy_wait() {
  auto& groups = emulator::self().groups;
  const int ready = int(groups.size()) - 1 - Pending;
  for (int g = 0; g < ready; ++g) {
    for (const auto& c : groups[g]) {
      memset(c.to, 0, c.bytes);
      memcpy(c.to, c.from, c.filled);
    }
    groups[g].clear();
  }
  if (ready > 0) groups.erase(groups.begin(), groups.begin() + ready);
}
inline unsigned round_tf32(float x) {
  const unsigned b = bits_of<unsigned>(x);
  if ((b & 0x7f800000u) == 0x7f800000u) return b & 0xffffe000u | ((b & 0x7fffffu) ? 0x400000u : 0u);
  return (b + 0x1000u) & 0xffffe000u;
}
// As the tensor core stores a sum: towards zero, and what is too large as an infinity.
inline float cut_off(double x) {
  const float r = float(x);
  return fabs(double(r)) > fabs(x) && !isinf(r) ? nextafterf(r, 0.f) : r;
}
inline unsigned round_bf16(float x, float y) { return __float2bfloat16_rn(x).bits | unsigned(__float2bfloat16_rn(y).bits) << 16; }
inline unsigned round_f16(float x, float y) { return bits_of<uint16_t>(__float2half_rn(x)) | unsigned(bits_of<uint16_t>(__float2half_rn(y))) << 16; }
inline float exp2_near(float x) { const float r = exp2f(x); return r < std::numeric_limits<float>::min() ? 0.f : r; }
// The terms of a fragment's register: one TF32 number, or two of bfloat16, or of float16.
constexpr int HALF = 3;
template <int Width> inline double term(unsigned bits, int number) {
  if constexpr (Width == HALF) return bits_of<_Float16>(uint16_t(number ? bits >> 16 : bits));
  return bits_of<float>(Width == 1 ? bits & 0xffffe000u : number ? bits & 0xffff0000u : bits << 16);
}
// One of the 8 * Width products of an element: four registers of neighbouring threads, and then the next four.
template <int Width, class PartA, class PartB> inline double add_products(double total, PartA a, PartB b) {
  for (int k = 0; k < 8; ++k)
    for (int w = 0; w < (Width == 1 ? 1 : 2); ++w) total += term<Width>(a(k % 4, k / 4), w) * b(k % 4, k / 4, w);
  return total;
}
template <int Width> inline void multiply_fragments(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  struct Part { unsigned a[4], b[2]; } mine;
  memcpy(mine.a, a, sizeof mine.a);
  memcpy(mine.b, b, sizeof mine.b);
  memcpy(emulator::self().slot, &mine, sizeof mine);
  const int warp = emulator::current / 32 * 32, lane = emulator::current % 32;
  emulator::warp_barrier();
  auto part = [&](int l) { Part p; memcpy(&p, emulator::fibers[warp + l].slot, sizeof p); return p; };
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + 8 * (e / 2), column = lane % 4 * 2 + e % 2;
    d[e] = cut_off(add_products<Width>(
        d[e], [&](int thread, int half) { return part(row % 8 * 4 + thread).a[row / 8 + 2 * half]; },
        [&](int thread, int half, int w) { return term<Width>(part(column * 4 + thread).b[half], w); }));
  }
  emulator::warp_barrier();
}
inline void multiply_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { multiply_fragments<1>(d, a, b); }
inline void multiply_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { multiply_fragments<2>(d, a, b); }
// The same of float16.
inline void multiply_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { multiply_fragments<HALF>(d, a, b); }
template <int V> inline void copy_half_if(void* shared, const void* global, bool there) {
  queue_copy(shared, there ? global : shared_memory, 2 * V, there ? 2 * V : 0);
}
template <bool Columns> inline void load_matrices(unsigned (&r)[4], const void* row) {
  if (uintptr_t(row) % 16) { fprintf(stderr, "emulator: a row of a matrix that is not aligned\n"); abort(); }
  memcpy(emulator::self().slot, &row, sizeof row);
  const int warp = emulator::current / 32 * 32, lane = emulator::current % 32;
  emulator::warp_barrier();
  auto element = [&](int matrix, int y, int x) {
    const uint16_t* from;
    memcpy(&from, emulator::fibers[warp + 8 * matrix + y].slot, sizeof from);
    return unsigned(from[x]);
  };
  for (int i = 0; i < 4; ++i) {
    const int own = lane / 4, first = lane % 4 * 2;
    r[i] = Columns ? element(i, first, own) | element(i, first + 1, own) << 16 : element(i, own, first) | element(i, own, first + 1) << 16;
  }
  emulator::warp_barrier();
}
// Products of warp groups take place when they are waited for: registers and shared memory that they read must not have
// changed by then.
inline void wide_fence() {}
inline void wide_commit() { emulator::self().products.emplace_back(); }
template <int Pending> inline void wide_wait() {
  auto& products = emulator::self().products;
  const int ready = int(products.size()) - 1 - Pending;
  for (int g = 0; g < ready; ++g) for (auto& product : products[g]) product();
  if (ready > 0) products.erase(products.begin(), products.begin() + ready);
}
inline void publish_shared() {}
inline void meet(int barrier, int threads) { if (!emulator::arrive(barrier, threads)) emulator::wait_for(-barrier); }
inline void announce(int barrier, int threads) { emulator::arrive(barrier, threads); }
template <int N> inline void take_registers() {}
template <int N> inline void give_registers() {}
inline void keep_register(float&) {}
inline int opaque(int x) { return x; }
inline unsigned shared_address(const void* p) { return unsigned(reinterpret_cast<const unsigned char*>(p) - shared_memory); }
template <int RowBytes> inline uint64_t wide_operand(const float* tile, int byte) {
  if (uintptr_t(tile) % 1024) { fprintf(stderr, "emulator: a tile that is not aligned\n"); abort(); }
  return uintptr_t(tile) + byte;
}
// Rows of B have 128 bytes of TF32 or 64 of bfloat16; the tensor core takes bits 4 and up of an address exclusive or bits
// 7 and up: three of them, or two.
template <int Width> inline double wide_term(uint64_t b, int column, int k) {
  const int bytes = 128 / Width, size = 4 / Width;
  unsigned at = column * bytes + unsigned(b & 1023) + k * size;
  at ^= (at >> 7) % (bytes / 16) << 4;
  unsigned bits = 0;
  memcpy(&bits, reinterpret_cast<const char*>(b & ~uint64_t(1023)) + at, size);
  return term<Width>(bits, 0);
}
// term_of(column, k): of the second operand.
template <int Width, int N, class Term> inline void multiply_with(float (&d)[N], const unsigned (&a)[4], int more, Term term_of) {
  struct Part { unsigned a[4]; } mine;
  memcpy(mine.a, a, sizeof mine.a);
  memcpy(emulator::self().slot, &mine, sizeof mine);
  const int warp = emulator::current / 32 * 32, lane = emulator::current % 32, terms = Width == 1 ? 1 : 2;
  emulator::warp_barrier();
  auto part = [&](int l) { Part p; memcpy(&p, emulator::fibers[warp + l].slot, sizeof p); return p; };
  for (int i = 0; i < N; ++i) {
    const int row = lane / 4 + 8 * (i % 4 / 2), column = lane % 4 * 2 + 8 * (i / 4) + i % 2;
    d[i] = cut_off(add_products<Width>(
        more ? d[i] : 0., [&](int thread, int half) { return part(row % 8 * 4 + thread).a[row / 8 + 2 * half]; },
        [&](int thread, int half, int w) { return term_of(column, (thread + 4 * half) * terms + w); }));
  }
  emulator::warp_barrier();
}
template <int Width, int N> inline void multiply_now(float (&d)[N], const unsigned (&a)[4], uint64_t b, int more) {
  multiply_with<Width>(d, a, more, [b](int column, int k) { return wide_term<Width>(b, column, k); });
}
template <int Products, int N> inline void multiply_wide(float (&d)[N], const unsigned (&a)[4], uint64_t b, int more) {
  emulator::self().products.back().push_back([&d, &a, b, more] { multiply_now<Products == 1 ? 1 : 2>(d, a, b, more); });
}
// Both operands in shared memory: lines of 128 bytes, of 64 terms or, 8192 bytes for each 64 rows, of rows.
inline uint64_t by_rows_operand(const float* tile, int byte, int next) {
  if (uintptr_t(tile) % 1024 || byte % 1024 || next != 8192) { fprintf(stderr, "emulator: a tile that is not aligned\n"); abort(); }
  return uintptr_t(tile) + byte;
}
template <class T, int ByRows> inline double both_term(uint64_t operand, int row, int k) {
  unsigned at = unsigned(operand & 1023) + (ByRows ? row / 64 * 8192 + k * 128 + row % 64 * 2 : row * 128 + k * 2);
  at ^= (at >> 7) % 8 << 4;
  uint16_t bits;
  memcpy(&bits, reinterpret_cast<const char*>(operand & ~uint64_t(1023)) + at, sizeof bits);
  return term<std::is_same_v<T, __half> ? HALF : 2>(bits, 0);
}
template <class T, int RowsA, int RowsB, int N> inline void multiply_both(float (&d)[N], uint64_t a, uint64_t b, int more) {
  emulator::self().products.back().push_back([&d, a, b, more] {
    const int lane = emulator::current % 32, first = emulator::current / 32 % 4 * 16 + lane / 4;
    for (int i = 0; i < N; ++i) {
      double total = more ? d[i] : 0.;
      for (int k = 0; k < 16; ++k)
        total += both_term<T, RowsA>(a, first + 8 * (i % 4 / 2), k) * both_term<T, RowsB>(b, lane % 4 * 2 + 8 * (i / 4) + i % 2, k);
      d[i] = cut_off(total);
    }
  });
}
template <class T, int N> inline void multiply_rows(float (&d)[N], const unsigned (&a)[4], uint64_t b, int more) {
  emulator::self().products.back().push_back([&d, &a, b, more] {
    multiply_with<std::is_same_v<T, __half> ? HALF : 2>(d, a, more, [b](int column, int k) { return both_term<T, 1>(b, column, k); });
  });
}

}  // namespace ca
