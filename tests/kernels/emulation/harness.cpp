// A C ABI for ctypes over the kernel PF_NAME: PF_SOURCE is the .cu, compiled as it is.
#include "cuemu.h"
#include PF_SOURCE

alignas(128) Four pf_smem[(228 << 10) / sizeof(Four)];

// Calls `kernel` with eight-byte arguments, each a pointer or an integer.
template <class... P>
struct Caller {
  typedef void (*Kernel)(P...);
  template <int... I>
  struct List {};
  template <int N, int... I>
  struct Make : Make<N - 1, N - 1, I...> {};
  template <int... I>
  struct Make<0, I...> {
    typedef List<I...> type;
  };
  struct Call {
    Kernel kernel;
    const long long* arguments;
  };
  template <int... I>
  static void call(const Call& c, List<I...>) {
    c.kernel((P)c.arguments[I]...);
  }
  static void body(const void* data) { call(*(const Call*)data, typename Make<sizeof...(P)>::type()); }
};

template <class... P>
static const char* run(void (*kernel)(P...), const long long* arguments, int count, uint3 grid, unsigned threads,
                       unsigned seed, unsigned shared_bytes) {
  if (count != (int)sizeof...(P)) return "wrong number of arguments";
  const typename Caller<P...>::Call call = {kernel, arguments};
  return cuemu::launch(grid, threads, seed, (float*)pf_smem, shared_bytes, sizeof pf_smem, Caller<P...>::body, &call);
}

// Null, or what went wrong.
extern "C" const char* emulate(const char* name, const long long* arguments, int count, unsigned grid_x,
                               unsigned grid_y, unsigned threads, unsigned seed, unsigned shared_bytes) {
  if (threads != PF_THREADS) return "launched with another block size than compiled for";
  const uint3 grid = {grid_x, grid_y, 1};
#define PF_STRING_(x) #x
#define PF_STRING(x) PF_STRING_(x)
  if (!strcmp(name, PF_STRING(PF_NAME)))
    return run(PF_NAME, arguments, count, grid, threads, seed, shared_bytes);
  return "no such kernel";
}
