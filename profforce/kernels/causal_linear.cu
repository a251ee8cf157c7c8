// Causal linear attention on CUDA: forward, backward and the recurrent step.
//
//   out_t = phi(q_t) S_t / (phi(q_t) . z_t + eps),   S_t = sum_{s<=t} phi(k_s) v_s^T,   z_t = sum_{s<=t} phi(k_s)
//
// Header-free CUDA C++, compiled by NVRTC; the tests compile the same text for the CPU (CUEMU).
// A block walks one segment of one (batch, head) in chunks of PF_CHUNK steps. It keeps the state
// (S, or R = sum Q^T g on the way back) in registers, as accumulator tiles of its warps, and puts
// PF_STAGE rows of it at a time into shared memory where a product needs it as an operand. All
// operands lie in shared memory as float32. On tensor cores (PF_TENSOR) float32 is multiplied as
// three TF32 products, and both half types as three bfloat16 products of high and low parts:
// float16 products would overflow where the state exceeds 65504, and two bfloat16 parts hold every
// float16 exactly. Sums are float32. There are no atomics: every result is reproducible.
//
// Macros: PF_TYPE 0 float32, 1 bfloat16, 2 float16; PF_WIDTH padded width of keys and values;
// PF_CHUNK; PF_STAGE; PF_THREADS; PF_BLOCKS a multiprocessor shall hold at least; PF_TENSOR 0 or 1;
// PF_EPS; PF_SHARED bytes the host reserves; PF_KERNEL, the one kernel to compile (all, if absent).
//
// Legend: C chunk, D padded width, K and V real widths, BH = batch * heads + head.

#define PF_FORWARD 1
#define PF_GRAD_Q 2
#define PF_GRAD_KV 3
#define PF_STATES 4
#define PF_GRAD_STATES 5
#define PF_PREFIX 6
#define PF_STEP 7
#define PF_WANTED(kernel) (!defined(PF_KERNEL) || PF_KERNEL == kernel)

constexpr int D = PF_WIDTH;
constexpr int C = PF_CHUNK;
constexpr int STAGE = PF_STAGE;
constexpr int THREADS = PF_THREADS;
constexpr int WARPS = THREADS / 32;
constexpr int SLICES = D / STAGE;
constexpr int LD = (D + 31) / 32 * 32;  // row length of a width tile: the swizzle permutes 32 columns
constexpr int LC = (C + 31) / 32 * 32;  // row length of a score tile
constexpr unsigned ALL = 0xffffffffu;
static_assert(D % 16 == 0 && D <= THREADS && D <= 128, "unsupported width");
static_assert(C % 16 == 0 && C / 16 <= WARPS && D / 16 <= WARPS, "too few warps for the tiles");
static_assert(STAGE % 16 == 0 && D % STAGE == 0, "stage must divide the width");

// ---------------------------------------------------------------- element types and instructions

#if PF_TYPE == 0
typedef float element;
struct alignas(16) Packed { element x[4]; };
struct alignas(8) Pair { element x[2]; };
#else
typedef unsigned short element;
struct alignas(8) Packed { element x[4]; };
struct alignas(4) Pair { element x[2]; };
#endif
struct alignas(16) Four { float x[4]; };
struct alignas(8) Two { float x[2]; };

// bfloat16 values, such as v and the gradient of the output, have no low part of their own.
constexpr bool RAW_LOW = PF_TYPE != 1;

#ifndef CUEMU  // the emulation brings its own
__device__ __forceinline__ float pf_half_to_float(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ __forceinline__ unsigned short pf_float_to_half(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#if PF_TENSOR
// Two floats rounded to bfloat16, the first in the low half.
__device__ __forceinline__ unsigned pf_pack_bf16(float low, float high) {
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
__device__ __forceinline__ unsigned pf_tf32(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ void pf_mma_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void pf_mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
#endif

__device__ __forceinline__ float to_float(element x) {
#if PF_TYPE == 0
  return x;
#elif PF_TYPE == 1
  return __uint_as_float((unsigned)x << 16);
#else
  return pf_half_to_float(x);
#endif
}

__device__ __forceinline__ element from_float(float x) {
#if PF_TYPE == 0
  return x;
#elif PF_TYPE == 1  // round to nearest even; by hand, for cvt needs sm_80
  const unsigned u = __float_as_uint(x);
  return x != x ? (element)0x7fff : (element)((u + 0x7fff + (u >> 16 & 1)) >> 16);
#else
  return pf_float_to_half(x);
#endif
}

// ---------------------------------------------------------------- feature maps

enum { ELU = 0, RELU = 1, IDENTITY = 2 };

__device__ __forceinline__ float feature(float x, int map) {
  if (map == ELU) return x > 0.f ? x + 1.f : expf(x);
  return map == RELU && x < 0.f ? 0.f : x;
}

// Derivative of the feature map from its value: exp(x) is its own, x + 1 exceeds 1.
__device__ __forceinline__ float feature_slope(float phi, int map) {
  if (map == ELU) return fminf(phi, 1.f);
  return map == RELU && !(phi > 0.f) ? 0.f : 1.f;
}

// ---------------------------------------------------------------- tiles in shared memory

// Where (row, col) lies. The swizzle spreads both ways of reading a fragment, four neighbours of
// one row or one column of four neighbouring rows, over all 32 banks; it keeps fours together.
template <int STRIDE>
__device__ __forceinline__ int at(int row, int col) {
  return row * STRIDE + (col ^ ((row & 1) << 4) ^ ((row & 12) << 1));
}

// An operand [outer, inner], inner being summed over, that lies with inner along the rows.
template <int STRIDE>
struct Rows {
  const float* p;
  int outer0, inner0;
  __device__ __forceinline__ float one(int outer, int inner) const {
    return p[at<STRIDE>(outer0 + outer, inner0 + inner)];
  }
  __device__ __forceinline__ Four four(int outer, int inner) const {
    return *(const Four*)&p[at<STRIDE>(outer0 + outer, inner0 + inner)];
  }
};

// The same, lying with inner along the columns.
template <int STRIDE>
struct Columns {
  const float* p;
  int outer0, inner0;
  __device__ __forceinline__ float one(int outer, int inner) const {
    return p[at<STRIDE>(inner0 + inner, outer0 + outer)];
  }
  __device__ __forceinline__ Four four(int outer, int inner) const {
    Four y;
#pragma unroll
    for (int i = 0; i < 4; ++i) y.x[i] = one(outer, inner + i);
    return y;
  }
};

typedef Rows<LD> WidthRows;
typedef Columns<LD> WidthColumns;
typedef Rows<LC> ScoreRows;
typedef Columns<LC> ScoreColumns;

// How the warps share a [ROWS, COLS] result: each has one 16 x (8 * TILES) part or none.
template <int ROWS, int COLS>
struct Share {
  static constexpr int WANTED = WARPS / (ROWS / 16);
  static constexpr int TILES = (COLS / 8 + WANTED - 1) / WANTED;
  static constexpr int PARTS = COLS / 8 / TILES;  // parts across the columns, which hold something
  static_assert(COLS / 8 % TILES == 0, "a part would be torn");
  int part, row, col;
  bool active;
  __device__ __forceinline__ explicit Share(int warp)
      : part(warp % WANTED), row(warp / WANTED * 16), col(part * TILES * 8), active(row < ROWS && col < COLS) {}
};
typedef Share<C, C> ScoreShare;
typedef Share<C, D> ValueShare;
typedef Share<C, STAGE> SliceShare;
typedef Share<D, D> StateShare;

// Lane `lane` holds rows group, group + 8 and columns 2 * quad, 2 * quad + 1 of each 16 x 8 tile.
__device__ __forceinline__ int tile_row(int lane, int i) { return (lane >> 2) + 8 * (i >> 1); }
__device__ __forceinline__ int tile_col(int lane, int tile, int i) { return tile * 8 + 2 * (lane & 3) + (i & 1); }

// ---------------------------------------------------------------- products

#if PF_TENSOR
#if PF_TYPE == 0
constexpr int REGS = 4;  // registers of four elements
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  pf_mma_tf32(d, a, b);
}
#else
constexpr int REGS = 2;
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  pf_mma_bf16(d, a, b);
}
#endif

// Four float32 as tensor-core operands: x = high + low, up to 2^-22 (TF32) or 2^-16 (bfloat16).
struct Split {
  unsigned high[REGS], low[REGS];
};

__device__ __forceinline__ Split split(const Four v) {
  Split s;
#pragma unroll
  for (int i = 0; i < REGS; ++i) {
#if PF_TYPE == 0
    s.high[i] = pf_tf32(v.x[i]);
    s.low[i] = pf_tf32(v.x[i] - __uint_as_float(s.high[i]));
#else
    const float x = v.x[2 * i], y = v.x[2 * i + 1];
    s.high[i] = pf_pack_bf16(x, y);
    s.low[i] = pf_pack_bf16(x - __uint_as_float(s.high[i] << 16), y - __uint_as_float(s.high[i] & 0xffff0000u));
#endif
  }
  return s;
}

__device__ __forceinline__ void mma_part(float (&d)[4], const unsigned* top, const unsigned* bottom, const unsigned* b) {
#pragma unroll
  for (int i = 0; i < REGS; i += 2) {
    const unsigned left[4] = {top[i], bottom[i], top[i + 1], bottom[i + 1]}, right[2] = {b[i], b[i + 1]};
    mma(d, left, right);
  }
}
#endif

// acc [16, 8 * TILES] += a [16, inner] b [8 * TILES, inner]^T over inner in [begin, end), by one warp.
// The order within a sum is free, so lane `quad` takes the neighbours 4 * quad ... + 3 of each
// sixteen instead of those that the instruction's layout names: one wide load for each operand row.
template <bool A_LOW, bool B_LOW, int TILES, class A, class B>
__device__ __forceinline__ void multiply(float (&acc)[TILES][4], const A a, const B b, int begin, int end) {
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
#if PF_TENSOR
#pragma unroll 2  // more would cost the registers of a second block
  for (int k = begin; k < end; k += 16) {
    const Split top = split(a.four(group, k + 4 * quad)), bottom = split(a.four(group + 8, k + 4 * quad));
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const Split right = split(b.four(8 * j + group, k + 4 * quad));
      if (A_LOW) mma_part(acc[j], top.low, bottom.low, right.high);
      if (B_LOW) mma_part(acc[j], top.high, bottom.high, right.low);
      mma_part(acc[j], top.high, bottom.high, right.high);
    }
  }
#else
  for (int k = begin; k < end; ++k) {
    const float top = a.one(group, k), bottom = a.one(group + 8, k);
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const float left = b.one(8 * j + 2 * quad, k), right = b.one(8 * j + 2 * quad + 1, k);
      acc[j][0] += top * left;
      acc[j][1] += top * right;
      acc[j][2] += bottom * left;
      acc[j][3] += bottom * right;
    }
  }
#endif
}

// ---------------------------------------------------------------- the problem and its shared memory

// What every kernel over a sequence is given; strides are in elements and the innermost is 1.
#define PF_PROBLEM                                                                                              \
  const long long *lengths, long long steps, long long heads, long long key_width, long long value_width,       \
      long long segment, long long map, long long packed
#define PF_PROBLEM_VALUES lengths, steps, heads, key_width, value_width, segment, map, packed
#define PF_TENSOR_ARGUMENT(x) const element *x, long long x##_b, long long x##_t, long long x##_h

struct Problem {
  long long bh, b, h, steps, heads, begin, stop, end;  // the segment, and where it ends alive
  int key_width, value_width, map;
  bool packed;  // every row starts aligned to four elements and is a multiple of four long
  __device__ __forceinline__ Problem(const long long* lengths, long long steps_, long long heads_, long long key,
                                     long long value, long long segment, long long map_, long long packed_)
      : bh(blockIdx.x), b(bh / heads_), h(bh % heads_), steps(steps_), heads(heads_), key_width((int)key),
        value_width((int)value), map((int)map_), packed(packed_ != 0) {
    begin = blockIdx.y * segment;
    stop = begin + segment < steps ? begin + segment : steps;
    end = lengths && lengths[b] < stop ? lengths[b] : stop;
    if (end < begin) end = begin;
  }
  __device__ __forceinline__ const element* start(const element* p, long long sb, long long sh) const {
    return p + b * sb + h * sh;
  }
  // Row `t` of this head in a contiguous [B, T, H, width].
  __device__ __forceinline__ long long row(long long t, int width) const {
    return ((b * steps + t) * heads + h) * width;
  }
  __device__ __forceinline__ int live(long long t0) const { return end - t0 < C ? (int)(end - t0) : C; }
};

// Shared memory, in floats from its start; the host adds up the same figures.
constexpr int TILE = C * LD;
constexpr int Z_GROUPS = THREADS / D;
constexpr int SMALL = Z_GROUPS * D + D + C * (2 + 2 * ScoreShare::WANTED + SliceShare::WANTED);
constexpr int BESIDE_TILES = STAGE * LD + C * LC + SMALL;

struct Shared {
  float *q, *k, *v, *g, *stage, *scores;
  float *z_parts, *z;        // the key sums before this chunk: [Z_GROUPS, D] to be added up, [D]
  float *qz, *dd;            // [C]
  float *sums, *dots, *qx;   // row sums by column part: [parts, C]
  __device__ __forceinline__ Shared(float* p, int tiles)
      : q(p), k(p + TILE), v(p + 2 * TILE), g(p + 3 * TILE), stage(p + tiles * TILE), scores(stage + STAGE * LD),
        z_parts(scores + C * LC), z(z_parts + Z_GROUPS * D), qz(z + D), dd(qz + C), sums(dd + C),
        dots(sums + C * ScoreShare::WANTED), qx(dots + C * ScoreShare::WANTED) {}
};

// ---------------------------------------------------------------- moving data

// Four elements from `p`, of which `width` exist.
__device__ __forceinline__ Four read_four(const element* p, int width, bool packed) {
  Four y = {{0.f, 0.f, 0.f, 0.f}};
  if (packed && width > 0) {
    const Packed raw = *(const Packed*)p;
#pragma unroll
    for (int i = 0; i < 4; ++i) y.x[i] = to_float(raw.x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < width) y.x[i] = to_float(p[i]);
  }
  return y;
}

// Rows [0, live) of `src` into a tile, `change(row, x)` applied; all else, padded columns too, is 0.
template <class Change>
__device__ __forceinline__ void load_tile(float* tile, const element* src, long long stride, int live, int width,
                                          bool packed, Change change) {
  for (int i = threadIdx.x; i < C * (D / 4); i += THREADS) {
    const int row = i / (D / 4), col = i % (D / 4) * 4;
    Four y = {{0.f, 0.f, 0.f, 0.f}};
    if (row < live) {
      y = read_four(src + row * stride + col, width - col, packed);
#pragma unroll
      for (int j = 0; j < 4; ++j) y.x[j] = col + j < width ? change(row, y.x[j]) : 0.f;
    }
    *(Four*)&tile[at<LD>(row, col)] = y;
  }
}

__device__ __forceinline__ void load_mapped(float* tile, const element* src, long long stride, int live,
                                            const Problem& in) {
  const int map = in.map;
  load_tile(tile, src, stride, live, in.key_width, in.packed, [=](int, float x) { return feature(x, map); });
}

__device__ __forceinline__ void load_values(float* tile, const element* src, long long stride, int live,
                                            const Problem& in) {
  load_tile(tile, src, stride, live, in.value_width, in.packed, [](int, float x) { return x; });
}

// Two neighbours of a row of `width` elements that starts at `row`.
__device__ __forceinline__ void store_two(element* row, int col, int width, bool packed, float x, float y) {
  if (packed && col < width) {
    const Pair pair = {{from_float(x), from_float(y)}};
    *(Pair*)(row + col) = pair;
  } else {
    if (col < width) row[col] = from_float(x);
    if (col + 1 < width) row[col + 1] = from_float(y);
  }
}

// Rows of a contiguous [B, T, H, width] from the segment's live end to its stop: exactly zero.
__device__ __forceinline__ void zero_padding(element* out, const Problem& in, int width) {
  for (long long i = threadIdx.x; i < (in.stop - in.end) * width; i += THREADS)
    out[in.row(in.end + i / width, width) + i % width] = from_float(0.f);
}

// ---------------------------------------------------------------- the state in registers

// The running S [D, D] as accumulators, and z [D] as one partial sum a thread.
struct State {
  float s[StateShare::TILES][4];
  float z;
  StateShare share;
  int lane, z_col, z_group;

  __device__ __forceinline__ State() : share(threadIdx.x >> 5), lane(threadIdx.x & 31), z_col(threadIdx.x % D), z_group(threadIdx.x / D) {}

  // From `s0` [K, V] and `z0` [K]; zero where absent.
  __device__ __forceinline__ void read(const float* s0, const float* z0, int key_width, int value_width) {
    for_each([&](float& x, int row, int col) {
      x = s0 && row < key_width && col < value_width ? s0[(long long)row * value_width + col] : 0.f;
    });
    z = z0 && z_group == 0 && z_col < key_width ? z0[z_col] : 0.f;
  }

  // To `s1` and `z1`. Uses `parts` [Z_GROUPS, D] of shared memory.
  __device__ __forceinline__ void write(float* s1, float* z1, int key_width, int value_width, float* parts) {
    for_each([&](float& x, int row, int col) {
      if (row < key_width && col < value_width) s1[(long long)row * value_width + col] = x;
    });
    put_z(parts);
    __syncthreads();
    if (threadIdx.x < key_width) z1[threadIdx.x] = z_sum(parts, threadIdx.x);
  }

  // Rows [slice * STAGE, ...) of S into the stage.
  __device__ __forceinline__ void put(float* stage, int slice) const {
    if (!share.active || share.row / STAGE != slice) return;
#pragma unroll
    for (int j = 0; j < StateShare::TILES; ++j)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const Two pair = {{s[j][i], s[j][i + 1]}};
        const int row = share.row - slice * STAGE + tile_row(lane, i);
        *(Two*)&stage[at<LD>(row, share.col + tile_col(lane, j, i))] = pair;
      }
  }

  __device__ __forceinline__ void put_z(float* parts) const {
    if (z_group < Z_GROUPS) parts[z_group * D + z_col] = z;
  }

  static __device__ __forceinline__ float z_sum(const float* parts, int col) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < Z_GROUPS; ++i) sum += parts[i * D + col];
    return sum;
  }

  // S += a^T b, z += a^T weight over a chunk; `weight(row)`.
  template <bool B_LOW, class Weight>
  __device__ __forceinline__ void add(const float* a, const float* b, Weight weight) {
    if (share.active)
      multiply<true, B_LOW>(s, WidthColumns{a, share.row, 0}, WidthColumns{b, share.col, 0}, 0, C);
    if (z_group < Z_GROUPS)
      for (int row = z_group; row < C; row += Z_GROUPS) z += weight(row) * a[at<LD>(row, z_col)];
  }

  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) {
    if (!share.active) return;
#pragma unroll
    for (int j = 0; j < StateShare::TILES; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) visit(s[j][i], share.row + tile_row(lane, i), share.col + tile_col(lane, j, i));
  }
};

// Sum over the four lanes that share a tile's row.
__device__ __forceinline__ float sum_quad(float x) {
  x += __shfl_xor_sync(ALL, x, 1);
  return x + __shfl_xor_sync(ALL, x, 2);
}

// qz [C] = q . z, a warp a row.
__device__ __forceinline__ void dot_z(const Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float z[(D + 31) / 32];
#pragma unroll
  for (int i = 0; i < (D + 31) / 32; ++i) z[i] = lane + 32 * i < D ? State::z_sum(sh.z_parts, lane + 32 * i) : 0.f;
  for (int row = warp; row < C; row += WARPS) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < (D + 31) / 32; ++i)
      if (lane + 32 * i < D) sum += sh.q[at<LD>(row, lane + 32 * i)] * z[i];
#pragma unroll
    for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(ALL, sum, m);
    if (lane == 0) sh.qz[row] = sum;
  }
}

// The normaliser of a row: phi(q) . z, earlier chunks and this one, plus eps.
__device__ __forceinline__ float denominator(const Shared& sh, int row) {
  float sum = sh.qz[row];
#pragma unroll
  for (int i = 0; i < ScoreShare::PARTS; ++i) sum += sh.sums[i * C + row];
  return sum + PF_EPS;
}

// ---------------------------------------------------------------- scores

typedef float ScoreTile[ScoreShare::TILES][4];

// This warp's part of q k^T (or of any two width tiles), zero above the diagonal.
template <bool LOW>
__device__ __forceinline__ void causal_scores(ScoreTile& p, const float* a, const float* b, const ScoreShare& share,
                                              int lane) {
#pragma unroll
  for (int j = 0; j < ScoreShare::TILES; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) p[j][i] = 0.f;
  if (!share.active || share.col > share.row + 15) return;
  multiply<LOW, LOW>(p, WidthRows{a, share.row, 0}, WidthRows{b, share.col, 0}, 0, D);
#pragma unroll
  for (int j = 0; j < ScoreShare::TILES; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (share.col + tile_col(lane, j, i) > share.row + tile_row(lane, i)) p[j][i] = 0.f;
}

__device__ __forceinline__ void put_scores(float* scores, const ScoreTile& p, const ScoreShare& share, int lane) {
  if (!share.active || share.col > share.row + 15) return;
#pragma unroll
  for (int j = 0; j < ScoreShare::TILES; ++j)
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const Two pair = {{p[j][i], p[j][i + 1]}};
      *(Two*)&scores[at<LC>(share.row + tile_row(lane, i), share.col + tile_col(lane, j, i))] = pair;
    }
}

// Row sums of `value(tile, register)` over this warp's part, into sums[part, row].
template <int TILES, class Part, class Value>
__device__ __forceinline__ void sum_rows(float* sums, const Part& share, int lane, Value value) {
  if (!share.active) return;
#pragma unroll
  for (int half = 0; half < 4; half += 2) {
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < TILES; ++j) sum += value(j, half) + value(j, half + 1);
    sum = sum_quad(sum);
    if ((lane & 3) == 0) sums[share.part * C + share.row + tile_row(lane, half)] = sum;
  }
}

// ---------------------------------------------------------------- forward

#if PF_WANTED(PF_FORWARD)
// out [B, T, H, V]; the last state to s1, z1 unless they are null. The state before segment y of
// head bh is at s0 + (bh * segments + y) * s_stride, z0 likewise; zero if null.
extern "C" __global__ void __launch_bounds__(THREADS, PF_BLOCKS)
    pf_forward(PF_PROBLEM, PF_TENSOR_ARGUMENT(q), PF_TENSOR_ARGUMENT(k), PF_TENSOR_ARGUMENT(v), const float* s0,
               const float* z0, long long s_stride, long long z_stride, element* out, float* s1, float* z1) {
  extern __shared__ Four pf_smem[];
#ifdef PF_KERNEL
  static_assert((3 * TILE + BESIDE_TILES) * 4 == PF_SHARED, "the host reserves another amount");
#endif
  const Problem in(PF_PROBLEM_VALUES);
  const Shared sh((float*)pf_smem, 3);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const ScoreShare score(warp);
  const ValueShare value(warp);
  const long long place = in.bh * gridDim.y + blockIdx.y;
  q = in.start(q, q_b, q_h), k = in.start(k, k_b, k_h), v = in.start(v, v_b, v_h);
  State state;
  state.read(s0 ? s0 + place * s_stride : s0, z0 ? z0 + place * z_stride : z0, in.key_width, in.value_width);

  for (long long t0 = in.begin; t0 < in.end; t0 += C) {
    const int live = in.live(t0);
    load_mapped(sh.q, q + t0 * q_t, q_t, live, in);
    load_mapped(sh.k, k + t0 * k_t, k_t, live, in);
    load_values(sh.v, v + t0 * v_t, v_t, live, in);
    state.put(sh.stage, 0);
    state.put_z(sh.z_parts);
    __syncthreads();
    ScoreTile p;
    causal_scores<true>(p, sh.q, sh.k, score, lane);
    put_scores(sh.scores, p, score, lane);
    sum_rows<ScoreShare::TILES>(sh.sums, score, lane, [&](int j, int i) { return p[j][i]; });
    dot_z(sh);
    float acc[ValueShare::TILES][4] = {};
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      if (slice) {
        __syncthreads();
        state.put(sh.stage, slice);
        __syncthreads();
      }
      if (value.active)
        multiply<true, true>(acc, WidthRows{sh.q, value.row, slice * STAGE}, WidthColumns{sh.stage, value.col, 0}, 0, STAGE);
    }
    __syncthreads();
    if (value.active) {
      multiply<true, RAW_LOW>(acc, ScoreRows{sh.scores, value.row, 0}, WidthColumns{sh.v, value.col, 0}, 0, value.row + 16);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int row = value.row + tile_row(lane, i);
        if (row >= live) continue;
        const float scale = 1.f / denominator(sh, row);
        element* const to = out + in.row(t0 + row, in.value_width);
#pragma unroll
        for (int j = 0; j < ValueShare::TILES; ++j)
          store_two(to, value.col + tile_col(lane, j, i), in.value_width, in.packed, acc[j][i] * scale, acc[j][i + 1] * scale);
      }
    }
    state.add<RAW_LOW>(sh.k, sh.v, [](int) { return 1.f; });
    __syncthreads();
  }
  zero_padding(out, in, in.value_width);
  if (s1)
    state.write(s1 + in.bh * in.key_width * in.value_width, z1 + in.bh * in.key_width, in.key_width, in.value_width,
                sh.z_parts);
}
#endif

// ---------------------------------------------------------------- backward
//
// With g_t = do_t / den_t and n_t = den_t out_t:  dden_t = -(do_t . n_t) / den_t^2, and, P being
// tril(Q K^T) within the chunk and dP = tril(g V^T + dden 1^T),
//   dQ = g S^T + dP K + dden z^T          S, z before the chunk: a sweep forwards
//   dK = V R^T + dP^T Q + 1 r^T,  dV = K R + P^T g      R = sum Q^T g, r = sum Q^T dden after it: backwards
// do_t . n_t = q_t . (S do_t) + sum_s P_ts (do_t . v_s), so the output need not be kept.

#if PF_WANTED(PF_GRAD_Q)
// dq [B, T, H, K]; den and dden [B, H, T] for the sweep backwards.
extern "C" __global__ void __launch_bounds__(THREADS, PF_BLOCKS)
    pf_grad_q(PF_PROBLEM, PF_TENSOR_ARGUMENT(q), PF_TENSOR_ARGUMENT(k), PF_TENSOR_ARGUMENT(v), PF_TENSOR_ARGUMENT(go),
              const float* s0, const float* z0, long long s_stride, long long z_stride, element* dq, float* den_out,
              float* dden_out) {
  extern __shared__ Four pf_smem[];
#ifdef PF_KERNEL
  static_assert((4 * TILE + BESIDE_TILES) * 4 == PF_SHARED, "the host reserves another amount");
#endif
  const Problem in(PF_PROBLEM_VALUES);
  const Shared sh((float*)pf_smem, 4);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const ScoreShare score(warp);
  const SliceShare part(warp);
  const long long place = in.bh * gridDim.y + blockIdx.y;
  q = in.start(q, q_b, q_h), k = in.start(k, k_b, k_h), v = in.start(v, v_b, v_h), go = in.start(go, go_b, go_h);
  State state;
  state.read(s0 ? s0 + place * s_stride : s0, z0 ? z0 + place * z_stride : z0, in.key_width, in.value_width);

  for (long long t0 = in.begin; t0 < in.end; t0 += C) {
    const int live = in.live(t0);
    load_mapped(sh.q, q + t0 * q_t, q_t, live, in);
    load_mapped(sh.k, k + t0 * k_t, k_t, live, in);
    load_values(sh.v, v + t0 * v_t, v_t, live, in);
    load_values(sh.g, go + t0 * go_t, go_t, live, in);
    state.put(sh.stage, 0);
    state.put_z(sh.z_parts);
    __syncthreads();
    ScoreTile p, gv;
    causal_scores<true>(p, sh.q, sh.k, score, lane);
    causal_scores<RAW_LOW>(gv, sh.g, sh.v, score, lane);
    sum_rows<ScoreShare::TILES>(sh.sums, score, lane, [&](int j, int i) { return p[j][i]; });
    sum_rows<ScoreShare::TILES>(sh.dots, score, lane, [&](int j, int i) { return p[j][i] * gv[j][i]; });
    dot_z(sh);
    if (threadIdx.x < D) sh.z[threadIdx.x] = State::z_sum(sh.z_parts, threadIdx.x);
    float x[SLICES][SliceShare::TILES][4] = {};  // do S^T
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      if (slice) {
        __syncthreads();
        state.put(sh.stage, slice);
        __syncthreads();
      }
      if (part.active)
        multiply<RAW_LOW, true>(x[slice], WidthRows{sh.g, part.row, 0}, WidthRows{sh.stage, part.col, 0}, 0, D);
    }
    sum_rows<SLICES * SliceShare::TILES>(sh.qx, part, lane, [&](int j, int i) {
      const int slice = j / SliceShare::TILES, tile = j % SliceShare::TILES;
      const int col = slice * STAGE + part.col + tile_col(lane, tile, i);
      return x[slice][tile][i] * sh.q[at<LD>(part.row + tile_row(lane, i), col)];
    });
    __syncthreads();
    const auto slope = [&](int row, float scale) {  // of the loss along the row's normaliser
      float dot = 0.f;
#pragma unroll
      for (int i = 0; i < ScoreShare::PARTS; ++i) dot += sh.dots[i * C + row];
#pragma unroll
      for (int i = 0; i < SliceShare::PARTS; ++i) dot += sh.qx[i * C + row];
      return -dot * scale * scale;
    };
    for (int row = threadIdx.x; row < live; row += THREADS) {
      const float den = denominator(sh, row);
      den_out[in.bh * in.steps + t0 + row] = den;
      dden_out[in.bh * in.steps + t0 + row] = slope(row, 1.f / den);
    }
    if (score.active) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = score.row + tile_row(lane, i);
        const float scale = 1.f / denominator(sh, row), dden = slope(row, scale);
#pragma unroll
        for (int j = 0; j < ScoreShare::TILES; ++j)
          gv[j][i] = score.col + tile_col(lane, j, i) > row ? 0.f : gv[j][i] * scale + dden;
      }
      put_scores(sh.scores, gv, score, lane);
    }
    __syncthreads();
    if (part.active) {
#pragma unroll
      for (int slice = 0; slice < SLICES; ++slice) {
        const int col0 = slice * STAGE + part.col;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = part.row + tile_row(lane, i);
          const float scale = 1.f / denominator(sh, row), dden = slope(row, scale);
#pragma unroll
          for (int j = 0; j < SliceShare::TILES; ++j)
            x[slice][j][i] = x[slice][j][i] * scale + dden * sh.z[col0 + tile_col(lane, j, i)];
        }
        multiply<true, true>(x[slice], ScoreRows{sh.scores, part.row, 0}, WidthColumns{sh.k, col0, 0}, 0, part.row + 16);
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const int row = part.row + tile_row(lane, i);
          if (row >= live) continue;
          element* const to = dq + in.row(t0 + row, in.key_width);
#pragma unroll
          for (int j = 0; j < SliceShare::TILES; ++j) {
            const int col = col0 + tile_col(lane, j, i);
            store_two(to, col, in.key_width, in.packed, x[slice][j][i] * feature_slope(sh.q[at<LD>(row, col)], in.map),
                      x[slice][j][i + 1] * feature_slope(sh.q[at<LD>(row, col + 1)], in.map));
          }
        }
      }
    }
    state.add<RAW_LOW>(sh.k, sh.v, [](int) { return 1.f; });
    __syncthreads();
  }
  zero_padding(dq, in, in.key_width);
}
#endif

// The output's gradient over the normaliser: g = do / den.
__device__ __forceinline__ void load_scaled(float* tile, const element* src, long long stride, const float* den,
                                            int live, const Problem& in) {
  load_tile(tile, src, stride, live, in.value_width, in.packed, [=](int row, float x) { return x / den[row]; });
}

__device__ __forceinline__ void load_rows(float* to, const float* src, int live) {
  for (int row = threadIdx.x; row < C; row += THREADS) to[row] = row < live ? src[row] : 0.f;
}

#if PF_WANTED(PF_GRAD_KV)
// dk [B, T, H, K] and dv [B, T, H, V]; the gradient of the first state to s1, z1 unless null.
// s0, z0: the gradient of the state after each segment, placed as in the forward.
extern "C" __global__ void __launch_bounds__(THREADS, PF_BLOCKS)
    pf_grad_kv(PF_PROBLEM, PF_TENSOR_ARGUMENT(q), PF_TENSOR_ARGUMENT(k), PF_TENSOR_ARGUMENT(v), PF_TENSOR_ARGUMENT(go),
               const float* s0, const float* z0, long long s_stride, long long z_stride, const float* den,
               const float* dden, element* dk, element* dv, float* s1, float* z1) {
  extern __shared__ Four pf_smem[];
#ifdef PF_KERNEL
  static_assert((4 * TILE + BESIDE_TILES) * 4 == PF_SHARED, "the host reserves another amount");
#endif
  const Problem in(PF_PROBLEM_VALUES);
  const Shared sh((float*)pf_smem, 4);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const ScoreShare score(warp);
  const ValueShare value(warp);
  const SliceShare part(warp);
  const long long place = in.bh * gridDim.y + blockIdx.y;
  q = in.start(q, q_b, q_h), k = in.start(k, k_b, k_h), v = in.start(v, v_b, v_h), go = in.start(go, go_b, go_h);
  den += in.bh * in.steps, dden += in.bh * in.steps;
  State state;
  state.read(s0 ? s0 + place * s_stride : s0, z0 ? z0 + place * z_stride : z0, in.key_width, in.value_width);

  for (long long n = (in.end - in.begin + C - 1) / C; n-- > 0;) {
    const long long t0 = in.begin + n * C;
    const int live = in.live(t0);
    load_mapped(sh.q, q + t0 * q_t, q_t, live, in);
    load_mapped(sh.k, k + t0 * k_t, k_t, live, in);
    load_values(sh.v, v + t0 * v_t, v_t, live, in);
    load_scaled(sh.g, go + t0 * go_t, go_t, den + t0, live, in);
    load_rows(sh.dd, dden + t0, live);
    state.put(sh.stage, 0);
    state.put_z(sh.z_parts);
    __syncthreads();
    ScoreTile p, dp;
    causal_scores<true>(p, sh.q, sh.k, score, lane);
    put_scores(sh.scores, p, score, lane);
    causal_scores<true>(dp, sh.g, sh.v, score, lane);
    if (threadIdx.x < D) sh.z[threadIdx.x] = State::z_sum(sh.z_parts, threadIdx.x);
    float values[ValueShare::TILES][4] = {}, keys[SLICES][SliceShare::TILES][4] = {};
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      if (slice) {
        __syncthreads();
        state.put(sh.stage, slice);
        __syncthreads();
      }
      if (value.active)
        multiply<true, true>(values, WidthRows{sh.k, value.row, slice * STAGE}, WidthColumns{sh.stage, value.col, 0}, 0, STAGE);
      if (part.active)
        multiply<RAW_LOW, true>(keys[slice], WidthRows{sh.v, part.row, 0}, WidthRows{sh.stage, part.col, 0}, 0, D);
    }
    __syncthreads();
    if (value.active) {
      multiply<true, true>(values, ScoreColumns{sh.scores, value.row, 0}, WidthColumns{sh.g, value.col, 0}, value.row, C);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int row = value.row + tile_row(lane, i);
        if (row >= live) continue;
        element* const to = dv + in.row(t0 + row, in.value_width);
#pragma unroll
        for (int j = 0; j < ValueShare::TILES; ++j)
          store_two(to, value.col + tile_col(lane, j, i), in.value_width, in.packed, values[j][i], values[j][i + 1]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ScoreShare::TILES; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = score.row + tile_row(lane, i);
        if (score.active && score.col + tile_col(lane, j, i) <= row) dp[j][i] += sh.dd[row];
      }
    put_scores(sh.scores, dp, score, lane);
    __syncthreads();
    if (part.active) {
#pragma unroll
      for (int slice = 0; slice < SLICES; ++slice) {
        const int col0 = slice * STAGE + part.col;
        multiply<true, true>(keys[slice], ScoreColumns{sh.scores, part.row, 0}, WidthColumns{sh.q, col0, 0}, part.row, C);
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const int row = part.row + tile_row(lane, i);
          if (row >= live) continue;
          element* const to = dk + in.row(t0 + row, in.key_width);
#pragma unroll
          for (int j = 0; j < SliceShare::TILES; ++j) {
            const int col = col0 + tile_col(lane, j, i);
            store_two(to, col, in.key_width, in.packed,
                      (keys[slice][j][i] + sh.z[col]) * feature_slope(sh.k[at<LD>(row, col)], in.map),
                      (keys[slice][j][i + 1] + sh.z[col + 1]) * feature_slope(sh.k[at<LD>(row, col + 1)], in.map));
          }
        }
      }
    }
    state.add<true>(sh.q, sh.g, [&](int row) { return sh.dd[row]; });
    __syncthreads();
  }
  zero_padding(dk, in, in.key_width);
  zero_padding(dv, in, in.value_width);
  if (s1)
    state.write(s1 + in.bh * in.key_width * in.value_width, z1 + in.bh * in.key_width, in.key_width, in.value_width,
                sh.z_parts);
}
#endif

// ---------------------------------------------------------------- splitting the sequence

// With several segments a head: what each adds to the state, then `pf_prefix` turns the sums into
// the states before (backwards: after) each segment. A segment's place in `sums` is S [K, V], z [K].

#if PF_WANTED(PF_STATES)
extern "C" __global__ void __launch_bounds__(THREADS, PF_BLOCKS)
    pf_states(PF_PROBLEM, PF_TENSOR_ARGUMENT(k), PF_TENSOR_ARGUMENT(v), float* sums) {
  extern __shared__ Four pf_smem[];
#ifdef PF_KERNEL
  static_assert((2 * TILE + THREADS) * 4 == PF_SHARED, "the host reserves another amount");
#endif
  const Problem in(PF_PROBLEM_VALUES);
  float *const sk = (float*)pf_smem, *const sv = sk + TILE, *const parts = sv + TILE;
  k = in.start(k, k_b, k_h), v = in.start(v, v_b, v_h);
  State state;
  state.read(nullptr, nullptr, in.key_width, in.value_width);
  for (long long t0 = in.begin; t0 < in.end; t0 += C) {
    load_mapped(sk, k + t0 * k_t, k_t, in.live(t0), in);
    load_values(sv, v + t0 * v_t, v_t, in.live(t0), in);
    __syncthreads();
    state.add<RAW_LOW>(sk, sv, [](int) { return 1.f; });
    __syncthreads();
  }
  const int area = in.key_width * in.value_width;
  sums += (in.bh * gridDim.y + blockIdx.y) * (area + in.key_width);
  state.write(sums, sums + area, in.key_width, in.value_width, parts);
}
#endif

#if PF_WANTED(PF_GRAD_STATES)
extern "C" __global__ void __launch_bounds__(THREADS, PF_BLOCKS)
    pf_grad_states(PF_PROBLEM, PF_TENSOR_ARGUMENT(q), PF_TENSOR_ARGUMENT(go), const float* den, const float* dden,
                   float* sums) {
  extern __shared__ Four pf_smem[];
#ifdef PF_KERNEL
  static_assert((2 * TILE + THREADS + C) * 4 == PF_SHARED, "the host reserves another amount");
#endif
  const Problem in(PF_PROBLEM_VALUES);
  float *const sq = (float*)pf_smem, *const sg = sq + TILE, *const parts = sg + TILE, *const sd = parts + THREADS;
  q = in.start(q, q_b, q_h), go = in.start(go, go_b, go_h);
  den += in.bh * in.steps, dden += in.bh * in.steps;
  State state;
  state.read(nullptr, nullptr, in.key_width, in.value_width);
  for (long long t0 = in.begin; t0 < in.end; t0 += C) {
    load_mapped(sq, q + t0 * q_t, q_t, in.live(t0), in);
    load_scaled(sg, go + t0 * go_t, go_t, den + t0, in.live(t0), in);
    load_rows(sd, dden + t0, in.live(t0));
    __syncthreads();
    state.add<true>(sq, sg, [&](int row) { return sd[row]; });
    __syncthreads();
  }
  const int area = in.key_width * in.value_width;
  sums += (in.bh * gridDim.y + blockIdx.y) * (area + in.key_width);
  state.write(sums, sums + area, in.key_width, in.value_width, parts);
}
#endif

#if PF_WANTED(PF_PREFIX)
// In place over `sums` [BH, segments, area + keys]: each place becomes `s0`, `z0` plus all before it
// (after it, if `backwards`); the whole sum goes to s1, z1 unless
// they are null. One thread an element of the state.
extern "C" __global__ void __launch_bounds__(THREADS, PF_BLOCKS)
    pf_prefix(float* sums, long long segments, long long area, long long keys, long long backwards, const float* s0,
              const float* z0, float* s1, float* z1) {
  const long long e = (long long)blockIdx.y * THREADS + threadIdx.x, bh = blockIdx.x, size = area + keys;
  if (e >= size) return;
  const bool in_s = e < area;
  const float* const first = in_s ? s0 : z0;
  const long long at_end = in_s ? bh * area + e : bh * keys + e - area;
  float carry = first ? first[at_end] : 0.f;
  sums += bh * segments * size + e;
  for (long long i = 0; i < segments; ++i) {
    float* const here = sums + (backwards ? segments - 1 - i : i) * size;
    const float sum = *here;
    *here = carry;
    carry += sum;
  }
  if (s1) (in_s ? s1 : z1)[at_end] = carry;
}
#endif

// ---------------------------------------------------------------- the recurrent step

#if PF_WANTED(PF_STEP)
// One step of every head in place: S += phi(k) v^T, z += phi(k), out [B, H, V] = phi(q) S / (phi(q) . z + eps).
// q, k, v [B, H, width] with any strides but the last; `packed`: S's rows are aligned to four floats.
extern "C" __global__ void __launch_bounds__(THREADS, PF_BLOCKS)
    pf_step(long long heads, long long key_width, long long value_width, long long map, long long packed,
            const element* q, long long q_b, long long q_h, const element* k, long long k_b, long long k_h,
            const element* v, long long v_b, long long v_h, float* s, float* z, element* out) {
  constexpr int COLS = D / 4, GROUPS = THREADS / COLS;  // a thread has four columns of every GROUPS-th row
  extern __shared__ Four pf_smem[];
#ifdef PF_KERNEL
  static_assert((3 * D + GROUPS * D + 4) * 4 == PF_SHARED, "the host reserves another amount");
#endif
  float *const sq = (float*)pf_smem, *const sk = sq + D, *const sv = sk + D, *const sums = sv + D;
  float* const den = sums + GROUPS * D;
  const int tid = threadIdx.x, keys = (int)key_width, values = (int)value_width;
  const long long bh = blockIdx.x, b = bh / heads, h = bh % heads;
  if (tid < D) {
    sq[tid] = tid < keys ? feature(to_float(q[b * q_b + h * q_h + tid]), (int)map) : 0.f;
    sk[tid] = tid < keys ? feature(to_float(k[b * k_b + h * k_h + tid]), (int)map) : 0.f;
    sv[tid] = tid < values ? to_float(v[b * v_b + h * v_h + tid]) : 0.f;
  }
  __syncthreads();
  if (tid < 32) {
    float sum = 0.f;
    for (int i = tid; i < keys; i += 32) {
      const float now = z[bh * keys + i] + sk[i];
      z[bh * keys + i] = now;
      sum += sq[i] * now;
    }
#pragma unroll
    for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(ALL, sum, m);
    if (tid == 0) *den = sum + PF_EPS;
  }
  const int col = tid % COLS * 4, group = tid / COLS;
  s += bh * keys * values;
  Four acc = {{0.f, 0.f, 0.f, 0.f}};
  if (group < GROUPS && col < values) {
#pragma unroll 4
    for (int row = group; row < keys; row += GROUPS) {
      float* const here = s + row * values + col;
      Four now = {{0.f, 0.f, 0.f, 0.f}};
      if (packed) now = *(const Four*)here;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!packed && col + i < values) now.x[i] = here[i];
        now.x[i] += sk[row] * sv[col + i];
        acc.x[i] += sq[row] * now.x[i];
        if (!packed && col + i < values) here[i] = now.x[i];
      }
      if (packed) *(Four*)here = now;
    }
  }
  if (group < GROUPS) *(Four*)&sums[group * D + col] = acc;
  __syncthreads();
  if (tid < values) {
    float sum = 0.f;
    for (int i = 0; i < GROUPS; ++i) sum += sums[i * D + tid];
    out[bh * values + tid] = from_float(sum / *den);
  }
}
#endif
