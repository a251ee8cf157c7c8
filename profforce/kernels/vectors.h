// What the C++ kernels share: vectors of PF_LANES floats, their exponential, feature maps, huge pages.
//
// One source, built once for every vector width: -DPF_LANES=16 (AVX-512), 8 (AVX2) or 4 (baseline).
// Needs GCC or Clang for their vector types.

#ifndef PF_VECTORS_H
#define PF_VECTORS_H

#include <cstdint>
#include <cstdlib>
#include <cstring>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#ifndef PF_LANES
#error "PF_LANES: floats of a vector register"
#endif

#if defined(_WIN32)
#define PF_API extern "C" __declspec(dllexport)
#else
#define PF_API extern "C" __attribute__((visibility("default")))
#endif

namespace {

constexpr int kLanes = PF_LANES;

typedef float Vec __attribute__((vector_size(4 * PF_LANES)));
typedef float VecAnywhere __attribute__((vector_size(4 * PF_LANES), aligned(4)));
typedef int32_t VecInt __attribute__((vector_size(4 * PF_LANES)));

#define PF_INLINE static inline __attribute__((always_inline))

PF_INLINE Vec load(const float* p) { return *reinterpret_cast<const VecAnywhere*>(p); }
PF_INLINE void store(float* p, Vec v) { *reinterpret_cast<VecAnywhere*>(p) = v; }
PF_INLINE Vec splat(float x) { return x - Vec{}; }

PF_INLINE float sum(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// y[c][r] = x[r][c] for a square of one vector's width
static inline void transpose_square(const float* x, int64_t ldx, float* y, int64_t ldy) {
  Vec lines[kLanes];
  for (int i = 0; i < kLanes; ++i) lines[i] = load(x + i * ldx);
  // log2(lanes) rounds, each interleaving line i with line i + lanes / 2
  for (int width = 1; width < kLanes; width *= 2) {
    Vec mixed[kLanes];
    for (int i = 0; i < kLanes / 2; ++i) {
      VecInt low, high;
      for (int j = 0; j < kLanes; ++j) {
        low[j] = j / 2 + (j & 1) * kLanes;
        high[j] = kLanes / 2 + j / 2 + (j & 1) * kLanes;
      }
#if defined(__clang__)
      for (int j = 0; j < kLanes; ++j) {
        mixed[2 * i][j] = j & 1 ? lines[i + kLanes / 2][j / 2] : lines[i][j / 2];
        mixed[2 * i + 1][j] = j & 1 ? lines[i + kLanes / 2][kLanes / 2 + j / 2] : lines[i][kLanes / 2 + j / 2];
      }
#else
      mixed[2 * i] = __builtin_shuffle(lines[i], lines[i + kLanes / 2], low);
      mixed[2 * i + 1] = __builtin_shuffle(lines[i], lines[i + kLanes / 2], high);
#endif
    }
    for (int i = 0; i < kLanes; ++i) lines[i] = mixed[i];
  }
  for (int i = 0; i < kLanes; ++i) store(y + i * ldy, lines[i]);
}

// ---------------------------------------------------------------- feature maps

enum { kElu = 0, kRelu = 1, kIdentity = 2 };

// exp for x <= 0, to about one unit in the last place; below -87 it stays at the least normal number
PF_INLINE Vec exp_nonpositive(Vec x) {
  x = x < -87.0f ? splat(-87.0f) : x;  // written so that NaN stays NaN
  const Vec shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the integer lies in the low bits
  const Vec n = shifted - 12582912.0f;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const VecInt exponent = ((VecInt)shifted - 0x4b400000 + 127) << 23;
  return p * (Vec)exponent;
}

PF_INLINE Vec apply_map(int map, Vec x) {
  if (map == kElu) {
    const Vec e = exp_nonpositive(x > 0.0f ? Vec{} : x);
    return x > 0.0f ? x + 1.0f : e;
  }
  if (map == kRelu) return x < 0.0f ? Vec{} : x;  // NaN stays NaN
  return x;
}

// ---------------------------------------------------------------- memory

// Results and states of several MiB are fresh memory at every call: taken in pages of 4 KiB they cost a
// quarter of the time and most of what a second thread gains. Linux gives 2 MiB pages where asked.
static inline void ask_for_huge_pages(void* data, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = uintptr_t(1) << 21;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  if (data && begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

}  // namespace

#endif
