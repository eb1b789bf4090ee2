// What CUDA kernels of our sketches see in place of CUDA, so that they run on the CPU: see `emulator.cpp`, which runs them.
// Set up once for all kernels of a session, as is what does not depend on a kernel: most of the time of a test is g++'s.
// Of the standard library it takes what is small: g++ reads all of the prepared header anew for each kernel.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cstdint>
#include <type_traits>

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
template <class T> constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }

struct dim3 { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
constexpr unsigned SHARED = 1 << 18, MOST_BLOCKS = 40;  // of a cluster, or of a cooperative launch
extern unsigned char* shared_memory;  // of the running thread's block

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

constexpr int WARP = 1, BLOCK = 2, OVER = 3, CLUSTER = 4, BYTES = 5, MEETING = 6;
struct alignas(16) Slot { unsigned char bytes[64]; };
extern Slot* slots;  // what the threads of a launch hand to each other
extern int current;  // the running thread's number in them
void wait_for(int whom);
bool arrive(int barrier, int threads);  // whether this thread was the last of `threads`
// A closure whose type is forgotten: `run` knows it. It is copied as bytes.
constexpr size_t CLOSURE = 64;
typedef void (*Run)(const void* closure);
void defer(Run run, const void* closure, size_t bytes);  // to when it is waited for
void launch(const unsigned* grid, const unsigned* block, unsigned cluster, unsigned cooperative, unsigned shared, Run run, const void* kernel);
template <class Closure> void run_closure(const void* closure) { (*static_cast<const Closure*>(closure))(); }
template <class Closure> void defer(const Closure& product) {
  static_assert(std::is_trivially_copyable<Closure>::value && sizeof product <= CLOSURE);
  defer(run_closure<Closure>, &product, sizeof product);
}
template <class Kernel> void launch(
    const unsigned* grid, const unsigned* block, unsigned cluster, unsigned cooperative, unsigned shared, const Kernel& kernel) {
  launch(grid, block, cluster, cooperative, shared, run_closure<Kernel>, &kernel);
}

inline void warp_barrier() { wait_for(WARP); }
template <class T> void hand_in(const T& mine) {
  static_assert(sizeof(T) <= sizeof(Slot));
  memcpy(slots[current].bytes, &mine, sizeof mine);
}
template <class T> T handed_in(int thread) {
  T found;
  memcpy(&found, slots[thread].bytes, sizeof found);
  return found;
}
// What the thread `from(lane)` of this warp hands in.
template <class T, class From> T exchange(T mine, From from) {
  hand_in(mine);
  const int warp = current / 32 * 32, lane = current % 32;
  warp_barrier();
  const T found = handed_in<T>(warp + from(lane));
  warp_barrier();
  return found;
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait_for(emulator::BLOCK); }
int __syncthreads_or(int mine);
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
inline void barriers_are_set() {}
inline void publish_shared() {}
inline void wide_fence() {}
inline void keep_register(float&) {}
inline int opaque(int x) { return x; }
template <int N> inline void take_registers() {}
template <int N> inline void give_registers() {}
inline float read_early(const float* p) { return *p; }
template <class W> inline W read_once(const W* p) { return *p; }

// Between the blocks of a cluster, and of a launch.
unsigned cluster_rank();
void cluster_arrive();
void cluster_here();
void cluster_wait();
unsigned address_in(const void* shared, unsigned rank);
void store_remote(void* shared, unsigned rank, const void* from, size_t bytes);
template <class A> inline void store_remote(A* shared, unsigned rank, const A& a) { store_remote(shared, rank, &a, sizeof a); }
void leave_word(uint64_t* at, int word, int number);
uint64_t look(const uint64_t* at);
int word_for(int number, uint64_t seen, const uint64_t* at);

// Barriers that wait for bytes, and named ones.
void barrier_set(uint64_t* barrier);
void barrier_expect(uint64_t* barrier, int bytes);
void barrier_wait(uint64_t* barrier, int parity);
void send(unsigned to, float4 x, unsigned barrier);
inline void meet(int barrier, int threads) { if (!emulator::arrive(barrier, threads)) emulator::wait_for(-barrier); }
inline void announce(int barrier, int threads) { emulator::arrive(barrier, threads); }

// Copies to shared memory.
struct tensor_map;
void copy_all_of_box(float* to, const tensor_map& from, uint64_t* barrier, int rank, const int* at);
template <class... At> inline void copy_box(float* to, const tensor_map& from, uint64_t* barrier, int first, At... at) {
  const int all[] = {first, at...};
  copy_all_of_box(to, from, barrier, 1 + int(sizeof...(at)), all);
}
void queue_copy(void* to, const void* from, int bytes, int filled);
inline void copy_async(void* shared, const void* global) { queue_copy(shared, global, 16, 16); }
template <int Bytes> inline void copy_async_narrow(void* shared, const void* global) { queue_copy(shared, global, Bytes, Bytes); }
template <int V> inline void copy_bytes_if(void* shared, const void* global, bool there) {
  queue_copy(shared, there ? global : shared_memory, V, there ? V : 0);
}
template <int V> inline void copy_half_if(void* shared, const void* global, bool there) { copy_bytes_if<2 * V>(shared, global, there); }
void copy_commit();
void take_copies(int pending);
template <int Pending> inline void copy_wait() { take_copies(Pending); }

// Numbers as tensor cores take them.
inline unsigned round_tf32(float x) {
  const unsigned b = bits_of<unsigned>(x);
  if ((b & 0x7f800000u) == 0x7f800000u) return b & 0xffffe000u | ((b & 0x7fffffu) ? 0x400000u : 0u);
  return (b + 0x1000u) & 0xffffe000u;
}
inline unsigned round_bf16(float x, float y) { return __float2bfloat16_rn(x).bits | unsigned(__float2bfloat16_rn(y).bits) << 16; }
inline unsigned round_f16(float x, float y) { return bits_of<uint16_t>(__float2half_rn(x)) | unsigned(bits_of<uint16_t>(__float2half_rn(y))) << 16; }
inline float exp2_near(float x) { const float r = exp2f(x); return r < __FLT_MIN__ ? 0.f : r; }

// Products of a warp. `Width`: TF32 numbers, or two of bfloat16, or of float16 in a register.
constexpr int HALF = 3;
template <int Width> void multiply_fragments(float* d, const unsigned* a, const unsigned* b);
inline void multiply_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { multiply_fragments<1>(d, a, b); }
inline void multiply_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { multiply_fragments<2>(d, a, b); }
inline void multiply_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { multiply_fragments<HALF>(d, a, b); }
void load_matrices(bool columns, unsigned* r, const void* row);
template <bool Columns> inline void load_matrices(unsigned (&r)[4], const void* row) { load_matrices(Columns, r, row); }

// Products of warp groups take place when they are waited for: registers and shared memory that they read must not have
// changed by then. The first operand is in registers, or both are in shared memory.
void wide_commit();
void take_products(int pending);
template <int Pending> inline void wide_wait() { take_products(Pending); }
inline unsigned shared_address(const void* p) { return unsigned(reinterpret_cast<const unsigned char*>(p) - shared_memory); }
uint64_t operand_at(const float* tile, int byte);
template <int RowBytes> inline uint64_t wide_operand(const float* tile, int byte) { return operand_at(tile, byte); }
uint64_t by_rows_operand(const float* tile, int byte, int next);
// `n` sums of each thread.
template <int Width> void multiply_now(float* d, int n, const unsigned* a, uint64_t b, int more);
template <int Width> void multiply_rows(float* d, int n, const unsigned* a, uint64_t b, int more);
template <int Width> void multiply_both(float* d, int n, uint64_t a, bool a_by_rows, uint64_t b, bool b_by_rows, int more);
template <class T> constexpr int width_of() { return std::is_same_v<T, __half> ? HALF : 2; }
template <int Products, int N> inline void multiply_wide(float (&d)[N], const unsigned (&a)[4], uint64_t b, int more) {
  emulator::defer([&d, &a, b, more] { multiply_now<Products == 1 ? 1 : 2>(d, N, a, b, more); });
}
template <class T, int RowsA, int RowsB, int N> inline void multiply_both(float (&d)[N], uint64_t a, uint64_t b, int more) {
  emulator::defer([&d, a, b, more] { multiply_both<width_of<T>()>(d, N, a, RowsA, b, RowsB, more); });
}
template <class T, int N> inline void multiply_rows(float (&d)[N], const unsigned (&a)[4], uint64_t b, int more) {
  emulator::defer([&d, &a, b, more] { multiply_rows<width_of<T>()>(d, N, a, b, more); });
}

}  // namespace ca
