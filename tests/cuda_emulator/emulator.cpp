// Runs CUDA kernels of our sketches on the CPU: one block or cluster of blocks at a time, or, of a cooperative launch, all
// blocks, each of which goes as far as it can before the next one does. Every thread is a fiber, switched at barriers and
// at what a warp does together. Copies to shared memory take place when they are waited for and not
// before, unset memory is NaN, so that a wait or a barrier that is missing shows. So do stores to other blocks of a
// cluster, and until then what they go to is NaN. What holds for memory models and timing is not shown.
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "emulator.h"  // after the others, whose words it gives other meanings

dim3 threadIdx, blockIdx, blockDim, gridDim;
alignas(1024) static unsigned char all_shared[MOST_BLOCKS * SHARED];
unsigned char* shared_memory = all_shared;

namespace emulator {

constexpr size_t STACK = 1 << 16;
struct Copy { void* to; const void* from; int bytes, filled; };
struct Product {
  Run run;
  alignas(16) unsigned char closure[CLOSURE];
};
struct Store { void* to; std::vector<unsigned char> bytes; };
// For so many bytes from other blocks; `opened` counts how often they were all there.
struct Barrier { int64_t expected = 0; int arrivals = 0, opened = 0; std::vector<Store> stores; };
// Where a function is, for jumps of a few instructions: those of the C library look for what threads clean up.
struct Place { void* words[5]; };
// Begun by a context, which has a stack of its own, and resumed by jumps: contexts ask the system each time. It is small, as
// the scheduler looks at all of them after each turn.
struct Fiber {
  Place place;
  bool begun = false;
  std::unique_ptr<char[]> stack;
  int waits_for = 0;  // 0: nobody, or one of the above, below 0: the barrier of this number
  unsigned block = 0;  // its number in the cluster
  dim3 block_index, thread_index;
  bool arrived = false;  // at the cluster's barrier
  unsigned barrier = 0, seen = 0;  // with BYTES: for which barrier, and how often it had opened
  const uint64_t* left = nullptr;  // with MEETING: a word that another block leaves, and the meeting that it is for
  int number = 0;
  std::vector<std::vector<Copy>> groups{1};
  std::vector<std::vector<Product>> products{1};
};
// Of the running launch: each library has its own, and none is ever unloaded.
static std::vector<Fiber> fibers;
static std::vector<Slot> all_slots;
Slot* slots;
static Place scheduler;
int current;
static int arrived[MOST_BLOCKS][16];  // at named barriers, by block
static std::map<unsigned, Barrier> barriers;  // by address in the cluster
static std::vector<Store> stores;  // to other blocks, under way
static Run body;
static const void* kernel_of_body;
static unsigned blocks_of_cluster = 1;
static bool meetings = false;  // whether a thread waited for another block's word

static Fiber& self() { return fibers[current]; }
// `noipa`: whoever marks a place must not jump itself, and its callers must keep no register that others may use by then.
[[noreturn]] __attribute__((noipa)) static void go_to(Place& place) { __builtin_longjmp(place.words, 1); }
__attribute__((noipa)) void wait_for(int whom) {
  Fiber& f = self();
  f.waits_for = whom;
  meetings |= whom == MEETING;
  if (!__builtin_setjmp(f.place.words)) go_to(scheduler);
}
void defer(Run run, const void* closure, size_t bytes) {
  Product product{run, {}};
  memcpy(product.closure, closure, bytes);
  self().products.back().push_back(product);
}
bool arrive(int barrier, int threads) {
  if (barrier < 1 || barrier > 15 || threads % 32) { fprintf(stderr, "emulator: no such barrier\n"); abort(); }
  const unsigned block = self().block;
  if (++arrived[block][barrier] < threads) return false;
  arrived[block][barrier] = 0;
  for (Fiber& f : fibers) if (f.block == block && f.waits_for == -barrier) f.waits_for = 0;
  return true;
}
static void run_body() {
  body(kernel_of_body);
  self().waits_for = OVER;
  go_to(scheduler);
}
[[noreturn]] __attribute__((noipa)) static void go_on(Fiber& f) {
  if (f.begun) go_to(f.place);
  f.begun = true;
  ucontext_t begin;
  getcontext(&begin);
  begin.uc_stack = {.ss_sp = f.stack.get(), .ss_flags = 0, .ss_size = STACK};
  makecontext(&begin, run_body, 0);
  setcontext(&begin);
  abort();
}
__attribute__((noipa)) static void resume(int number) {
  current = number;
  Fiber& f = fibers[number];
  threadIdx = f.thread_index;
  blockIdx = f.block_index;
  shared_memory = all_shared + f.block * SHARED;
  if (!__builtin_setjmp(scheduler.words)) go_on(f);
}
// Lets all of a group go on if nobody of it still runs.
static bool release(int first, int last, int whom) {
  bool any = false;
  for (int i = first; i < last; ++i) {
    if (fibers[i].waits_for < whom || fibers[i].waits_for > OVER) return false;
    any = any || fibers[i].waits_for == whom;
  }
  for (int i = first; i < last; ++i) if (fibers[i].waits_for == whom) fibers[i].waits_for = 0;
  return any;
}
static void take_place(std::vector<Store>& stores) {
  for (const Store& s : stores) memcpy(s.to, s.bytes.data(), s.bytes.size());
  stores.clear();
}
// Nothing may be read where a store is under way.
static Store on_its_way(void* to, const void* from, size_t bytes) {
  const auto* first = static_cast<const unsigned char*>(from);
  Store made{to, {first, first + bytes}};
  memset(to, 0xff, bytes);
  return made;
}
static unsigned char* in_cluster(unsigned address) {
  if (address >= blocks_of_cluster * SHARED) { fprintf(stderr, "emulator: no such block of the cluster\n"); abort(); }
  return all_shared + address;
}
static bool release_cluster() {
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
static bool release_barriers() {
  if (barriers.empty()) return false;
  bool any = false;
  for (auto& [_, b] : barriers)
    if (b.arrivals && b.expected == 0) { take_place(b.stores); b.arrivals = 0; ++b.opened; any = true; }
  for (Fiber& f : fibers)
    if (f.waits_for == BYTES && barriers[f.barrier].opened > int(f.seen)) { f.waits_for = 0; any = true; }
  return any;
}
static bool release_meetings() {
  bool any = false;
  if (!meetings) return false;
  for (Fiber& f : fibers)
    if (f.waits_for == MEETING && int(*f.left >> 32) == f.number) { f.waits_for = 0; any = true; }
  return any;
}
static void prepare(Fiber& f, unsigned block, unsigned thread, dim3 block_index) {
  if (!f.stack) f.stack.reset(new char[STACK]);
  f.waits_for = 0;
  f.block = block;
  f.block_index = block_index;
  f.thread_index = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
  f.arrived = false;
  f.groups.assign(1, {});
  f.products.assign(1, {});
  f.begun = false;
}
static void check_end() {
  for (const auto& of : arrived)
    for (int left : of) if (left) { fprintf(stderr, "emulator: a barrier that is not complete at the end\n"); abort(); }
  bool lost = !stores.empty();
  for (const auto& [_, b] : barriers) lost = lost || !b.stores.empty();
  if (lost) { fprintf(stderr, "emulator: a store to a block that may be over by then\n"); abort(); }
}
// Fibers `first` up to `last` go on, each to where it waits; whether any did, or now may.
static bool take_turns(int first, int last, int threads) {
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
static void run_blocks(dim3 first, int threads, unsigned shared, bool cooperative) {
  const int all = threads * int(blocks_of_cluster);
  fibers.resize(all);
  all_slots.resize(all);
  slots = all_slots.data();
  for (int i = 0; i < all; ++i) prepare(fibers[i], i / threads, i % threads, {first.x + i / threads, first.y, first.z});
  for (unsigned b = 0; b < blocks_of_cluster; ++b) memset(all_shared + b * SHARED, 0xff, shared);
  memset(arrived, 0, sizeof arrived);
  barriers.clear();
  meetings = false;
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
// Whether all bytes are ones: the first is, and each is as the one before it.
static bool unset(const unsigned char* first, const unsigned char* last) {
  return first == last || (*first == 0xff && !memcmp(first, first + 1, last - first - 1));
}
// shared: bytes of dynamic shared memory that a block asked for; what lies behind them must not change. A cluster of as
// many blocks as there are is a cooperative launch where `cooperative` says so.
void launch(const unsigned* grid, const unsigned* block, unsigned cluster, unsigned cooperative, unsigned shared, Run run, const void* kernel) {
  if (cluster > MOST_BLOCKS || grid[0] % cluster) { fprintf(stderr, "emulator: no such cluster\n"); abort(); }
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  blocks_of_cluster = cluster;
  body = run;
  kernel_of_body = kernel;
  if (shared > SHARED) { fprintf(stderr, "emulator: a block has no %u bytes of shared memory\n", shared); abort(); }
  memset(all_shared, 0xff, cluster * SHARED);
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; x += cluster) {
        run_blocks({x, y, z}, int(block[0] * block[1] * block[2]), shared, cooperative);
        for (unsigned b = 0; b < cluster; ++b)
          if (!unset(all_shared + b * SHARED + shared, all_shared + (b + 1) * SHARED)) {
            fprintf(stderr, "emulator: a write beyond the %u bytes of shared memory\n", shared);
            abort();
          }
      }
  std::vector<Fiber>().swap(fibers);
}
}  // namespace emulator

int __syncthreads_or(int mine) {
  using namespace emulator;
  hand_in(mine);
  wait_for(BLOCK);
  const int threads = blockDim.x * blockDim.y * blockDim.z, begin = current / threads * threads;
  int any = 0;
  for (int i = begin; i < begin + threads; ++i) any |= handed_in<int>(i) != 0;
  wait_for(BLOCK);
  return any;
}

namespace ca {

unsigned cluster_rank() { return emulator::self().block; }
void cluster_arrive() { emulator::self().arrived = true; }
void cluster_here() { emulator::self().arrived = true; }
void cluster_wait() { emulator::wait_for(emulator::CLUSTER); }
unsigned address_in(const void* shared, unsigned rank) {
  return unsigned(static_cast<const unsigned char*>(shared) - shared_memory) + rank * SHARED;
}
void store_remote(void* shared, unsigned rank, const void* from, size_t bytes) {
  emulator::stores.push_back(emulator::on_its_way(emulator::in_cluster(address_in(shared, rank)), from, bytes));
}
void leave_word(uint64_t* at, int word, int number) { *at = uint64_t(unsigned(number)) << 32 | unsigned(word); }
uint64_t look(const uint64_t* at) { return *at; }
int word_for(int number, uint64_t seen, const uint64_t* at) {
  if (int(seen >> 32) == number) return int(seen);
  emulator::self().left = at;
  emulator::self().number = number;
  emulator::wait_for(emulator::MEETING);
  return int(*at);
}
static emulator::Barrier& barrier_at(const void* barrier) { return emulator::barriers[address_in(barrier, cluster_rank())]; }
void barrier_set(uint64_t* barrier) { *barrier = 0; barrier_at(barrier) = {}; }
void barrier_expect(uint64_t* barrier, int bytes) { barrier_at(barrier).expected += bytes; ++barrier_at(barrier).arrivals; }
void barrier_wait(uint64_t* barrier, int parity) {
  const int opened = barrier_at(barrier).opened;
  if (opened % 2 != parity) return;  // as the hardware: the phase of this parity is behind it
  emulator::self().barrier = address_in(barrier, cluster_rank());
  emulator::self().seen = opened;
  emulator::wait_for(emulator::BYTES);
}
void send(unsigned to, float4 x, unsigned barrier) {
  if (to % 16) { fprintf(stderr, "emulator: a store that is not aligned\n"); abort(); }
  emulator::Barrier& b = emulator::barriers.at(barrier);
  b.expected -= sizeof x;
  b.stores.push_back(emulator::on_its_way(emulator::in_cluster(to), &x, sizeof x));
}
// As the plan has it (see `_described`), instead of what the driver makes of it: address, dimensions and bytes of an
// element; five sizes, four strides in bytes, four of the box, of which the fifth is 1.
void copy_all_of_box(float* to, const tensor_map& from, uint64_t* barrier, int coordinates, const int* at) {
  const auto* words = reinterpret_cast<const int64_t*>(&from);
  const int rank = int(words[1] / 256), item = int(words[1] % 256);
  auto size = [&](int d) { return d < rank ? words[2 + d] : 1; };
  auto stride = [&](int d) { return d == 0 ? int64_t(item) : d < rank ? words[6 + d] : 0; };
  auto box = [&](int d) { return d < rank && d < 4 ? words[11 + d] : 1; };
  if (coordinates != rank || uintptr_t(to) % 1024) { fprintf(stderr, "emulator: a box that does not fit its tensor\n"); abort(); }
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
void queue_copy(void* to, const void* from, int bytes, int filled) {
  if (uintptr_t(to) % bytes || uintptr_t(from) % bytes) { fprintf(stderr, "emulator: a copy that is not aligned\n"); abort(); }
  emulator::self().groups.back().push_back({to, from, bytes, filled});
}
void copy_commit() { emulator::self().groups.emplace_back(); }
void take_copies(int pending) {
  auto& groups = emulator::self().groups;
  const int ready = int(groups.size()) - 1 - pending;
  for (int g = 0; g < ready; ++g) {
    for (const auto& c : groups[g]) {
      memset(c.to, 0, c.bytes);
      memcpy(c.to, c.from, c.filled);
    }
    groups[g].clear();
  }
  if (ready > 0) groups.erase(groups.begin(), groups.begin() + ready);
}
// As the tensor core stores a sum: towards zero, and what is too large as an infinity.
static float cut_off(double x) {
  const float r = float(x);
  return fabs(double(r)) > fabs(x) && !isinf(r) ? nextafterf(r, 0.f) : r;
}
// One of the terms in a fragment's register: float32 holds any of them.
template <int Width> static float term(unsigned bits, int number) {
  if constexpr (Width == HALF) return bits_of<_Float16>(uint16_t(number ? bits >> 16 : bits));
  return bits_of<float>(Width == 1 ? bits & 0xffffe000u : number ? bits & 0xffff0000u : bits << 16);
}
template <int Width> constexpr int TERMS = Width == 1 ? 1 : 2;
template <int Width> static void read_terms(float* to, const unsigned* registers, int count) {
  for (int i = 0; i < count; ++i)
    for (int w = 0; w < TERMS<Width>; ++w) to[i * TERMS<Width> + w] = term<Width>(registers[i], w);
}
// What a thread hands in: its terms of the first operand by register, and of the second.
template <int Width> struct Terms { float a[4 * TERMS<Width>], b[2 * TERMS<Width>]; };
template <int Width> static const Terms<Width>& terms_of(int thread) { return reinterpret_cast<const Terms<Width>&>(emulator::slots[thread]); }
// `first`: the terms of the thread that has the first ones of a row, `half`: which of its rows; `second(k)`: a term.
template <int Width, class Second> static float add_products(double total, int first, int half, Second second) {
  constexpr int N = TERMS<Width>;
  for (int k = 0; k < 8; ++k) {
    const float* a = terms_of<Width>(first + k % 4).a + (half + 2 * (k / 4)) * N;
    for (int w = 0; w < N; ++w) total += double(a[w]) * second(k, w);
  }
  return cut_off(total);
}
template <int Width> void multiply_fragments(float* d, const unsigned* a, const unsigned* b) {
  Terms<Width> mine;
  read_terms<Width>(mine.a, a, 4);
  read_terms<Width>(mine.b, b, 2);
  emulator::hand_in(mine);
  const int warp = emulator::current / 32 * 32, lane = emulator::current % 32;
  emulator::warp_barrier();
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + 8 * (e / 2), column = lane % 4 * 2 + e % 2;
    d[e] = add_products<Width>(d[e], warp + row % 8 * 4, row / 8, [&](int k, int w) {
      return terms_of<Width>(warp + column * 4 + k % 4).b[k / 4 * TERMS<Width> + w];
    });
  }
  emulator::warp_barrier();
}
template void multiply_fragments<1>(float*, const unsigned*, const unsigned*);
template void multiply_fragments<2>(float*, const unsigned*, const unsigned*);
template void multiply_fragments<HALF>(float*, const unsigned*, const unsigned*);
void load_matrices(bool columns, unsigned* r, const void* row) {
  if (uintptr_t(row) % 16) { fprintf(stderr, "emulator: a row of a matrix that is not aligned\n"); abort(); }
  emulator::hand_in(row);
  const int warp = emulator::current / 32 * 32, lane = emulator::current % 32;
  emulator::warp_barrier();
  auto element = [&](int matrix, int y, int x) { return unsigned(emulator::handed_in<const uint16_t*>(warp + 8 * matrix + y)[x]); };
  for (int i = 0; i < 4; ++i) {
    const int own = lane / 4, first = lane % 4 * 2;
    r[i] = columns ? element(i, first, own) | element(i, first + 1, own) << 16 : element(i, own, first) | element(i, own, first + 1) << 16;
  }
  emulator::warp_barrier();
}
void wide_commit() { emulator::self().products.emplace_back(); }
void take_products(int pending) {
  auto& products = emulator::self().products;
  const int ready = int(products.size()) - 1 - pending;
  for (int g = 0; g < ready; ++g) for (const auto& product : products[g]) product.run(product.closure);
  if (ready > 0) products.erase(products.begin(), products.begin() + ready);
}
uint64_t operand_at(const float* tile, int byte) {
  if (uintptr_t(tile) % 1024) { fprintf(stderr, "emulator: a tile that is not aligned\n"); abort(); }
  return uintptr_t(tile) + byte;
}
// Rows of B have 128 bytes of TF32 or 64 of bfloat16; the tensor core takes bits 4 and up of an address exclusive or bits
// 7 and up: three of them, or two.
template <int Width> static float wide_term(uint64_t b, int column, int k) {
  const int bytes = 128 / Width, size = 4 / Width;
  unsigned at = column * bytes + unsigned(b & 1023) + k * size;
  at ^= (at >> 7) % (bytes / 16) << 4;
  unsigned bits = 0;
  memcpy(&bits, reinterpret_cast<const char*>(b & ~uint64_t(1023)) + at, size);
  return term<Width>(bits, 0);
}
// second(column, k): a term of the second operand.
template <int Width, class Second> static void multiply_with(float* d, int n, const unsigned* a, int more, Second second) {
  Terms<Width> mine{};
  read_terms<Width>(mine.a, a, 4);
  emulator::hand_in(mine);
  const int warp = emulator::current / 32 * 32, lane = emulator::current % 32;
  emulator::warp_barrier();
  for (int i = 0; i < n; ++i) {
    const int row = lane / 4 + 8 * (i % 4 / 2), column = lane % 4 * 2 + 8 * (i / 4) + i % 2;
    d[i] = add_products<Width>(
        more ? d[i] : 0., warp + row % 8 * 4, row / 8,
        [&](int k, int w) { return second(column, k * TERMS<Width> + w); });
  }
  emulator::warp_barrier();
}
template <int Width> void multiply_now(float* d, int n, const unsigned* a, uint64_t b, int more) {
  multiply_with<Width>(d, n, a, more, [b](int column, int k) { return wide_term<Width>(b, column, k); });
}
template void multiply_now<1>(float*, int, const unsigned*, uint64_t, int);
template void multiply_now<2>(float*, int, const unsigned*, uint64_t, int);
// Lines of 128 bytes, of 64 terms or of as many rows; where the next 64 are is above what addresses have.
const int NEXT = 48, KIB = 1024;
uint64_t by_rows_operand(const float* tile, int byte, int next) {
  if (uintptr_t(tile) % KIB || byte % KIB || next % KIB || next >> 16) { fprintf(stderr, "emulator: a tile that is not aligned\n"); abort(); }
  return uint64_t(next / KIB) << NEXT | (uintptr_t(tile) + byte);
}
template <int Width> static float both_term(uint64_t operand, bool by_rows, int row, int k) {
  const uint64_t place = operand & ((uint64_t(1) << NEXT) - 1);
  const unsigned next = unsigned(operand >> NEXT) * KIB;
  unsigned at = unsigned(place % KIB) + (by_rows ? row / 64 * next + k * 128 + row % 64 * 2 : row * 128 + k * 2);
  at ^= (at >> 7) % 8 << 4;
  uint16_t bits;
  memcpy(&bits, reinterpret_cast<const char*>(place / KIB * KIB) + at, sizeof bits);
  return term<Width>(bits, 0);
}
template <int Width> void multiply_both(float* d, int n, uint64_t a, bool a_by_rows, uint64_t b, bool b_by_rows, int more) {
  const int lane = emulator::current % 32, first = emulator::current / 32 % 4 * 16 + lane / 4;
  for (int i = 0; i < n; ++i) {
    double total = more ? d[i] : 0.;
    const int row = first + 8 * (i % 4 / 2), column = lane % 4 * 2 + 8 * (i / 4) + i % 2;
    for (int k = 0; k < 16; ++k) total += double(both_term<Width>(a, a_by_rows, row, k)) * both_term<Width>(b, b_by_rows, column, k);
    d[i] = cut_off(total);
  }
}
template void multiply_both<2>(float*, int, uint64_t, bool, uint64_t, bool, int);
template void multiply_both<HALF>(float*, int, uint64_t, bool, uint64_t, bool, int);
template <int Width> void multiply_rows(float* d, int n, const unsigned* a, uint64_t b, int more) {
  multiply_with<Width>(d, n, a, more, [b](int column, int k) { return both_term<Width>(b, true, column, k); });
}
template void multiply_rows<2>(float*, int, const unsigned*, uint64_t, int);
template void multiply_rows<HALF>(float*, int, const unsigned*, uint64_t, int);

}  // namespace ca
