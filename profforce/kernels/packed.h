// Matrices packed for products with rows: float32, bfloat16 and int8, by the processor's own
// instructions where it has them.
//
// A matrix [n, k] is cut into panels of kPanel outputs, which a tile of up to kTileRows rows is
// multiplied with at a time: as many sums as the registers hold beside two vectors of weights.

#ifndef PF_PACKED_H
#define PF_PACKED_H

#include <cmath>

#include "vectors.h"

#if PF_LANES > 4 && defined(__x86_64__)
#include <immintrin.h>
#endif
#if PF_LANES == 16 && defined(__x86_64__)
#define PF_DOT 1
#endif

namespace {

typedef uint8_t VecBytes __attribute__((vector_size(PF_LANES)));
typedef uint16_t VecHalves __attribute__((vector_size(2 * PF_LANES)));
typedef uint32_t VecBits __attribute__((vector_size(4 * PF_LANES)));
typedef uint32_t VecBitsAnywhere __attribute__((vector_size(4 * PF_LANES), aligned(4)));

constexpr int kTileRows = kLanes == 16 ? 12 : 6;  // what the registers hold beside two vectors of weights
constexpr int kPanel = 2 * kLanes;                // outputs computed together
constexpr int kMaxHeadWidth = 256;

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

PF_INLINE uint32_t bits_of(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
PF_INLINE float float_of(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

PF_INLINE uint16_t to_bfloat16(float x) {  // round to nearest even
  const uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t(u >> 16 | 0x40);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

// ---------------------------------------------------------------- packed matrices

enum { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2 };
enum { kNone = 0, kReluActivation = 1, kGelu = 2, kSilu = 3, kTanh = 4 };

bool has_dot_pairs() {  // products of bfloat16 pairs
#ifdef PF_DOT
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
#else
  return false;
#endif
}

bool has_dot_bytes() {  // products of four bytes
#ifdef PF_DOT
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
#else
  return false;
#endif
}

// y = x W^T + bias. Packed panel by panel: [panel][k][kPanel]; bfloat16 keeps two k side by side, int8
// four if the processor multiplies them so. In bfloat16 and int8 the rows of x are rounded as well.
struct Matrix {
  void* data;
  const float* bias;  // [n], or null
  float* scale;       // int8: [n] padded to a whole number of panels, of the outputs
  int32_t* sums;      // int8: as many, of the weights, times 128
  int32_t n, k, type;
};

int64_t panels_of(int32_t n) { return (n + kPanel - 1) / kPanel; }

// values of k that lie side by side
int64_t bundle_of(int32_t type) { return type == kBFloat16 ? 2 : type == kInt8 && has_dot_bytes() ? 4 : 1; }

template <class Type, class Convert>
void pack_panel(const float* w, int64_t stride, const Matrix& m, int64_t panel, Convert convert) {
  const int64_t first = panel * kPanel, bundle = bundle_of(m.type), deep = round_up(m.k, bundle);
  const int64_t columns = m.n - first < kPanel ? m.n - first : kPanel;
  Type* to = static_cast<Type*>(m.data) + first * deep;
  std::memset(to, 0, sizeof(Type) * kPanel * deep);
  for (int64_t k = 0; k < m.k; ++k)
    for (int64_t c = 0; c < columns; ++c)
      to[(k / bundle * kPanel + c) * bundle + k % bundle] = convert(w[(first + c) * stride + k], first + c);
}

float largest_of(const float* x, int64_t count) {
  Vec most{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec v = load(x + i), a = v < 0.0f ? -v : v;
    most = a > most ? a : most;
  }
  float lanes[kLanes], largest = 0;
  store(lanes, most);
  for (float lane : lanes) largest = lane > largest ? lane : largest;
  for (; i < count; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
  return largest;
}

void pack_int8(const float* w, int64_t stride, const Matrix& m) {
  for (int64_t c = 0; c < panels_of(m.n) * kPanel; ++c) {
    m.scale[c] = c < m.n ? largest_of(w + c * stride, m.k) / 127 : 0;
    m.sums[c] = 0;
  }
  const auto convert = [&](float x, int64_t c) {
    const int8_t q = m.scale[c] > 0 ? int8_t(std::lrint(x / m.scale[c])) : 0;
    m.sums[c] += 128 * q;
    return q;
  };
  for (int64_t panel = 0; panel < panels_of(m.n); ++panel) pack_panel<int8_t>(w, stride, m, panel, convert);
}

// ---------------------------------------------------------------- products of rows with a packed panel

// `ahead`: weights that will be wanted soon, a cache line of them asked for at every k
template <int kRows>
PF_INLINE void multiply_float(const float* x, int64_t ldx, const float* w, int64_t k, const char* ahead, Vec (&s)[kRows][2]) {
  for (int64_t i = 0; i < k; ++i, w += kPanel) {
    __builtin_prefetch(ahead + 64 * i);
    const Vec w0 = load(w), w1 = load(w + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec v = splat(x[r * ldx + i]);
      s[r][0] += v * w0;
      s[r][1] += v * w1;
    }
  }
}

PF_INLINE Vec widen(const int8_t* x) {  // compilers do not find the instructions by themselves
#if PF_LANES == 16 && defined(__x86_64__)
  return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
#elif PF_LANES == 8 && defined(__x86_64__)
  return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
#endif
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = float(x[i]);
  return load(lanes);
}

template <int kRows>
PF_INLINE void multiply_int8(const float* x, int64_t ldx, const int8_t* w, int64_t k, Vec (&s)[kRows][2]) {
  for (int64_t i = 0; i < k; ++i, w += kPanel) {
    __builtin_prefetch(w + 16 * kPanel);
    const Vec w0 = widen(w);
    const Vec w1 = widen(w + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec v = splat(x[r * ldx + i]);
      s[r][0] += v * w0;
      s[r][1] += v * w1;
    }
  }
}

// x in bfloat16 too, two k in 32 bits; what the processor's own instruction does in one
template <int kRows>
PF_INLINE void multiply_pairs(const uint32_t* x, int64_t ldx, const uint32_t* w, int64_t pairs, Vec (&s)[kRows][2]) {
  for (int64_t i = 0; i < pairs; ++i, w += kPanel)
    for (int j = 0; j < 2; ++j) {
      const VecBits both = *reinterpret_cast<const VecBitsAnywhere*>(w + j * kLanes);
      const Vec even = (Vec)(both << 16), odd = (Vec)(both & 0xffff0000u);
      for (int r = 0; r < kRows; ++r) {
        const uint32_t v = x[r * ldx + i];
        s[r][j] += splat(float_of(v << 16)) * even;
        s[r][j] += splat(float_of(v & 0xffff0000u)) * odd;
      }
    }
}

#ifdef PF_DOT
template <int kRows>
__attribute__((target("avx512bf16,avx512vl,avx512bw,avx512dq,fma"), noinline)) void dot_pairs(
    const uint32_t* x, int64_t ldx, const uint32_t* w, int64_t pairs, const char* ahead, float* sums) {
  __m512 s[kRows][2];
  for (int r = 0; r < kRows; ++r) s[r][0] = s[r][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < pairs; ++i, w += kPanel) {
    __builtin_prefetch(ahead + 64 * i);
    const __m512bh w0 = (__m512bh)_mm512_loadu_si512(w), w1 = (__m512bh)_mm512_loadu_si512(w + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const __m512bh v = (__m512bh)_mm512_set1_epi32(int(x[r * ldx + i]));
      s[r][0] = _mm512_dpbf16_ps(s[r][0], v, w0);
      s[r][1] = _mm512_dpbf16_ps(s[r][1], v, w1);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(sums + r * kPanel, s[r][0]);
    _mm512_storeu_ps(sums + r * kPanel + kLanes, s[r][1]);
  }
}

// Rows in bytes, 128 added to each, against weights in bytes.
template <int kRows>
__attribute__((target("avx512vnni,avx512vl,avx512bw,avx512dq,fma"), noinline)) void dot_bytes(
    const uint32_t* x, int64_t ldx, const uint32_t* w, int64_t bundles, const char* ahead, int32_t* sums) {
  VecInt s[kRows][2];  // not __m512i: GCC 12 would keep them in memory
  for (int r = 0; r < kRows; ++r) s[r][0] = s[r][1] = VecInt{};
  for (int64_t i = 0; i < bundles; ++i, w += kPanel) {
    __builtin_prefetch(ahead + 64 * i);
    const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const __m512i v = _mm512_set1_epi32(int(x[r * ldx + i]));
      s[r][0] = (VecInt)_mm512_dpbusd_epi32((__m512i)s[r][0], v, w0);
      s[r][1] = (VecInt)_mm512_dpbusd_epi32((__m512i)s[r][1], v, w1);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(sums + r * kPanel, &s[r][0], sizeof s[r][0]);
    std::memcpy(sums + r * kPanel + kLanes, &s[r][1], sizeof s[r][1]);
  }
}
#endif

void round_pairs(const float* x, int64_t k, uint32_t* pairs) {
  uint16_t* to = reinterpret_cast<uint16_t*>(pairs);  // little-endian, as every processor this runs on
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    const VecBits u = (VecBits)load(x + i);
    const VecBits rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    const VecBits bits = (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40 : rounded;
    const VecHalves halves = __builtin_convertvector(bits, VecHalves);
    std::memcpy(to + i, &halves, sizeof halves);
  }
  for (; i < k; ++i) to[i] = to_bfloat16(x[i]);
  if (k % 2) to[k] = 0;
}

// A row to the nearest of 255 levels; returns their distance. As bytes with 128 added, or as numbers.
template <class Type>
float round_bytes(const float* x, int64_t k, int64_t deep, Type* to) {
  const float largest = largest_of(x, k), scale = largest / 127, inverse = largest > 0 ? 127 / largest : 0;
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    const Vec level = load(x + i) * inverse + 12582912.0f;  // 1.5 * 2^23: rounds to whole numbers
    if constexpr (sizeof(Type) == 1) {
      const VecBytes bytes = __builtin_convertvector((VecInt)level - 0x4b400000 + 128, VecBytes);
      std::memcpy(to + i, &bytes, sizeof bytes);
    } else {
      store(to + i, level - 12582912.0f);
    }
  }
  for (; i < k; ++i) {
    const int level = int(std::lrint(x[i] * inverse));
    to[i] = Type(sizeof(Type) == 1 ? level + 128 : level);
  }
  for (; i < deep; ++i) to[i] = 0;
  return scale;
}

}  // namespace

#endif
