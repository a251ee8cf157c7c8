// Causal linear attention on the CPU: forward, backward and recurrent step behind a plain C ABI.
//
// One source, built once for every vector width: -DPF_LANES=16 (AVX-512), 8 (AVX2) or 4 (baseline).
// Needs GCC or Clang for their vector types; no headers of PyTorch, no OpenMP at build time.
//
// Shapes: T steps, C steps of a chunk, K key width, V value width. Each (batch, head) is a problem of
// its own. Inside a chunk the scores P = tril(Q K^T) are formed; between chunks only the state
// S = sum phi(k) v^T [K, V] and z = sum phi(k) [K] is carried:
//
//     out_t = (Q_t S + P_t V) / (Q_t . z + sum(P_t) + eps)
//
// Q and K stand for the queries and keys after the feature map. Rows beyond the length and columns
// beyond the width are zero in the packed copies, so no loop below knows about either.

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "vectors.h"

#ifndef PF_SOURCE_KEY
#define PF_SOURCE_KEY "unkeyed"
#endif

namespace {

constexpr int kChunk = 32;
constexpr int kMaxWidth = 128;

// ---------------------------------------------------------------- problem, as the caller lays it out

struct Tensor {  // innermost stride 1; the others in elements
  void* data;
  int64_t batch, time, head;
};

struct Problem {
  int64_t batch, steps, heads;
  int32_t key_width, value_width;
  int32_t type;         // 0 float32, 1 bfloat16, 2 float16
  int32_t feature_map;  // 0 elu + 1, 1 relu, 2 identity
  int32_t threads;
  float eps;
  const int64_t* lengths;  // [B], or null: all steps are valid
  // GOMP_parallel of the OpenMP runtime that the process uses already, or null: own threads.
  void (*parallel)(void (*body)(void*), void* context, unsigned threads, unsigned flags);
};

struct BFloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };

PF_INLINE uint32_t bits_of(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
PF_INLINE float float_of(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

PF_INLINE float widen(float x) { return x; }
PF_INLINE float widen(BFloat16 x) { return float_of(uint32_t(x.bits) << 16); }
PF_INLINE float widen(Float16 x) {
  const uint32_t magnitude = uint32_t(x.bits & 0x7fff) << 13, sign = uint32_t(x.bits & 0x8000) << 16;
  if (magnitude >= 0x7c00u << 13) return float_of(magnitude | 0x7f800000u | sign);  // inf, NaN
  return float_of(bits_of(float_of(magnitude) * 0x1p112f) | sign);
}

PF_INLINE void narrow(float x, float& y) { y = x; }
PF_INLINE void narrow(float x, BFloat16& y) {  // round to nearest even
  const uint32_t u = bits_of(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  y.bits = uint16_t((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40 : rounded);
}
PF_INLINE void narrow(float x, Float16& y) {  // round to nearest even
  const uint32_t sign = bits_of(x) & 0x80000000u, magnitude = bits_of(x) ^ sign;
  uint32_t half;
  if (magnitude > 0x7f800000u) half = 0x7e00;                  // NaN
  else if (magnitude >= 0x477ff000u) half = 0x7c00;            // rounds to infinity
  else if (magnitude < 0x38800000u)                            // subnormal: let the adder round
    half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  else half = (magnitude + 0xfffu + ((magnitude >> 13) & 1) - 0x38000000u) >> 13;
  y.bits = uint16_t(half | sign >> 16);
}

// ---------------------------------------------------------------- feature maps

// derivative of the map, told from its value alone
PF_INLINE Vec map_slope(int map, Vec phi) {
  if (map == kElu) return phi < 1.0f ? phi : splat(1.0f);
  if (map == kRelu) return phi > 0.0f ? splat(1.0f) : Vec{};
  return splat(1.0f);
}

// ---------------------------------------------------------------- packing

int padded(int width) { return (width + 15) / 16 * 16; }

template <class Type>
PF_INLINE Vec load_as(const Type* x, int count) {
  if constexpr (sizeof(Type) == 4) {
    if (count >= kLanes) return load(reinterpret_cast<const float*>(x));
  }
  float lanes[kLanes] = {};
  if (count >= kLanes)
    for (int i = 0; i < kLanes; ++i) lanes[i] = widen(x[i]);
  else
    for (int i = 0; i < count; ++i) lanes[i] = widen(x[i]);
  return load(lanes);
}

template <class Type>
PF_INLINE void store_as(Type* x, Vec v, int count) {
  if constexpr (sizeof(Type) == 4) {
    if (count >= kLanes) { store(reinterpret_cast<float*>(x), v); return; }
  }
  float lanes[kLanes];
  store(lanes, v);
  if (count >= kLanes)
    for (int i = 0; i < kLanes; ++i) narrow(lanes[i], x[i]);
  else
    for (int i = 0; i < count; ++i) narrow(lanes[i], x[i]);
}

// zeroes the lanes from count on
PF_INLINE Vec keep(Vec v, int count) {
  if (count >= kLanes) return v;
  float lanes[kLanes];
  store(lanes, v);
  for (int i = count < 0 ? 0 : count; i < kLanes; ++i) lanes[i] = 0;
  return load(lanes);
}

// Rows of one head lie heads x width apart: no hardware prefetcher follows them, and waiting for them
// took two thirds of the packing. So each row packed asks for the same row of the chunk to come, and
// for the row that will be written.
template <class Type>
PF_INLINE void expect(const Type* x, int width) {
  for (int i = 0; i < width; i += 64 / int(sizeof(Type))) __builtin_prefetch(x + i, 0);
}
template <class Type>
PF_INLINE void expect_write(const Type* x, int width) {
  for (int i = 0; i < width; i += 64 / int(sizeof(Type))) __builtin_prefetch(x + i, 1);
}

template <class Type>
struct Rows {  // of one chunk and one head
  const Type* data;
  int64_t stride;  // from row to row
  int count, width;
  const Type* next;    // the chunk to come, or null
  const Type* result;  // rows that will be written with stride result_stride, or null
  int64_t result_stride;
};

template <int kMap, class Type>
void pack_rows(const Rows<Type>& x, float* packed) {
  const int ld = padded(x.width);
  for (int t = 0; t < x.count; ++t) {
    if (x.next) expect(x.next + t * x.stride, x.width);
    if (x.result) expect_write(x.result + t * x.result_stride, x.width);
    for (int i = 0; i < ld; i += kLanes) {
      const int count = x.width - i;
      Vec v{};
      if (count > 0) v = keep(apply_map(kMap, load_as(x.data + t * x.stride + i, count)), count);
      store(packed + t * ld + i, v);
    }
  }
  std::memset(packed + x.count * ld, 0, sizeof(float) * (kChunk - x.count) * ld);
}

template <class Type>
void pack(int map, const Rows<Type>& x, float* packed) {
  if (map == kElu) pack_rows<kElu>(x, packed);
  else if (map == kRelu) pack_rows<kRelu>(x, packed);
  else pack_rows<kIdentity>(x, packed);
}

// y[c][r] = x[r][c]; rows and columns are multiples of 16
void transpose(const float* x, int ldx, float* y, int ldy, int rows, int columns) {
  for (int r = 0; r < rows; r += kLanes)
    for (int c = 0; c < columns; c += kLanes) transpose_square(x + r * ldx + c, ldx, y + c * ldy + r, ldy);
}

// ---------------------------------------------------------------- matrix products

// A(m, k) lies at data[m * row + k * column]: read one number at a time, so any layout will do.
struct Left { const float* data; int row, column; };

enum Reach {
  kAll,        // every k
  kUpToRow,    // k <= m: A is lower triangular
  kFromRow,    // k >= m: A is upper triangular
  kUpToColumn  // only columns n <= m of the result: the rest is left as it is
};

// result[rows][vectors * lanes] = (accumulate ? result : 0) + sum over k in [begin, end) of A(., k) B[k]
template <int kRows, int kVectors>
PF_INLINE void tile(Left a, const float* b, int ldb, float* c, int ldc, int begin, int end, bool accumulate) {
  Vec sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) sums[i][j] = accumulate ? load(c + i * ldc + j * kLanes) : Vec{};
  const float* left = a.data + int64_t(begin) * a.column;
  const float* right = b + int64_t(begin) * ldb;
  for (int k = begin; k < end; ++k, left += a.column, right += ldb) {
    Vec line[kVectors];
    for (int j = 0; j < kVectors; ++j) line[j] = load(right + j * kLanes);
    for (int i = 0; i < kRows; ++i) {
      const Vec x = splat(left[i * a.row]);
      for (int j = 0; j < kVectors; ++j) sums[i][j] += x * line[j];
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) store(c + i * ldc + j * kLanes, sums[i][j]);
}

// The tile is as large as the registers allow: 32 of them with AVX-512, 16 without.
template <Reach kReach, int kRows, int kVectors>
void panel(Left a, const float* b, int ldb, float* c, int ldc, int m, int first_column, int k, bool accumulate) {
  for (int i = 0; i < m; i += kRows) {
    const int begin = kReach == kFromRow ? i : 0;
    const int end = kReach == kUpToRow && i + kRows < k ? i + kRows : k;
    if (kReach == kUpToColumn && first_column >= i + kRows) continue;
    tile<kRows, kVectors>({a.data + int64_t(i) * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc, begin, end, accumulate);
  }
}

// m and n are multiples of 16
template <Reach kReach>
void multiply(Left a, const float* b, int ldb, float* c, int ldc, int m, int n, int k, bool accumulate) {
  int j = 0;
  if constexpr (kLanes == 16) {
    if constexpr (kReach != kUpToColumn) {
      for (; j + 64 <= n; j += 64) panel<kReach, 4, 4>(a, b + j, ldb, c + j, ldc, m, j, k, accumulate);
      for (; j + 32 <= n; j += 32) panel<kReach, 8, 2>(a, b + j, ldb, c + j, ldc, m, j, k, accumulate);
    }
    for (; j < n; j += 16) panel<kReach, 16, 1>(a, b + j, ldb, c + j, ldc, m, j, k, accumulate);
  } else {
    for (; j < n; j += 2 * kLanes) panel<kReach, 4, 2>(a, b + j, ldb, c + j, ldc, m, j, k, accumulate);
  }
}

// the strict upper triangle of the scores [C, C] becomes zero
void lower_triangle(float* p) {
  for (int t = 0; t < kChunk; ++t)
    for (int s = t + 1; s < kChunk; ++s) p[t * kChunk + s] = 0;
}

PF_INLINE Vec dot_lanes(const float* a, const float* b, int n) {
  Vec s{};
  for (int i = 0; i < n; i += kLanes) s += load(a + i) * load(b + i);
  return s;
}

PF_INLINE void add_scaled(float* y, float a, const float* x, int n) {
  for (int i = 0; i < n; i += kLanes) store(y + i, load(y + i) + a * load(x + i));
}

// ---------------------------------------------------------------- workspace

// One block a thread, 64-byte aligned, used again for every (batch, head): fresh pages cost a tenth.
struct Memory {
  explicit Memory(size_t floats) {
    if (floats == 0 || floats > SIZE_MAX / sizeof(float) - 16) return;
    block = std::malloc((floats + 16) * sizeof(float));
    ask_for_huge_pages(block, floats * sizeof(float));
    if (block) start = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(block) + 63) / 64 * 64);
  }
  Memory(const Memory&) = delete;
  ~Memory() { std::free(block); }
  void* block = nullptr;
  float* start = nullptr;
};

struct Cutter {  // cuts a block into arrays; with no block at all it only counts
  float* start;
  size_t used = 0;
  float* take(size_t floats) { used += floats; return start ? start + used - floats : nullptr; }
};

void load_state(const float* s0, const float* z0, int kw, int vw, int kp, int vp, float* s, float* z) {
  std::memset(s, 0, sizeof(float) * kp * vp);
  std::memset(z, 0, sizeof(float) * kp);
  if (s0) for (int d = 0; d < kw; ++d) std::memcpy(s + d * vp, s0 + d * vw, sizeof(float) * vw);
  if (z0) std::memcpy(z, z0, sizeof(float) * kw);
}

void save_state(const float* s, const float* z, int kw, int vw, int vp, float* s1, float* z1) {
  for (int d = 0; d < kw; ++d) std::memcpy(s1 + d * vw, s + d * vp, sizeof(float) * vw);
  std::memcpy(z1, z, sizeof(float) * kw);
}

template <class Type>
Type* row(const Tensor& x, int64_t b, int64_t h, int64_t t) {
  return static_cast<Type*>(x.data) + b * x.batch + h * x.head + t * x.time;
}

template <class Type>
void zero_rows(const Tensor& x, int64_t b, int64_t h, int64_t from, int64_t to, int width) {
  for (int64_t t = from; t < to; ++t) std::memset(row<Type>(x, b, h, t), 0, sizeof(Type) * width);
}

// rows of the chunk at t0, with the chunk at `next` (none if negative) and the rows to be written
template <class Type>
Rows<Type> rows_of(const Tensor& x, int64_t b, int64_t h, int64_t t0, int count, int width, int64_t next,
                   const Tensor* result = nullptr) {
  return {row<Type>(x, b, h, t0), x.time, count, width, next < 0 ? nullptr : row<Type>(x, b, h, next),
          result ? row<Type>(*result, b, h, t0) : nullptr, result ? result->time : 0};
}

int64_t valid_steps(const Problem& p, int64_t b) {
  const int64_t length = p.lengths ? p.lengths[b] : p.steps;
  return length < 0 ? 0 : length > p.steps ? p.steps : length;
}

// ---------------------------------------------------------------- forward

struct Forward {
  Problem p;
  Tensor q, k, v, out;
  const float *s0, *z0;
  float *s1, *z1;
  size_t floats() const;
};

struct ForwardArrays {
  ForwardArrays(Cutter& cut, int kp, int vp)
      : s(cut.take(kp * vp)), z(cut.take(kp)), q(cut.take(kChunk * kp)), k(cut.take(kChunk * kp)),
        kt(cut.take(kChunk * kp)), v(cut.take(kChunk * vp)), o(cut.take(kChunk * vp)),
        scores(cut.take(kChunk * kChunk)), reciprocal(cut.take(kChunk)) {}
  float *s, *z, *q, *k, *kt, *v, *o, *scores, *reciprocal;
};

size_t Forward::floats() const {
  Cutter count{nullptr};
  ForwardArrays(count, padded(p.key_width), padded(p.value_width));
  return count.used;
}

// reciprocal normalisers of a chunk: 1 / (Q_t . z + sum(P_t) + eps)
void normalisers(const float* q, const float* z, const float* scores, int kp, float eps, float* reciprocal) {
  for (int t = 0; t < kChunk; ++t) {
    Vec s = dot_lanes(q + t * kp, z, kp);
    for (int i = 0; i < kChunk; i += kLanes) s += load(scores + t * kChunk + i);
    reciprocal[t] = 1.0f / (sum(s) + eps);
  }
}

// S += K^T V and z += sum K over a chunk
void advance_state(const float* k, const float* v, int kp, int vp, float* s, float* z) {
  multiply<kAll>({k, 1, kp}, v, vp, s, vp, kp, vp, kChunk, true);
  for (int t = 0; t < kChunk; ++t) add_scaled(z, 1.0f, k + t * kp, kp);
}

template <class Type>
void forward_one(const Forward& f, int64_t b, int64_t h, float* memory) {
  const int kw = f.p.key_width, vw = f.p.value_width, kp = padded(kw), vp = padded(vw);
  const int64_t length = valid_steps(f.p, b), state = b * f.p.heads + h;
  Cutter cut{memory};
  const ForwardArrays arrays(cut, kp, vp);
  const auto [s, z, q, k, kt, v, o, scores, reciprocal] = arrays;
  load_state(f.s0 ? f.s0 + state * kw * vw : nullptr, f.z0 ? f.z0 + state * kw : nullptr, kw, vw, kp, vp, s, z);
  for (int64_t t0 = 0; t0 < length; t0 += kChunk) {
    const int rows = length - t0 < kChunk ? int(length - t0) : kChunk;
    const int64_t next = t0 + kChunk < length ? t0 + kChunk : -1;
    pack(f.p.feature_map, rows_of<Type>(f.q, b, h, t0, rows, kw, next), q);
    pack(f.p.feature_map, rows_of<Type>(f.k, b, h, t0, rows, kw, next), k);
    pack(kIdentity, rows_of<Type>(f.v, b, h, t0, rows, vw, next, &f.out), v);
    transpose(k, kp, kt, kChunk, kChunk, kp);
    multiply<kUpToColumn>({q, kp, 1}, kt, kChunk, scores, kChunk, kChunk, kChunk, kp, false);
    lower_triangle(scores);
    normalisers(q, z, scores, kp, f.p.eps, reciprocal);
    multiply<kAll>({q, kp, 1}, s, vp, o, vp, kChunk, vp, kp, false);
    multiply<kUpToRow>({scores, kChunk, 1}, v, vp, o, vp, kChunk, vp, kChunk, true);
    for (int t = 0; t < rows; ++t)
      for (int i = 0; i < vw; i += kLanes)
        store_as(row<Type>(f.out, b, h, t0 + t) + i, reciprocal[t] * load(o + t * vp + i), vw - i);
    advance_state(k, v, kp, vp, s, z);
  }
  zero_rows<Type>(f.out, b, h, length, f.p.steps, vw);
  save_state(s, z, kw, vw, vp, f.s1 + state * kw * vw, f.z1 + state * kw);
}

// ---------------------------------------------------------------- backward

struct Backward {
  Problem p;
  Tensor q, k, v, grad_out, grad_q, grad_k, grad_v;
  const float *s0, *z0, *grad_s1, *grad_z1;
  float *grad_s0, *grad_z0;
  size_t floats() const;
};

int64_t chunks_of(int64_t steps) { return (steps + kChunk - 1) / kChunk; }

struct BackwardArrays {
  BackwardArrays(Cutter& cut, int kp, int vp, int64_t chunks)
      : states(cut.take((chunks + 1) * kp * vp)), zs(cut.take((chunks + 1) * kp)),
        big_r(cut.take(kp * vp)), big_rt(cut.take(kp * vp)), small_r(cut.take(kp)),
        q(cut.take(kChunk * kp)), k(cut.take(kChunk * kp)), kt(cut.take(kChunk * kp)),
        v(cut.take(kChunk * vp)), vt(cut.take(kChunk * vp)), g(cut.take(kChunk * vp)),
        dq(cut.take(kChunk * kp)), dk(cut.take(kChunk * kp)), dv(cut.take(kChunk * vp)),
        scores(cut.take(kChunk * kChunk)), dscores(cut.take(kChunk * kChunk)),
        reciprocal(cut.take(kChunk)), e(cut.take(kChunk)) {}
  float *states, *zs, *big_r, *big_rt, *small_r, *q, *k, *kt, *v, *vt, *g, *dq, *dk, *dv, *scores, *dscores,
      *reciprocal, *e;
};

size_t Backward::floats() const {
  Cutter count{nullptr};
  BackwardArrays(count, padded(p.key_width), padded(p.value_width), chunks_of(p.steps));
  return count.used;
}

// With g_t = grad_out_t / den_t, the gradient of the normaliser is e_t = -(g_t . num_t) / den_t, where
// g_t . num_t = Q_t . (S g_t) + sum_s P_ts (g_t . v_s) needs neither the output nor another product:
//   dP = tril(g V^T + e 1^T)         dQ = g S^T + dP K + e z
//   dK = V R^T + dP^T Q + r          dV = K R + P^T g
// with R, r the gradients of the state after the chunk; then R += Q^T g, r += Q^T e.
template <class Type>
void backward_one(const Backward& f, int64_t b, int64_t h, float* memory) {
  const int kw = f.p.key_width, vw = f.p.value_width, kp = padded(kw), vp = padded(vw), area = kp * vp;
  const int map = f.p.feature_map;
  const int64_t length = valid_steps(f.p, b), state = b * f.p.heads + h, chunks = chunks_of(length);
  Cutter cut{memory};
  const BackwardArrays arrays(cut, kp, vp, chunks_of(f.p.steps));
  const auto [states, zs, big_r, big_rt, small_r, q, k, kt, v, vt, g, dq, dk, dv, scores, dscores, reciprocal, e] =
      arrays;

  // states before each chunk, transposed to [V, K]: the layout in which dQ = g S^T reads them
  load_state(f.s0 ? f.s0 + state * kw * vw : nullptr, f.z0 ? f.z0 + state * kw : nullptr, kw, vw, kp, vp, big_r, zs);
  transpose(big_r, vp, states, kp, kp, vp);
  for (int64_t n = 0; n + 1 < chunks; ++n) {
    pack(map, rows_of<Type>(f.k, b, h, n * kChunk, kChunk, kw, (n + 1) * kChunk), k);
    pack(kIdentity, rows_of<Type>(f.v, b, h, n * kChunk, kChunk, vw, (n + 1) * kChunk), v);
    std::memcpy(states + (n + 1) * area, states + n * area, sizeof(float) * area);
    std::memcpy(zs + (n + 1) * kp, zs + n * kp, sizeof(float) * kp);
    multiply<kAll>({v, 1, vp}, k, kp, states + (n + 1) * area, kp, vp, kp, kChunk, true);
    for (int t = 0; t < kChunk; ++t) add_scaled(zs + (n + 1) * kp, 1.0f, k + t * kp, kp);
  }

  load_state(f.grad_s1 ? f.grad_s1 + state * kw * vw : nullptr, f.grad_z1 ? f.grad_z1 + state * kw : nullptr,
             kw, vw, kp, vp, big_r, small_r);
  for (int64_t n = chunks - 1; n >= 0; --n) {
    const int64_t t0 = n * kChunk;
    const int rows = length - t0 < kChunk ? int(length - t0) : kChunk;
    const float *st = states + n * area, *z = zs + n * kp;
    const int64_t next = t0 - kChunk;
    pack(map, rows_of<Type>(f.q, b, h, t0, rows, kw, next, &f.grad_q), q);
    pack(map, rows_of<Type>(f.k, b, h, t0, rows, kw, next, &f.grad_k), k);
    pack(kIdentity, rows_of<Type>(f.v, b, h, t0, rows, vw, next, &f.grad_v), v);
    pack(kIdentity, rows_of<Type>(f.grad_out, b, h, t0, rows, vw, next), g);
    transpose(k, kp, kt, kChunk, kChunk, kp);
    transpose(v, vp, vt, kChunk, kChunk, vp);
    transpose(big_r, vp, big_rt, kp, kp, vp);
    multiply<kUpToColumn>({q, kp, 1}, kt, kChunk, scores, kChunk, kChunk, kChunk, kp, false);
    lower_triangle(scores);
    normalisers(q, z, scores, kp, f.p.eps, reciprocal);
    for (int t = 0; t < rows; ++t)
      for (int i = 0; i < vp; i += kLanes) store(g + t * vp + i, reciprocal[t] * load(g + t * vp + i));
    multiply<kUpToColumn>({g, vp, 1}, vt, kChunk, dscores, kChunk, kChunk, kChunk, vp, false);
    lower_triangle(dscores);

    multiply<kAll>({g, vp, 1}, st, kp, dq, kp, kChunk, kp, vp, false);
    for (int t = 0; t < kChunk; ++t) {
      const Vec parts = dot_lanes(q + t * kp, dq + t * kp, kp) + dot_lanes(scores + t * kChunk, dscores + t * kChunk, kChunk);
      e[t] = t < rows ? -sum(parts) * reciprocal[t] : 0.0f;
      for (int s = 0; s <= t; ++s) dscores[t * kChunk + s] += e[t];
      add_scaled(dq + t * kp, e[t], z, kp);
    }
    multiply<kUpToRow>({dscores, kChunk, 1}, k, kp, dq, kp, kChunk, kp, kChunk, true);
    for (int t = 0; t < rows; ++t)
      for (int i = 0; i < kw; i += kLanes)
        store_as(row<Type>(f.grad_q, b, h, t0 + t) + i, load(dq + t * kp + i) * map_slope(map, load(q + t * kp + i)), kw - i);

    multiply<kAll>({v, vp, 1}, big_rt, kp, dk, kp, kChunk, kp, vp, false);
    multiply<kFromRow>({dscores, 1, kChunk}, q, kp, dk, kp, kChunk, kp, kChunk, true);
    for (int t = 0; t < rows; ++t)
      for (int i = 0; i < kw; i += kLanes)
        store_as(row<Type>(f.grad_k, b, h, t0 + t) + i,
                 (load(dk + t * kp + i) + load(small_r + i)) * map_slope(map, load(k + t * kp + i)), kw - i);

    multiply<kAll>({k, kp, 1}, big_r, vp, dv, vp, kChunk, vp, kp, false);
    multiply<kFromRow>({scores, 1, kChunk}, g, vp, dv, vp, kChunk, vp, kChunk, true);
    for (int t = 0; t < rows; ++t)
      for (int i = 0; i < vw; i += kLanes)
        store_as(row<Type>(f.grad_v, b, h, t0 + t) + i, load(dv + t * vp + i), vw - i);

    multiply<kAll>({q, 1, kp}, g, vp, big_r, vp, kp, vp, kChunk, true);
    for (int t = 0; t < rows; ++t) add_scaled(small_r, e[t], q + t * kp, kp);
  }
  zero_rows<Type>(f.grad_q, b, h, length, f.p.steps, kw);
  zero_rows<Type>(f.grad_k, b, h, length, f.p.steps, kw);
  zero_rows<Type>(f.grad_v, b, h, length, f.p.steps, vw);
  save_state(big_r, small_r, kw, vw, vp, f.grad_s0 + state * kw * vw, f.grad_z0 + state * kw);
}

// ---------------------------------------------------------------- recurrent step

struct Step {
  Problem p;
  Tensor q, k, v, out;
  float *s, *z;
  size_t floats() const { return 0; }
};

// S += phi(k) v^T, z += phi(k), out = phi(q) S / (phi(q) . z + eps) in one pass over the state
template <class Type>
void step_one(const Step& f, int64_t b, int64_t h, float*) {
  const int kw = f.p.key_width, vw = f.p.value_width, kp = padded(kw), vp = padded(vw);
  alignas(64) float q[kMaxWidth], k[kMaxWidth], v[kMaxWidth], o[kMaxWidth];
  float* s = f.s + (b * f.p.heads + h) * kw * vw;
  float* z = f.z + (b * f.p.heads + h) * kw;
  float denominator = f.p.eps;
  for (int i = 0; i < kp; i += kLanes) {
    const int count = kw - i;
    const Vec qi = count > 0 ? keep(apply_map(f.p.feature_map, load_as(row<Type>(f.q, b, h, 0) + i, count)), count) : Vec{};
    const Vec ki = count > 0 ? keep(apply_map(f.p.feature_map, load_as(row<Type>(f.k, b, h, 0) + i, count)), count) : Vec{};
    store(q + i, qi);
    store(k + i, ki);
    if (count > 0) {
      const Vec zi = load_as(z + i, count) + ki;
      store_as(z + i, zi, count);
      denominator += sum(qi * zi);
    }
  }
  for (int i = 0; i < vp; i += kLanes) {
    const int count = vw - i;
    store(v + i, count > 0 ? load_as(row<Type>(f.v, b, h, 0) + i, count) : Vec{});
  }
  const float reciprocal = 1.0f / denominator;
  int i = 0;
  for (; i + 2 * kLanes <= vw; i += 2 * kLanes) {  // two vectors at a time hide the adder's latency
    Vec sum0{}, sum1{};
    const Vec v0 = load(v + i), v1 = load(v + i + kLanes);
    float* line = s + i;
    for (int d = 0; d < kw; ++d, line += vw) {
      const Vec s0 = load(line) + k[d] * v0, s1 = load(line + kLanes) + k[d] * v1;
      store(line, s0);
      store(line + kLanes, s1);
      sum0 += q[d] * s0;
      sum1 += q[d] * s1;
    }
    store(o + i, sum0 * reciprocal);
    store(o + i + kLanes, sum1 * reciprocal);
  }
  for (; i < vw; i += kLanes) {
    Vec total{};
    for (int d = 0; d < kw; ++d) {
      const Vec line = load_as(s + d * vw + i, vw - i) + k[d] * load(v + i);
      store_as(s + d * vw + i, line, vw - i);
      total += q[d] * line;
    }
    store(o + i, total * reciprocal);
  }
  for (int j = 0; j < vw; j += kLanes) store_as(row<Type>(f.out, b, h, 0) + j, load(o + j), vw - j);
}

// ---------------------------------------------------------------- threads over batch x heads

template <class Work>
struct Shared {
  const Work* work;
  void (*one)(const Work&, int64_t, int64_t, float*);
  std::atomic<int64_t> next{0};
  std::atomic<bool> ok{true};

  void run() {
    const int64_t heads = work->p.heads, count = work->p.batch * heads;
    const size_t floats = work->floats();
    const Memory memory(floats);
    if (floats && !memory.start) { ok = false; return; }
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;)
      one(*work, i / heads, i % heads, memory.start);
  }
  static void entry(void* self) { static_cast<Shared*>(self)->run(); }
};

template <class Work>
int for_each(const Work& work, void (*one)(const Work&, int64_t, int64_t, float*), int64_t least_work) {
  const int64_t count = work.p.batch * work.p.heads;
  const int64_t area = int64_t(work.p.key_width) * work.p.value_width * (work.p.steps < 1 ? 1 : work.p.steps);
  int64_t threads = work.p.threads < count ? work.p.threads : count;
  if (count * area < least_work * threads) threads = count * area / least_work;
  Shared<Work> shared{&work, one};
  if (threads > 1 && work.p.parallel) {
    work.p.parallel(Shared<Work>::entry, &shared, unsigned(threads), 0);
  } else {
    std::vector<std::thread> others;
    try {
      for (int64_t i = 1; i < threads; ++i) others.emplace_back(Shared<Work>::entry, &shared);
    } catch (const std::system_error&) {  // no more threads to be had: the ones at hand do the work
    }
    shared.run();
    for (auto& thread : others) thread.join();
  }
  return shared.ok ? 0 : 1;
}

// results are contiguous: the caller makes them
size_t result_bytes(const Problem& p, int width) {
  return size_t(p.batch) * p.steps * p.heads * width * (p.type == 0 ? sizeof(float) : sizeof(uint16_t));
}

constexpr int64_t kLeastWork = 1 << 18;  // multiply-adds that are worth another thread

}  // namespace

#define PF_BY_TYPE(function, work)                                                  \
  ((work).p.type == 0   ? for_each(work, function<float>, kLeastWork)               \
   : (work).p.type == 1 ? for_each(work, function<BFloat16>, kLeastWork)            \
                        : for_each(work, function<Float16>, kLeastWork))

PF_API const char* pf_source_key() { return PF_SOURCE_KEY; }
PF_API int pf_lanes() { return kLanes; }

// All return 0, or 1 if there was no memory.
PF_API int pf_forward(const Forward* work) {
  ask_for_huge_pages(work->out.data, result_bytes(work->p, work->p.value_width));
  return PF_BY_TYPE(forward_one, *work);
}
PF_API int pf_backward(const Backward* work) {
  ask_for_huge_pages(work->grad_q.data, result_bytes(work->p, work->p.key_width));
  ask_for_huge_pages(work->grad_k.data, result_bytes(work->p, work->p.key_width));
  ask_for_huge_pages(work->grad_v.data, result_bytes(work->p, work->p.value_width));
  return PF_BY_TYPE(backward_one, *work);
}
PF_API int pf_step(const Step* work) { return PF_BY_TYPE(step_one, *work); }
