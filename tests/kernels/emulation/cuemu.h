// Runs CUDA C++ on the CPU: one fiber a thread, one block at a time, all in one OS thread.
//
// Include before the kernel source, which stays as it is. Emulated are the built-in indices, dynamic
// shared memory, __syncthreads, warp shuffles and the tensor-core instructions by the fragment
// layouts of the PTX manual. A fiber runs until it waits for others; which one runs next is shuffled
// by a seed (0: as numbered), so that a missing barrier shows as a wrong result. Odd seeds let a warp
// run as far as it can. Shared memory starts as NaN in every block. Deadlocks and writes
// beyond the reserved shared memory are reported by name.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUEMU 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__

struct uint3 {
  unsigned x, y, z;
};

namespace cuemu {

constexpr unsigned MAX_THREADS = 1024, MAX_WARPS = 32, STACK = 64 << 10;

// ---- switching between fibers: by hand on x86-64, elsewhere (or if asked) by ucontext
#if defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
typedef void* Context;
extern "C" void cuemu_switch(void** save, void* load);
asm(R"(
.text
.type cuemu_switch,@function
cuemu_switch:
 pushq %rbp
 pushq %rbx
 pushq %r12
 pushq %r13
 pushq %r14
 pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15
 popq %r14
 popq %r13
 popq %r12
 popq %rbx
 popq %rbp
 ret
.size cuemu_switch,.-cuemu_switch
)");
inline void swap(Context& save, Context& load) { cuemu_switch(&save, load); }
inline void prepare(Context& context, char* stack, void (*entry)()) {
  void** top = (void**)(((uintptr_t)stack + STACK) & ~(uintptr_t)63);
  *--top = nullptr;
  *--top = (void*)entry;
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context = top;
}
#else
#include <ucontext.h>
typedef ucontext_t Context;
inline void swap(Context& save, Context& load) { swapcontext(&save, &load); }
inline void prepare(Context& context, char* stack, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = STACK;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
#endif

enum Wait { NOTHING, BARRIER, WARP };

struct Fiber {
  Context context;
  uint3 tid;
  unsigned lane, warp, phase;
  unsigned long generation;
  Wait wait;
  bool done;
};

struct Warp {  // two buffers: a lane may be in the next collective while another still reads this one
  uint64_t buffer[2][32][8];
  unsigned arrived[2], phase;
};

static Fiber fibers[MAX_THREADS];
static Warp warps[MAX_WARPS];
static unsigned alive, at_barrier;
static unsigned long generation;
static Context scheduler;
static Fiber* current;
static uint3 block_index, block_size, grid_size;
static char failure[256];
static void (*body)(const void*);
static const void* body_data;

inline void yield() { swap(current->context, scheduler); }

inline void fail(const char* what) {
  if (!failure[0])
    snprintf(failure, sizeof failure, "%s in block (%u, %u), thread %u", what, block_index.x, block_index.y,
             current ? current->tid.x : 0);
}

inline void entry() {
  body(body_data);
  current->done = true;
  --alive;
  for (;;) yield();
}

inline void barrier() {
  const unsigned long mine = generation;
  ++at_barrier;
  current->wait = BARRIER;
  current->generation = mine;
  while (generation == mine) yield();
  current->wait = NOTHING;
}

// All lanes of `mask` hand in `count` words; each then reads everyone's.
template <class Read>
inline void exchange(unsigned mask, const uint64_t* mine, int count, Read read) {
  Warp& warp = warps[current->warp];
  const unsigned phase = warp.phase;
  for (int i = 0; i < count; ++i) warp.buffer[phase & 1][current->lane][i] = mine[i];
  unsigned& arrived = warp.arrived[phase & 1];
  arrived |= 1u << current->lane;
  current->wait = WARP;
  current->phase = phase;
  if ((arrived & mask) == mask) {
    arrived = 0;
    warp.phase = phase + 1;
  } else {
    while (warp.phase == phase) yield();
  }
  current->wait = NOTHING;
  read(warp.buffer[phase & 1]);
}

inline uint64_t next_random(uint64_t& state) {  // splitmix64
  uint64_t x = state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

inline bool waits(const Fiber& fiber) {
  return fiber.done || (fiber.wait == BARRIER && fiber.generation == generation) ||
         (fiber.wait == WARP && warps[fiber.warp].phase == fiber.phase);
}

// One turn for each fiber of a group that can run; whether there was one.
inline bool run_round(const unsigned* order, unsigned count) {
  bool progress = false;
  for (unsigned i = 0; i < count && !failure[0]; ++i) {
    if (waits(fibers[order[i]])) continue;
    current = &fibers[order[i]];
    progress = true;
    swap(scheduler, current->context);
  }
  return progress;
}

// `order` holds the threads by warps. All warps advance alike, or (`greedy`) one goes as far as it
// can before the next: races between neighbours show in the one, those between warps in the other.
inline void run_block(const unsigned* order, unsigned threads, bool greedy) {
  while (alive && !failure[0]) {
    bool progress = false;
    for (unsigned i = 0; greedy && i < threads; i += 32)
      while (run_round(order + i, threads - i < 32 ? threads - i : 32)) progress = true;
    if (!greedy) progress = run_round(order, threads);
    if (alive && at_barrier == alive) {  // threads that have returned count as arrived
      at_barrier = 0;
      ++generation;
      progress = true;
    }
    if (!progress && alive && !failure[0])
      for (unsigned i = 0; i < threads; ++i)
        if (!fibers[i].done) {
          current = &fibers[i];
          fail(current->wait == BARRIER ? "deadlock at __syncthreads" : "deadlock in a warp collective");
          break;
        }
  }
}

// Shuffles the warps, and the threads within each.
inline void shuffle(unsigned* order, unsigned threads, uint64_t& random) {
  const unsigned count = (threads + 31) / 32;
  unsigned warp[MAX_WARPS];
  for (unsigned i = 0; i < count; ++i) {
    const unsigned j = next_random(random) % (i + 1);
    warp[i] = warp[j], warp[j] = i;
  }
  for (unsigned i = 0, n = 0; i < count; ++i)
    for (unsigned lane = 0; lane < 32 && warp[i] * 32 + lane < threads; ++lane, ++n) {
      const unsigned j = n - next_random(random) % (lane + 1);
      order[n] = order[j], order[j] = warp[i] * 32 + lane;
    }
}

// Runs a kernel over the grid; returns null or what went wrong.
inline const char* launch(uint3 grid, unsigned threads, unsigned seed, float* shared, unsigned shared_bytes,
                          unsigned shared_limit, void (*kernel)(const void*), const void* data) {
  static char* stacks = (char*)malloc((size_t)MAX_THREADS * STACK);
  static unsigned order[MAX_THREADS];
  uint64_t random = seed;
  failure[0] = 0;
  body = kernel, body_data = data;
  block_size = {threads, 1, 1}, grid_size = grid;
  for (unsigned i = 0; i < threads; ++i) order[i] = i;
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x && !failure[0]; ++x) {
      block_index = {x, y, 0};
      alive = threads, at_barrier = 0, generation = 0;
      memset(warps, 0, sizeof warps);
      for (unsigned i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.tid = {i, 0, 0}, fiber.lane = i & 31, fiber.warp = i >> 5, fiber.done = false, fiber.wait = NOTHING;
        prepare(fiber.context, stacks + (size_t)i * STACK, entry);
      }
      if (seed) shuffle(order, threads, random);
      memset(shared, 0xff, shared_limit);  // NaN, whichever way it is read
      run_block(order, threads, seed & 1);
      for (unsigned i = shared_bytes; i < shared_limit; ++i)
        if (((unsigned char*)shared)[i] != 0xff) {
          fail("write beyond the reserved shared memory");
          break;
        }
    }
  current = nullptr;
  return failure[0] ? failure : nullptr;
}

inline float bits_to_float(unsigned u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
inline unsigned float_to_bits(float f) {
  unsigned u;
  memcpy(&u, &f, 4);
  return u;
}

// d += a b for the 16 x 8 tile: `left(words, row, k)` and `right(words, k, col)` find the operands
// among the lanes' registers (0 to 3: a, 4 and 5: b), where the PTX manual puts them.
template <int INNER, class Left, class Right>
inline void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Left left, Right right) {
  uint64_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  exchange(~0u, mine, 6, [&](uint64_t(*words)[8]) {
    for (int i = 0; i < 4; ++i) {
      const int row = (current->lane >> 2) + 8 * (i >> 1), col = 2 * (current->lane & 3) + (i & 1);
      double sum = d[i];
      for (int k = 0; k < INNER; ++k) sum += (double)left(words, row, k) * right(words, k, col);
      d[i] = (float)sum;
    }
  });
}

}  // namespace cuemu

#define threadIdx (cuemu::current->tid)
#define blockIdx (cuemu::block_index)
#define blockDim (cuemu::block_size)
#define gridDim (cuemu::grid_size)

inline void __syncthreads() { cuemu::barrier(); }
inline float __uint_as_float(unsigned u) { return cuemu::bits_to_float(u); }
inline unsigned __float_as_uint(float f) { return cuemu::float_to_bits(f); }

inline float __shfl_xor_sync(unsigned mask, float x, int by) {
  const uint64_t mine = cuemu::float_to_bits(x);
  float y;
  cuemu::exchange(mask, &mine, 1, [&](uint64_t(*words)[8]) {
    y = cuemu::bits_to_float((unsigned)words[(cuemu::current->lane ^ by) & 31][0]);
  });
  return y;
}

// ---- what the kernel source wraps in functions of its own around PTX

inline float pf_half_to_float(unsigned short x) {
  _Float16 y;
  memcpy(&y, &x, 2);
  return (float)y;
}
inline unsigned short pf_float_to_half(float x) {
  const _Float16 y = (_Float16)x;
  unsigned short u;
  memcpy(&u, &y, 2);
  return u;
}
inline unsigned pf_round_bf16(float x) {
  const unsigned u = cuemu::float_to_bits(x);
  return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline unsigned pf_pack_bf16(float low, float high) { return pf_round_bf16(high) << 16 | pf_round_bf16(low); }
inline unsigned pf_tf32(float x) { return (cuemu::float_to_bits(x) + 0x1000u) & 0xffffe000u; }

inline void pf_mma_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {  // m16n8k8
  const auto value = [](uint64_t word) { return cuemu::bits_to_float((unsigned)word & 0xffffe000u); };
  cuemu::mma<8>(
      d, a, b,
      [&](uint64_t(*w)[8], int row, int k) { return value(w[(row & 7) * 4 + (k & 3)][(row >> 3) + 2 * (k >> 2)]); },
      [&](uint64_t(*w)[8], int k, int col) { return value(w[col * 4 + (k & 3)][4 + (k >> 2)]); });
}

inline void pf_mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {  // m16n8k16
  const auto value = [](uint64_t word, int k) {
    return cuemu::bits_to_float(k & 1 ? (unsigned)word & 0xffff0000u : (unsigned)word << 16);
  };
  cuemu::mma<16>(
      d, a, b,
      [&](uint64_t(*w)[8], int row, int k) {
        return value(w[(row & 7) * 4 + (k & 7) / 2][(row >> 3) + 2 * (k >> 3)], k);
      },
      [&](uint64_t(*w)[8], int k, int col) { return value(w[col * 4 + (k & 7) / 2][4 + (k >> 3)], k); });
}
