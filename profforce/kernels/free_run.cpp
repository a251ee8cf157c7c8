// Free-running a decoder on the CPU: a program of row operations, stepped without the interpreter.
//
// The caller describes one decoder step as a list of operations on rows (linear layers, norms, the
// recurrent attention step, attention over a memory, dropout, ...) and hands over arrays of fixed size.
// pf_free_run then takes n steps for all groups of utterances: nothing is allocated, utterances that
// end leave the dense rows at once, threads take whole groups.
//
// Rows: an activation array has one row for each *running* utterance of a group, packed to the front.
// What belongs to an utterance for good (states, memories, results) is found by its own number.
// Encoder and postnet are programs of one step whose rows are the positions of all utterances, one
// after the other without padding: a Span tells each row where its utterance begins and ends.
//
// A row's arithmetic is one sequence of operations whatever the other rows are: results do not depend
// on the batch, its order or the number of threads.

#include <atomic>
#include <cmath>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "packed.h"
#include "vectors.h"

namespace {

// ---------------------------------------------------------------- operations

struct Group {         // a range of dense rows
  int64_t first, size; // rows and utterances [first, first + size)
  int64_t alive;       // the first `alive` rows run
  int64_t t;           // number of the next step
};

struct Run;

struct Scratch {  // of one thread
  std::vector<uint32_t> bundles;
  std::vector<float> scale, levels, scores, keys, values, unfolded, expected;
};

template <class Type>
Type* at_least(std::vector<Type>& room, int64_t count) {
  if (int64_t(room.size()) < count) room.resize(count);
  return room.data();
}

struct Span { int64_t begin, end, utterance; };  // rows of the utterance that a row belongs to

struct Linear {
  Matrix m;
  const float* x;
  float* y;
  int64_t ldx, ldy;
  int32_t activation;
  int32_t add;        // y += gate * result instead of y = result
  const float* gate;  // one number, or null for 1
  // A convolution: the layer sees `taps` rows side by side, zeros where they leave the span.
  const Span* spans;
  int64_t taps;  // 0 for a plain layer
};

struct Norm { const float *x, *weight, *bias; float* y; int64_t width; float eps; int32_t activation; };

struct Dropout {  // counter-based: see profforce/nn/noise.py
  float* x;
  const int64_t* utterances;  // [B]
  int64_t width;
  uint32_t key, threshold;
  float keep;  // 1 - p
};

struct Positions { float* x; const float* table; int64_t width; };

struct LinearAttention {  // one step; q, k, v side by side in a row of qkv
  const float* qkv;
  float *y, *s, *z;  // s [B, H, K, K], z [B, H, K]
  int32_t heads, width, map;
  float eps;
};

struct Location {  // where in the text a row is: see profforce/nn/monotonic.py
  const float* advance;  // dense [B], before softplus; null: nowhere
  double* centre;        // [B], sum of the advances
  const float *offset, *log_sigma;  // [H]
};

struct Walk {  // what the last step attended to: see profforce/nn/forward.py
  const float* moves;  // dense [B][kMoves], before softmax; null: nothing is expected
  float* reached;      // [B][places]
  float floor;
};

struct Attention {    // softmax over what is remembered
  const float* q;     // rows of ldq
  float* y;           // rows of heads * width
  float *k, *v;       // [B][H][K][places], [B][H][places][K]
  const int64_t* lengths;  // [B], or null: all steps up to this one, whose k and v are appended
  float* weights;     // [B][guided][steps][symbols], or null
  int64_t ldq, places, steps, symbols, guided;
  int32_t heads, width, shown;  // `shown` first heads go to weights
  Location location;
  Walk walk;
};

struct SpanAttention {  // every row looks at all rows of its span; q, k, v side by side in a row of qkv
  const float* qkv;
  float* y;
  const Span* spans;
  const float* slopes;  // [H], what a score loses with each row of distance; null: nothing
  int32_t heads, width;
};

struct Recent {  // a row beside those of the last steps, the oldest first
  const float* x;
  float *past, *y;  // [B][kept][width], dense [B][kept + 1][width]
  int64_t kept, width;
};

struct Remember {  // rows of keys and values to where Attention reads them
  const float* kv;
  float *k, *v;  // [B][H][K][places], [B][H][places][K]
  const Span* spans;
  int64_t places;
  int32_t heads, width;
};

enum {
  kLinear, kNorm, kDropout, kPositions, kLinearAttention, kAttention, kSpanAttention, kRemember,
  kRecent
};

struct Operation { int32_t kind; const void* what; };

struct Run {
  const Operation* operations;
  int64_t num_operations;
  Group* groups;
  int64_t num_groups;
  int64_t* utterance;  // [B], number of the utterance in each dense row
  int32_t threads;
  void (*parallel)(void (*body)(void*), void* context, unsigned threads, unsigned flags);
  // results
  float* input;             // [B, R M] dense, what the next step reads
  const float *frames, *stop_logits;  // dense, [B, R M] and [B, R]
  float *mel, *stop;        // [B, max_steps R, M] and [B, max_steps R]
  int64_t* lengths;         // [B], 0 while the utterance runs
  uint8_t* stopped;         // [B]
  const int64_t* max_frames;  // [B], or null: nothing ends
  const float *scale, *shift;  // [R M], of what is kept in mel; null: as it was made
  int64_t max_steps;
  int32_t frames_a_step, num_mels;
  float threshold;
};

struct Place { const Run& run; const Group& group; Scratch& scratch; };

PF_INLINE Vec first_lanes(Vec v, int count) {  // the others become zero, whatever they were
  VecInt lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane < count ? v : Vec{};
}

PF_INLINE Vec activate(int kind, Vec x) {
  if (kind == kNone) return x;
  if (kind == kReluActivation) return x < 0.0f ? Vec{} : x;  // NaN stays NaN
  if (kind == kGelu) {
    float lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < kLanes; ++i) lanes[i] = 0.5f * lanes[i] * (1.0f + std::erf(lanes[i] * 0.70710678f));
    return load(lanes);
  }
  const Vec away = x < 0.0f ? x : -x;
  const Vec e = exp_nonpositive(kind == kTanh ? 2.0f * away : away);
  if (kind == kTanh) { const Vec t = (1.0f - e) / (1.0f + e); return x < 0.0f ? -t : t; }
  return x * ((x < 0.0f ? e : splat(1.0f)) / (1.0f + e));  // silu
}

PF_INLINE Vec load_some(const float* x, int64_t count) {
  if (count >= kLanes) return load(x);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = x[i];
  return load(lanes);
}
PF_INLINE void store_some(float* x, Vec v, int64_t count) {
  if (count >= kLanes) { store(x, v); return; }
  float lanes[kLanes];
  store(lanes, v);
  for (int64_t i = 0; i < count; ++i) x[i] = lanes[i];
}

// scale, bias, activation, gate and sum of a tile; the usual cases do not ask again for every vector
template <int kRows, bool kUsual>
PF_INLINE void finish(const Linear& f, Vec (&s)[kRows][2], int64_t row, int64_t column) {
  for (int j = 0; j < 2; ++j, column += kLanes) {
    const int64_t count = f.m.n - column;
    if (count <= 0) return;
    const Vec bias = f.m.bias ? load_some(f.m.bias + column, count) : Vec{};
    float* to = f.y + row * f.ldy + column;
    for (int r = 0; r < kRows; ++r, to += f.ldy) {
      Vec value = s[r][j];
      if (!kUsual && f.m.scale) value *= load(f.m.scale + column);
      value += bias;
      if (kUsual) {
        if (f.activation == kReluActivation) value = value < 0.0f ? Vec{} : value;
        store(to, f.add ? load(to) + value : value);
        continue;
      }
      value = activate(f.activation, value);
      if (f.gate) value *= *f.gate;
      if (f.add) value += load_some(to, count);
      store_some(to, value, count);
    }
  }
}

struct Tile {
  const float* x;
  int64_t ldx;
  const uint32_t* bundles;  // rows in bfloat16 pairs or in four bytes
  const float* scale;       // of rows in bytes
  int64_t row, panel;
  int64_t number;  // of the tile in its panel
  bool single;     // the only one there
};

// What a tile asks for while it computes: the first two of a panel a half of the next panel each, a
// single one its own panel some rows ahead.
template <class Type>
PF_INLINE const char* fetched_ahead(const Tile& t, const Type* panel, int64_t size) {
  return reinterpret_cast<const char*>(panel + (t.single ? 16 * kPanel : size + t.number % 2 * (size / 2)));
}

template <int kRows>
PF_INLINE void multiply_tile(const Linear& f, const Tile& t, Vec (&s)[kRows][2]) {
  const int64_t k = f.m.k, at = t.panel * kPanel;
  if (f.m.type == kFloat32) {
    const float* w = static_cast<const float*>(f.m.data) + at * k;
    return multiply_float<kRows>(t.x, t.ldx, w, k, fetched_ahead(t, w, k * kPanel), s);
  }
  const int64_t bundle = bundle_of(f.m.type), bundles = (k + bundle - 1) / bundle;
  if (bundle == 1) {  // int8 without the instruction
    multiply_int8<kRows>(t.x, t.ldx, static_cast<const int8_t*>(f.m.data) + at * k, k, s);
    for (int r = 0; r < kRows; ++r) { s[r][0] *= t.scale[r]; s[r][1] *= t.scale[r]; }
    return;
  }
  const uint32_t* w = static_cast<const uint32_t*>(f.m.data) + at * bundles;
#ifdef PF_DOT
  if (bundle == 4) {
    int32_t sums[kRows * kPanel];
    dot_bytes<kRows>(t.bundles, bundles, w, bundles, fetched_ahead(t, w, bundles * kPanel), sums);
    for (int r = 0; r < kRows; ++r)
      for (int j = 0; j < 2; ++j) {
        VecInt whole, less;
        std::memcpy(&whole, sums + r * kPanel + j * kLanes, sizeof whole);
        std::memcpy(&less, f.m.sums + at + j * kLanes, sizeof less);
        s[r][j] = __builtin_convertvector(whole - less, Vec) * t.scale[r];
      }
    return;
  }
  if (has_dot_pairs()) {
    float sums[kRows * kPanel];
    dot_pairs<kRows>(t.bundles, bundles, w, bundles, fetched_ahead(t, w, bundles * kPanel), sums);
    for (int r = 0; r < kRows; ++r)
      for (int j = 0; j < 2; ++j) s[r][j] = load(sums + r * kPanel + j * kLanes);
    return;
  }
#endif
  multiply_pairs<kRows>(t.bundles, bundles, w, bundles, s);
}

template <int kRows>
void linear_tile(const Linear& f, const Tile& t) {
  Vec s[kRows][2];
  for (int r = 0; r < kRows; ++r) s[r][0] = s[r][1] = Vec{};
  multiply_tile<kRows>(f, t, s);
  const int64_t at = t.panel * kPanel;
  const bool usual = at + kPanel <= f.m.n && !f.m.scale && !f.gate && f.activation <= kReluActivation;
  if (usual) finish<kRows, true>(f, s, t.row, at);
  else finish<kRows, false>(f, s, t.row, at);
}

typedef void (*TileFunction)(const Linear&, const Tile&);
template <int... kRows>
constexpr TileFunction tile_of(int64_t rows, std::integer_sequence<int, kRows...>) {
  constexpr TileFunction all[] = {linear_tile<kRows + 1>...};
  return all[(rows < kTileRows ? rows : kTileRows) - 1];
}

// rows [first, first + rows) of y from as many rows of x
void multiply(const Linear& f, const float* x, int64_t ldx, int64_t first, int64_t rows, Scratch& scratch) {
  const int64_t bundle = bundle_of(f.m.type), bundles = (f.m.k + bundle - 1) / bundle;
  const uint32_t* packed = nullptr;
  const float* scale = nullptr;
  if (f.m.type == kBFloat16) {
    uint32_t* to = at_least(scratch.bundles, rows * bundles);
    for (int64_t r = 0; r < rows; ++r) round_pairs(x + r * ldx, f.m.k, to + r * bundles);
    packed = to;
  } else if (f.m.type == kInt8) {
    float* scales = at_least(scratch.scale, rows);
    scale = scales;
    if (bundle == 4) {
      uint32_t* to = at_least(scratch.bundles, rows * bundles);
      for (int64_t r = 0; r < rows; ++r)
        scales[r] = round_bytes(x + r * ldx, f.m.k, 4 * bundles, reinterpret_cast<uint8_t*>(to + r * bundles));
      packed = to;
    } else {
      float* to = at_least(scratch.levels, rows * f.m.k);
      for (int64_t r = 0; r < rows; ++r) scales[r] = round_bytes(x + r * ldx, f.m.k, f.m.k, to + r * f.m.k);
      x = to;
      ldx = f.m.k;
    }
  }
  for (int64_t panel = 0; panel < panels_of(f.m.n); ++panel)
    for (int64_t r = 0; r < rows; r += kTileRows)
      tile_of(rows - r, std::make_integer_sequence<int, kTileRows>{})(
          f, {x + r * ldx, ldx, packed ? packed + r * bundles : nullptr, scale ? scale + r : nullptr, first + r, panel,
              r / kTileRows, rows <= kTileRows});
}

void unfold(const Linear& f, int64_t row, float* to) {
  const int64_t width = f.m.k / f.taps;
  for (int64_t i = 0; i < f.taps; ++i, to += width) {
    const int64_t from = row + i - f.taps / 2;
    if (from < f.spans[row].begin || from >= f.spans[row].end) std::memset(to, 0, sizeof(float) * width);
    else std::memcpy(to, f.x + from * f.ldx, sizeof(float) * width);
  }
}

void run(const Linear& f, const Place& at) {
  const int64_t first = at.group.first, rows = at.group.alive;
  if (!f.taps) return multiply(f, f.x + first * f.ldx, f.ldx, first, rows, at.scratch);
  constexpr int64_t kBlock = 4 * kTileRows;
  float* block = at_least(at.scratch.unfolded, kBlock * f.m.k);
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t count = rows - begin < kBlock ? rows - begin : kBlock;
    for (int64_t r = 0; r < count; ++r) unfold(f, first + begin + r, block + r * f.m.k);
    multiply(f, block, f.m.k, first + begin, count, at.scratch);
  }
}

void run(const Norm& f, const Place& at) {
  for (int64_t r = at.group.first; r < at.group.first + at.group.alive; ++r) {
    const float* x = f.x + r * f.width;
    float* y = f.y + r * f.width;
    Vec total{}, squares{};
    for (int64_t i = 0; i < f.width; i += kLanes) total += load_some(x + i, f.width - i);
    const float mean = sum(total) / f.width;
    for (int64_t i = 0; i < f.width; i += kLanes) {
      Vec d = load_some(x + i, f.width - i) - mean;
      if (f.width - i < kLanes) d = first_lanes(d, int(f.width - i));
      squares += d * d;
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / f.width + f.eps);
    for (int64_t i = 0; i < f.width; i += kLanes) {
      const int64_t left = f.width - i;
      const Vec v = (load_some(x + i, left) - mean) * scale * load_some(f.weight + i, left) + load_some(f.bias + i, left);
      store_some(y + i, activate(f.activation, v), left);
    }
  }
}

PF_INLINE VecBits mix(VecBits x) {
  for (int i = 0; i < 2; ++i) x = (x ^ (x >> 16)) * 0x45d9f3bu;
  return x ^ (x >> 16);
}
PF_INLINE uint32_t mix(uint32_t x) {
  for (int i = 0; i < 2; ++i) x = (x ^ (x >> 16)) * 0x45d9f3bu;
  return x ^ (x >> 16);
}

void run(const Dropout& f, const Place& at) {
  VecBits lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = uint32_t(i);
  for (int64_t r = at.group.first; r < at.group.first + at.group.alive; ++r) {
    const int64_t who = f.utterances[at.run.utterance[r]];
    const uint32_t cell = mix(mix(mix(f.key) + uint32_t(who)) + uint32_t(at.group.t));
    float* x = f.x + r * f.width;
    int64_t i = 0;
    for (; i + kLanes <= f.width; i += kLanes) {
      const VecBits bits = mix(lane + (cell + uint32_t(i)));
      store(x + i, bits >= f.threshold ? load(x + i) / f.keep : Vec{});
    }
    for (; i < f.width; ++i) x[i] = mix(cell + uint32_t(i)) >= f.threshold ? x[i] / f.keep : 0.0f;
  }
}

void run(const Positions& f, const Place& at) {
  const float* line = f.table + at.group.t * f.width;
  for (int64_t r = at.group.first; r < at.group.first + at.group.alive; ++r)
    for (int64_t i = 0; i < f.width; ++i) f.x[r * f.width + i] += line[i];
}

// ---------------------------------------------------------------- attention

// rows of a head, padded with zeros to whole vectors
PF_INLINE int copy_padded(const float* x, int width, float* to) {
  const int whole = int(round_up(width, kLanes));
  std::memcpy(to, x, sizeof(float) * width);
  for (int i = width; i < whole; ++i) to[i] = 0;
  return whole;
}

PF_INLINE void map_padded(int map, float* x, int width, int whole) {
  for (int i = 0; i < whole; i += kLanes) store(x + i, apply_map(map, load(x + i)));
  for (int i = width; i < whole; ++i) x[i] = 0;  // elu(0) + 1 is not
}

template <int kVectors>
PF_INLINE void pass_over_state(const float* q, const float* k, const float* v, float* s, int width, float reciprocal, float* y) {
  Vec total[kVectors], value[kVectors];
  for (int j = 0; j < kVectors; ++j) { total[j] = Vec{}; value[j] = load(v + j * kLanes); }
  for (int d = 0; d < width; ++d, s += width)
    for (int j = 0; j < kVectors; ++j) {
      const Vec line = load(s + j * kLanes) + k[d] * value[j];
      store(s + j * kLanes, line);
      total[j] += q[d] * line;
    }
  for (int j = 0; j < kVectors; ++j) store(y + j * kLanes, total[j] * reciprocal);
}

// S += phi(k) v^T, z += phi(k), y = phi(q) S / (phi(q) . z + eps) in one pass over the state
void step_head(const LinearAttention& f, const float* q0, const float* k0, const float* v, float* s, float* z, float* y) {
  alignas(64) float q[kMaxHeadWidth], k[kMaxHeadWidth];
  const int width = f.width;
  map_padded(f.map, q, width, copy_padded(q0, width, q));
  map_padded(f.map, k, width, copy_padded(k0, width, k));
  Vec parts{};
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Vec zi = load(z + i) + load(k + i);
    store(z + i, zi);
    parts += load(q + i) * zi;
  }
  float denominator = sum(parts) + f.eps;
  for (; i < width; ++i) { z[i] += k[i]; denominator += q[i] * z[i]; }
  const float reciprocal = 1.0f / denominator;
  int j = 0;
  for (; j + 4 * kLanes <= width; j += 4 * kLanes) pass_over_state<4>(q, k, v + j, s + j, width, reciprocal, y + j);
  for (; j + 2 * kLanes <= width; j += 2 * kLanes) pass_over_state<2>(q, k, v + j, s + j, width, reciprocal, y + j);
  for (; j + kLanes <= width; j += kLanes) pass_over_state<1>(q, k, v + j, s + j, width, reciprocal, y + j);
  for (; j < width; ++j) {
    float total = 0;
    for (int d = 0; d < width; ++d) total += q[d] * (s[d * width + j] += k[d] * v[j]);
    y[j] = total * reciprocal;
  }
}

void run(const LinearAttention& f, const Place& at) {
  const int64_t all = int64_t(f.heads) * f.width, area = int64_t(f.width) * f.width;
  for (int64_t r = at.group.first; r < at.group.first + at.group.alive; ++r) {
    const float* row = f.qkv + r * 3 * all;
    const int64_t b = at.run.utterance[r];
    for (int h = 0; h < f.heads; ++h) {
      const int64_t at_head = h * int64_t(f.width);
      step_head(f, row + at_head, row + all + at_head, row + 2 * all + at_head, f.s + (b * f.heads + h) * area,
                f.z + b * all + at_head, f.y + r * all + at_head);
    }
  }
}

PF_INLINE float largest_lane(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
}

template <int kVectors>
PF_INLINE void scores(const float* q, const float* k, int64_t places, int width, float scale, float* to) {
  Vec s[kVectors] = {};
  for (int d = 0; d < width; ++d, k += places)
    for (int j = 0; j < kVectors; ++j) s[j] += q[d] * load(k + j * kLanes);
  for (int j = 0; j < kVectors; ++j) store(to + j * kLanes, s[j] * scale);
}

void scores_of(int vectors, const float* q, const float* k, int64_t places, int width, float scale, float* to) {
  switch (vectors) {  // as many sums at a time as there are hide the adder's latency
    case 1: return scores<1>(q, k, places, width, scale, to);
    case 2: return scores<2>(q, k, places, width, scale, to);
    case 3: return scores<3>(q, k, places, width, scale, to);
    case 4: return scores<4>(q, k, places, width, scale, to);
    case 5: return scores<5>(q, k, places, width, scale, to);
    case 6: return scores<6>(q, k, places, width, scale, to);
    case 7: return scores<7>(q, k, places, width, scale, to);
    default: return scores<8>(q, k, places, width, scale, to);
  }
}

// q . k / sqrt(K) for `count` places and those up to the next whole vector
void all_scores(const float* q, const float* k, int64_t places, int64_t count, int width, float* to) {
  const float scale = 1.0f / std::sqrt(float(width));
  for (int64_t i = 0; i < count; i += 8 * kLanes)
    scores_of(int((count - i + kLanes - 1) / kLanes), q, k + i, places, width, scale, to + i);
}

PF_INLINE Vec numbers_from(int64_t first) {
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = float(first + i);
  return v;
}

// less by the distance from `place` times `slope`
void near_place(float* scores, int64_t count, float place, float slope) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec d = numbers_from(i) - place;
    store(scores + i, load(scores + i) - slope * (d < 0.0f ? -d : d));
  }
}

// less by (place - whole - rest)^2 / (2 sigma^2)
void around_centre(float* scores, int64_t count, float whole, float rest, float log_sigma) {
  const float inverse = std::exp(-log_sigma);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec d = (numbers_from(i) - whole - rest) * inverse;
    store(scores + i, load(scores + i) - 0.5f * d * d);
  }
}

// where row `r` is after this step
double moved_centre(const Location& f, int64_t r, int64_t b) {
  const float x = f.advance[r];
  return f.centre[b] += x > 20.0f ? x : std::log1p(std::exp(x));
}

constexpr int kMoves = 3;

// log of what row `r` expects at each place; what it reached is cleared for this step's sum
void expect(const Walk& f, int64_t r, float* reached, int64_t count, float* to) {
  float move[kMoves], total = 0;
  const float* raw = f.moves + r * kMoves;
  float most = raw[0];
  for (int j = 1; j < kMoves; ++j) most = raw[j] > most ? raw[j] : most;
  for (int j = 0; j < kMoves; ++j) total += move[j] = std::exp(raw[j] - most);
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int j = 0; j < kMoves && j <= i; ++j) sum += move[j] / total * reached[i - j];
    to[i] = std::log(sum + f.floor);
  }
  for (int64_t i = 0; i < count; ++i) reached[i] = 0;
}

// softmax over `count` places in `weights`, zero up to the next whole vector
void softmax(float* weights, int64_t count) {
  int64_t i = 0;
  Vec most = splat(-INFINITY);
  for (; i + kLanes <= count; i += kLanes) { const Vec s = load(weights + i); most = s > most ? s : most; }
  float largest = largest_lane(most);
  for (; i < count; ++i) largest = weights[i] > largest ? weights[i] : largest;
  Vec total{};
  for (i = 0; i < count; i += kLanes) {
    Vec e = exp_nonpositive(load(weights + i) - largest);
    if (count - i < kLanes) e = first_lanes(e, int(count - i));
    store(weights + i, e);
    total += e;
  }
  const float reciprocal = 1.0f / sum(total);
  for (i = 0; i < count; i += kLanes) store(weights + i, load(weights + i) * reciprocal);
}

template <int kVectors>
PF_INLINE void weighted(const float* weights, const float* v, int64_t count, int width, float* y) {
  constexpr int kChains = kVectors < 4 ? 4 / kVectors : 1;  // sums that do not wait for each other
  Vec total[kChains][kVectors] = {};
  int64_t i = 0;
  for (; i + kChains <= count; i += kChains, v += kChains * width)
    for (int c = 0; c < kChains; ++c)
      for (int j = 0; j < kVectors; ++j) total[c][j] += weights[i + c] * load(v + c * width + j * kLanes);
  for (; i < count; ++i, v += width)
    for (int j = 0; j < kVectors; ++j) total[0][j] += weights[i] * load(v + j * kLanes);
  for (int j = 0; j < kVectors; ++j) {
    for (int c = 1; c < kChains; ++c) total[0][j] += total[c][j];
    store(y + j * kLanes, total[0][j]);
  }
}

void weighted_values(const float* weights, const float* v, int64_t count, int width, float* y) {
  int j = 0;
  for (; j + 4 * kLanes <= width; j += 4 * kLanes) weighted<4>(weights, v + j, count, width, y + j);
  for (; j + 2 * kLanes <= width; j += 2 * kLanes) weighted<2>(weights, v + j, count, width, y + j);
  for (; j + kLanes <= width; j += kLanes) weighted<1>(weights, v + j, count, width, y + j);
  for (; j < width; ++j) {
    float total = 0;
    for (int64_t i = 0; i < count; ++i) total += weights[i] * v[i * width + j];
    y[j] = total;
  }
}

void run(const Attention& f, const Place& at) {
  const int64_t all = int64_t(f.heads) * f.width;
  float* weights = at_least(at.scratch.scores, f.places + kLanes);
  float* expected = at_least(at.scratch.expected, f.places);
  for (int64_t r = at.group.first; r < at.group.first + at.group.alive; ++r) {
    const int64_t b = at.run.utterance[r];
    const double centre = f.location.advance ? moved_centre(f.location, r, b) : 0, whole = std::floor(centre);
    float* reached = f.walk.moves ? f.walk.reached + b * f.places : nullptr;
    if (reached) expect(f.walk, r, reached, f.lengths[b], expected);
    for (int h = 0; h < f.heads; ++h) {
      const float* q = f.q + r * f.ldq + h * f.width;
      float* k = f.k + (b * f.heads + h) * f.width * f.places;
      float* v = f.v + (b * f.heads + h) * f.width * f.places;
      int64_t count = f.lengths ? f.lengths[b] : at.group.t + 1;
      if (!f.lengths) {  // self-attention: this step's own key and value join
        for (int d = 0; d < f.width; ++d) k[d * f.places + at.group.t] = q[all + d];
        std::memcpy(v + at.group.t * f.width, q + 2 * all, sizeof(float) * f.width);
      }
      all_scores(q, k, f.places, count, f.width, weights);
      if (f.location.advance)
        around_centre(weights, count, float(whole), float(centre - whole) + f.location.offset[h], f.location.log_sigma[h]);
      if (reached)
        for (int64_t i = 0; i < count; ++i) weights[i] += expected[i];
      softmax(weights, count);
      if (reached)
        for (int64_t i = 0; i < count; ++i) reached[i] += weights[i] / f.heads;
      weighted_values(weights, v, count, f.width, f.y + r * all + h * f.width);
      if (f.weights && h < f.shown)
        std::memcpy(f.weights + ((b * f.guided + h) * f.steps + at.group.t) * f.symbols, weights, sizeof(float) * count);
    }
  }
}

// ---------------------------------------------------------------- rows that are positions

// k of one head, [count][K] with a row stride, to [K][places]
void turn(const float* k, int64_t stride, int64_t count, int width, int64_t places, float* to) {
  const int64_t squares = count / kLanes * kLanes, columns = width / kLanes * kLanes;
  for (int64_t i = 0; i < squares; i += kLanes)
    for (int64_t d = 0; d < columns; d += kLanes) transpose_square(k + i * stride + d, stride, to + d * places + i, places);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = i < squares ? columns : 0; d < width; ++d) to[d * places + i] = k[i * stride + d];
}

void run(const SpanAttention& f, const Place& at) {
  const int64_t all = int64_t(f.heads) * f.width, row = 3 * all, last = at.group.first + at.group.alive;
  for (int64_t begin = at.group.first; begin < last;) {
    const int64_t end = f.spans[begin].end, count = end - begin, places = round_up(count, kLanes);
    float* weights = at_least(at.scratch.scores, places);
    float* keys = at_least(at.scratch.keys, places * f.width);
    float* values = at_least(at.scratch.values, count * f.width);
    for (int h = 0; h < f.heads; ++h) {
      const float* head = f.qkv + begin * row + h * f.width;
      turn(head + all, row, count, f.width, places, keys);
      for (int64_t i = 0; i < count; ++i) std::memcpy(values + i * f.width, head + i * row + 2 * all, sizeof(float) * f.width);
      for (int64_t i = 0; i < count; ++i) {
        all_scores(head + i * row, keys, places, count, f.width, weights);
        if (f.slopes) near_place(weights, count, float(i), f.slopes[h]);
        softmax(weights, count);
        weighted_values(weights, values, count, f.width, f.y + (begin + i) * all + h * f.width);
      }
    }
    begin = end;
  }
}

void run(const Recent& f, const Place& at) {
  const int64_t kept = f.kept * f.width;
  for (int64_t r = at.group.first; r < at.group.first + at.group.alive; ++r) {
    float *past = f.past + at.run.utterance[r] * kept, *y = f.y + r * (kept + f.width);
    std::memcpy(y, past, sizeof(float) * kept);
    std::memcpy(y + kept, f.x + r * f.width, sizeof(float) * f.width);
    std::memcpy(past, y + f.width, sizeof(float) * kept);
  }
}

void run(const Remember& f, const Place& at) {
  const int64_t all = int64_t(f.heads) * f.width, last = at.group.first + at.group.alive;
  for (int64_t begin = at.group.first; begin < last; begin = f.spans[begin].end) {
    const int64_t count = f.spans[begin].end - begin;
    for (int h = 0; h < f.heads; ++h) {
      const float* head = f.kv + begin * 2 * all + h * f.width;
      const int64_t to = (f.spans[begin].utterance * f.heads + h) * f.width * f.places;
      turn(head, 2 * all, count, f.width, f.places, f.k + to);
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(f.v + to + i * f.width, head + i * 2 * all + all, sizeof(float) * f.width);
    }
  }
}

// ---------------------------------------------------------------- steps

void keep_frames(const Run& f, const float* made, int64_t count, float* to) {
  if (!f.scale) { std::memcpy(to, made, sizeof(float) * count); return; }
  for (int64_t i = 0; i < count; ++i) to[i] = made[i] * f.scale[i] + f.shift[i];
}

// Keep the step's frames, note who ends here, close the gaps that those leave.
void record(const Run& f, Group& group) {
  const int64_t frames = f.frames_a_step, values = frames * f.num_mels, t = group.t;
  int64_t kept = group.first;
  for (int64_t r = group.first; r < group.first + group.alive; ++r) {
    const int64_t b = f.utterance[r];
    bool ended = false;
    int64_t live = frames;  // of this step
    for (int64_t i = 0; i < frames; ++i) {
      const float logit = f.stop_logits[r * frames + i], probability = 1.0f / (1.0f + std::exp(-logit));
      f.stop[(b * f.max_steps + t) * frames + i] = probability;
      const int64_t number = t * frames + i + 1;
      if (ended || !f.max_frames || number > f.max_frames[b]) continue;
      const bool by_head = probability > f.threshold;
      if (by_head || number == f.max_frames[b]) {
        ended = true;
        live = i + 1;
        f.lengths[b] = number;
        f.stopped[b] = by_head;
      }
    }
    keep_frames(f, f.frames + r * values, live * f.num_mels, f.mel + (b * f.max_steps + t) * values);
    if (ended) continue;
    std::memcpy(f.input + kept * values, f.frames + r * values, sizeof(float) * values);
    f.utterance[kept++] = b;
  }
  group.alive = kept - group.first;
  ++group.t;
}

void take_step(const Run& f, Group& group, Scratch& scratch) {
  const Place at{f, group, scratch};
  for (int64_t i = 0; i < f.num_operations; ++i) {
    const void* what = f.operations[i].what;
    switch (f.operations[i].kind) {
      case kLinear: run(*static_cast<const Linear*>(what), at); break;
      case kNorm: run(*static_cast<const Norm*>(what), at); break;
      case kDropout: run(*static_cast<const Dropout*>(what), at); break;
      case kPositions: run(*static_cast<const Positions*>(what), at); break;
      case kLinearAttention: run(*static_cast<const LinearAttention*>(what), at); break;
      case kAttention: run(*static_cast<const Attention*>(what), at); break;
      case kSpanAttention: run(*static_cast<const SpanAttention*>(what), at); break;
      case kRemember: run(*static_cast<const Remember*>(what), at); break;
      case kRecent: run(*static_cast<const Recent*>(what), at); break;
    }
  }
  if (f.frames) record(f, group);
  else ++group.t;
}

struct Shared {
  const Run* run;
  int64_t steps;
  std::atomic<int64_t> next{0};

  void work() {
    Scratch scratch;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < run->num_groups;) {
      Group& group = run->groups[i];
      for (int64_t n = 0; n < steps && group.alive && group.t < run->max_steps; ++n) take_step(*run, group, scratch);
    }
  }
  static void entry(void* self) { static_cast<Shared*>(self)->work(); }
};

}  // namespace

// Sizes in elements of the packed data: floats, 16-bit words or bytes.
PF_API int64_t pf_packed_size(int32_t n, int32_t k, int32_t type) {
  return panels_of(n) * kPanel * round_up(k, bundle_of(type));
}

PF_API int64_t pf_padded_outputs(int32_t n) { return panels_of(n) * kPanel; }

PF_API void pf_pack(const Matrix* m, const float* weight, int64_t stride) {
  if (m->type == kInt8) return pack_int8(weight, stride, *m);
  for (int64_t panel = 0; panel < panels_of(m->n); ++panel)
    if (m->type == kFloat32) pack_panel<float>(weight, stride, *m, panel, [](float x, int64_t) { return x; });
    else pack_panel<uint16_t>(weight, stride, *m, panel, [](float x, int64_t) { return to_bfloat16(x); });
}

PF_API void pf_huge_pages(void* data, int64_t bytes) { ask_for_huge_pages(data, size_t(bytes)); }

// Which of these the processor multiplies by instructions of its own.
PF_API int pf_has_dot(int32_t type) {
  return type == kBFloat16 ? has_dot_pairs() : type == kInt8 ? has_dot_bytes() : true;
}

// Up to `steps` steps for every group; its number of running utterances is left in `alive`.
PF_API void pf_free_run(const Run* run, int64_t steps) {
  Shared shared{run, steps};
  const int64_t threads = run->threads < run->num_groups ? run->threads : run->num_groups;
  if (threads > 1 && run->parallel) {
    run->parallel(Shared::entry, &shared, unsigned(threads), 0);
    return;
  }
  std::vector<std::thread> others;
  try {
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(Shared::entry, &shared);
  } catch (const std::system_error&) {  // no more threads to be had: the ones at hand do the work
  }
  shared.work();
  for (auto& thread : others) thread.join();
}
