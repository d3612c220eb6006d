// attend: k and v to their pages, then each query over the keys of its sequence up to its own position.
//
// A row is one query head of one token; rows of a segment that share a key head lie behind one another and are taken
// kRows at a time. A row's result is a function of its query and its keys alone: keys in partitions of 512 from
// position 0, each with its own (max, sum, accumulator), merged in order. A masked key has weight 0, whether it is
// computed for a neighbour's sake or not; sums end with + 0 so that −0 cannot tell.
#pragma once
#include <type_traits>

namespace headrace::HEADRACE_NS {

constexpr i64 kRows = 32;
constexpr i64 kGroup = kTileK;  // keys per tile
constexpr i64 kGroups = kPartition / kGroup;
constexpr i64 kMaxDim = 512;
constexpr float kLeastPeak = 0x1p-100f;  // a vector that is nowhere larger is held as zeros: no scale is denormal

inline i64 key_index(i64 key, i64 column, i64 dim, bool is_chained) {
  const i64 d = place_of(column, is_chained);
  return key / 16 * 16 * dim + d / 32 * 512 + d % 32 / 2 * 32 + key % 16 * 2 + d % 2;
}
inline i64 value_index(i64 number, i64 d, i64 dim, i64 unit, bool is_chained) {
  const i64 key = place_of(number, is_chained);
  return key / unit * unit * dim + d / 16 * unit * 16 + key % unit / 2 * 32 + d % 16 * 2 + key % 2;
}

template <class T>
T* page(const Cache& cache, const HugeBuffer& buffer, i64 block, i64 head) {
  return buffer.as<T>() + block * cache.page_values() + head * cache.block_size * cache.dim_padded;
}

// Pads with zeros up to dim_padded: what lay there before is not to be multiplied.
template <class T>
void write_token(const Cache& cache, i64 slot, i64 head, const T* k, const T* v) {
  const i64 block = slot / cache.block_size, key = slot % cache.block_size, dim = cache.dim_padded;
  T *keys = page<T>(cache, cache.keys, block, head), *values = page<T>(cache, cache.values, block, head);
  for (i64 d = 0; d < dim; d++) {
    const bool is_pad = d >= cache.dim;
    keys[cache.unit ? key_index(key, d, dim, cache.is_chained) : key * dim + d] = is_pad ? T{0} : k[d];
    values[cache.unit ? value_index(key, d, dim, cache.unit, cache.is_chained) : key * dim + d] = is_pad ? T{0} : v[d];
  }
}

// x [dim] → whole numbers of −127 to 127, zeros up to dim_padded, and what they are multiplied by: the largest magnitude
// / 127, or NaN where a value is not finite.
template <class T>
float quantize(const T* x, i64 dim, i64 dim_padded, float* codes) {
  F16 peaks = set(0.0f), rests = set(0.0f);
  by_sixteen(dim, [&](i64 d, i64 n) {
    const F16 values = load_up_to(x + d, n);
    peaks = max(peaks, absolute(values));
    rests = add(rests, mul(values, set(0.0f)));
  });
  const float peak = largest(peaks);
  const bool is_finite = sum(rests) == 0.0f;
  std::memset(codes, 0, dim_padded * sizeof(float));
  if (!is_finite || peak < kLeastPeak) return is_finite ? 0.0f : __builtin_nanf("");
  const float scale = peak / 127.0f;
  by_sixteen(dim, [&](i64 d, i64 n) { store(codes + d, rint(div(load_up_to(x + d, n), set(scale)))); });
  return scale;
}

// Where value i of a tile lies among codes.
inline i64 code_place(i64 i) { return (i & ~i64{31}) | (i & 1) << 4 | (i >> 1 & 15); }

inline i64 scale_index(const Cache& cache, i64 block, i64 head, i64 key) {
  return (block * cache.num_heads + head) * cache.block_size + key;
}

template <class T>
void write_codes(const Cache& cache, i64 slot, i64 head, const T* k, const T* v) {
  const i64 block = slot / cache.block_size, key = slot % cache.block_size, dim = cache.dim_padded;
  const i64 number = scale_index(cache, block, head, key);
  i8 *keys = page<i8>(cache, cache.keys, block, head), *values = page<i8>(cache, cache.values, block, head);
  float codes[kMaxDim];
  cache.key_scales.as<float>()[number] = quantize(k, cache.dim, dim, codes);
  for (i64 d = 0; d < dim; d++)
    keys[cache.unit ? code_place(key_index(key, d, dim, cache.is_chained)) : key * dim + d] = static_cast<i8>(codes[d]);
  cache.value_scales.as<float>()[number] = quantize(v, cache.dim, dim, codes);
  for (i64 d = 0; d < dim; d++)
    values[cache.unit ? code_place(value_index(key, d, dim, cache.unit, cache.is_chained)) : key * dim + d] =
        static_cast<i8>(codes[d]);
}

template <class T>
void write_keys_and_values(const Attend& op, Team& team) {
  const Cache& cache = *op.cache;
  for_rows(team, op.step.num_tokens, 4 * cache.num_heads * cache.dim, [&](i64 t) {
    const i64 slot = op.step.slots[t];
    if (slot < 0) return;
    for (i64 h = 0; h < cache.num_heads; h++) {
      const T *k = op.k.row<T>(t) + h * cache.dim, *v = op.v.row<T>(t) + h * cache.dim;
      if (cache.has_codes) write_codes(cache, slot, h, k, v);
      else write_token(cache, slot, h, k, v);
    }
  });
}

// Up to kRows rows of one segment that share a key head.
struct RowBlock {
  i64 segment, head, first, count;  // rows [first, first + count) of the segment's length × fold
  i64 fold;                         // query heads per key head
  i64 num_keys;
  const i32* table;
  i64 start;  // the segment's first token in the step
  const Attend* op;

  i64 token(i64 r) const { return start + (first + r) / fold; }
  i64 query_head(i64 r) const { return head * fold + (first + r) % fold; }
  i64 position(i64 r) const { return op->step.positions[token(r)]; }
  i64 first_key(i64 r) const {
    const i64 key = op->window ? position(r) - op->window + 1 : 0;
    return key > 0 ? key : 0;
  }
  i64 end_key() const { return position(count - 1) + 1; }
};

// Running (max, sum, accumulator) of a block's rows.
struct Running {
  float best[kRows], total[kRows];
  float* sums;  // [kRows][dim padded]
};

// Scores of one row over a partition → weights e^(s − max), 0 where masked; gives the maximum and their sum.
template <class Put>
void softmax_row(const Attend& op, float* scores, i64 from, i64 to, i64 low, i64 high, float& best, float& total, Put put) {
  const F16 never = set(-__builtin_inff()), scale = set(op.scale);
  F16 top = never;
  for (i64 i = from; i < to; i += 16) {
    F16 s = mul(load(scores + i), scale);
    if (op.soft_cap > 0) s = mul(tanh(div(s, set(op.soft_cap))), set(op.soft_cap));
    s = keep(s, low - i, high - i, never);
    store(scores + i, s);
    top = max(top, s);
  }
  best = largest(top);
  const F16 peak = set(best), nothing = set(0.0f);
  F16 lanes = nothing;
  for (i64 i = from; i < to; i += 16) {
    const F16 e = keep(exp(sub(load(scores + i), peak)), low - i, high - i, nothing);
    lanes = add(lanes, e);
    put(i, e);
  }
  total = sum(lanes);
}

inline float exp_of(float x) {
  float lanes[16];
  store(lanes, exp(set(x)));
  return lanes[0];
}

// How the running and the new partition are weighted; moves the running max and sum.
struct Merge {
  float old_weight, new_weight;
};
inline Merge merge_row(Running& run, i64 r, float best, float total, bool is_first) {
  if (is_first) {
    run.best[r] = best;
    run.total[r] = total;
    return {0.0f, 1.0f};
  }
  const float top = run.best[r] > best ? run.best[r] : best;
  const Merge merge{exp_of(run.best[r] - top), exp_of(best - top)};
  run.total[r] = __builtin_fmaf(total, merge.new_weight, run.total[r] * merge.old_weight);
  run.best[r] = top;
  return merge;
}

inline void merge_sums(float* sums, const float* fresh, i64 count, Merge merge, bool is_first) {
  for (i64 d = 0; d < count; d += 16) {
    const F16 x = add(load(fresh + d), set(0.0f));
    if (is_first) store(sums + d, x);
    else store(sums + d, fma(x, set(merge.new_weight), mul(load(sums + d), set(merge.old_weight))));
  }
}

template <class T>
void write_rows(const RowBlock& block, const Running& run, i64 dim, i64 dim_padded) {
  for (i64 r = 0; r < block.count; r++) {
    T* out = block.op->out.row<T>(block.token(r)) + block.query_head(r) * dim;
    const F16 total = set(run.total[r]);
    by_sixteen(dim, [&](i64 d, i64 n) { store_up_to(out + d, div(load(run.sums + r * dim_padded + d), total), n); });
  }
}

// What a row sees of the partition from `start`: keys [low, high) relative to it.
struct Span {
  i64 low, high;
  bool is_empty() const { return high <= low; }
};
inline Span span_of(const RowBlock& block, i64 r, i64 start) {
  const i64 low = block.first_key(r) - start, end = block.position(r) + 1 - start;
  return {low > 0 ? low : 0, end < kPartition ? end : kPartition};
}

// Tiles of bf16, or of codes as they lie in their pages.
template <class Item>
struct KeyTiles {  // 32 keys in two halves of 16
  const Item* half[2];
  const Item* at(i64 k, int c, int p) const { return half[c] + k * 512 + p * 32; }
};
template <class Item>
struct ValueTiles {  // groups of 32 keys in two halves of 16, by 16 dims
  const Item* const (*halves)[2];
  i64 offset, step;
  const Item* at(i64 k, int c, int p) const { return halves[k][p / 8] + offset + c * step + p % 8 * 32; }
};

// Where the tiles of a partition are.
template <class Item>
struct Found {
  const Item* keys[kGroups][2];
  const Item* values[kGroups][2];
};

inline u16 as_bf16(u16 x) { return x; }
inline u16 as_bf16(i8 code) {
  const float x = code;
  u32 bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<u16>(bits >> 16);
}

inline void widen(const i8* codes, i64 count, u16* to) {
  for (i64 i = 0; i < count; i += 32) store_pair(to + i, load_even(codes + i), load_odd(codes + i));
}

// Item is what pages hold: u16, or i8 for codes.
template <class Dot, class Item>
struct TiledAttention {
  using Value = typename Dot::Value;
  static constexpr bool kHasCodes = std::is_same_v<Item, i8>;
  static constexpr bool kMultipliesCodes = std::is_same_v<typename Dot::Integers, Dot>;
  const Attend& op;
  const Cache& cache;
  const i64 dim, unit;  // padded dim; keys per tile of values, here never 0
  Value *queries, *weights;
  float *scores, *fresh;
  u16 *own_keys, *own_values;  // tiles put together where pages cannot be used as they lie
  float *key_scales, *value_scales;  // of a partition, where there are codes
  Running run;
  Found<u16> tiles;

  TiledAttention(const Attend& attend, Team& team)
      : op(attend), cache(*attend.cache), dim(cache.dim_padded), unit(cache.unit ? cache.unit : 32) {
    char* at = team.scratch();
    queries = take<Value>(at, kRows * dim);
    weights = take<Value>(at, kRows * kPartition);
    scores = take<float>(at, kRows * kPartition);
    fresh = take<float>(at, kRows * kColumns);
    run.sums = take<float>(at, kRows * dim);
    own_keys = take<u16>(at, kPartition * dim);
    own_values = take<u16>(at, kPartition * dim);
    key_scales = take<float>(at, kPartition);
    value_scales = take<float>(at, kPartition);
  }

  template <class U>
  static U* take(char*& at, i64 count) {
    U* here = reinterpret_cast<U*>(at);
    at += round_up(count * static_cast<i64>(sizeof(U)), 64);
    return here;
  }

  const Item* unit_at(const RowBlock& b, const HugeBuffer& buffer, i64 key) const {
    const i64 block = b.table[key / cache.block_size];
    return page<Item>(cache, buffer, block, b.head) + key % cache.block_size * dim;
  }

  // Values of group g in tiles of our own, zeros behind the last key: 0 × NaN is NaN.
  void assemble_values(const RowBlock& b, i64 start, i64 g) {
    u16* tile = own_values + g * kGroup * dim;
    for (i64 i = 0; i < kGroup; i++) {
      const i64 key = start + g * kGroup + i;
      const Item* row = key < b.num_keys ? unit_at(b, cache.values, key) : nullptr;
      for (i64 d = 0; d < dim; d++) tile[value_index(i, d, dim, unit, cache.is_chained)] = row ? as_bf16(row[d]) : 0;
    }
    tiles.values[g][0] = tile;
    tiles.values[g][1] = unit == 32 ? tile + 256 : tile + 16 * dim;
  }

  // The same where pages are tiles: only a tile that ends before its last key is copied.
  void cut_values(const RowBlock& b, i64 start, i64 g) {
    for (i64 first = 0; first < kGroup; first += unit) {
      const i64 key = start + g * kGroup + first, left = b.num_keys - key, num_keys = left < unit ? left : unit;
      u16* tile = own_values + (g * kGroup + first) * dim;
      const u16* from = left > 0 ? unit_at(b, cache.values, key) : nullptr;
      if (left <= 0) std::memset(tile, 0, unit * dim * sizeof(u16));
      else if (num_keys < unit) copy_keys(from, tile, num_keys);
      const u16* found = num_keys < unit ? tile : from;
      tiles.values[g][first ? 1 : 0] = found;
      if (unit == 32) tiles.values[g][1] = found + 256;
    }
  }

  // The first keys of a tile of values, zeros for the others; in memory two keys of a dimension are one word.
  void copy_keys(const u16* from, u16* to, i64 num_keys) const {
    const i64 pairs = unit / 2;
    u32 kept[kGroup / 2] = {};
    for (i64 key = 0; key < num_keys; key++) {
      const i64 place = place_of(key, cache.is_chained);
      kept[place / 2] |= place % 2 ? 0xffff0000u : 0xffffu;
    }
    for (i64 line = 0; line < dim / 16 * pairs; line++) {
      u32 words[16];
      std::memcpy(words, from + line * 32, sizeof words);
      for (u32& word : words) word &= kept[line % pairs];
      std::memcpy(to + line * 32, words, sizeof words);
    }
  }

  void assemble_keys(const RowBlock& b, i64 start, i64 g) {
    u16* tile = own_keys + g * kGroup * dim;
    for (i64 i = 0; i < kGroup; i++) {
      const i64 key = start + g * kGroup + i;
      const Item* row = key < b.num_keys ? unit_at(b, cache.keys, key) : nullptr;
      for (i64 d = 0; d < dim; d++) tile[key_index(i, d, dim, cache.is_chained)] = row ? as_bf16(row[d]) : 0;
    }
    tiles.keys[g][0] = tile;
    tiles.keys[g][1] = tile + 16 * dim;
  }

  // Tiles of group g as they lie in their pages. Behind the last key there may be none: any will do for the keys, whose
  // scores are masked, and for codes of values, which are finite whatever lies there.
  void find_pages(const RowBlock& b, i64 start, i64 g, Found<Item>& found) const {
    const i64 key = start + g * kGroup;
    const bool has_second = key + 16 < b.num_keys;
    found.keys[g][0] = unit_at(b, cache.keys, key);
    found.keys[g][1] = has_second ? unit_at(b, cache.keys, key + 16) : found.keys[g][0];
    found.values[g][0] = unit_at(b, cache.values, key);
    if (unit == 32) found.values[g][1] = found.values[g][0] + 256;
    else found.values[g][1] = has_second ? unit_at(b, cache.values, key + 16) : found.values[g][0];
  }

  void find_tiles(const RowBlock& b, i64 start, i64 g) {
    if (cache.unit == 0) {
      assemble_keys(b, start, g);
      return assemble_values(b, start, g);
    }
    if constexpr (kHasCodes) {
      widen_tiles_of(b, start, g);
    } else {
      find_pages(b, start, g, tiles);
      if (start + (g + 1) * kGroup > b.num_keys) cut_values(b, start, g);
    }
  }

  void widen_tiles_of(const RowBlock& b, i64 start, i64 g) {
    Found<Item> codes;
    find_pages(b, start, g, codes);
    u16 *own_key = own_keys + g * kGroup * dim, *own_value = own_values + g * kGroup * dim;
    for (int half = 0; half < 2; half++) {
      u16 *keys = own_key + half * 16 * dim, *values = own_value + half * 16 * dim;
      widen(codes.keys[g][half], 16 * dim, keys);
      widen(unit == 32 ? codes.values[g][0] + half * 16 * dim : codes.values[g][half], 16 * dim, values);
      tiles.keys[g][half] = keys;
      tiles.values[g][half] = unit == 32 ? own_value + half * 256 : values;
    }
  }

  // Of the keys [first, end) of the partition from `start`; others are masked.
  void gather_scales(const RowBlock& b, i64 start, i64 first, i64 end) {
    if (end > b.num_keys - start) end = b.num_keys - start;
    for (i64 i = first; i < end;) {
      const i64 key = start + i, within = key % cache.block_size;
      const i64 left = cache.block_size - within, count = left < end - i ? left : end - i;
      const i64 from = scale_index(cache, b.table[key / cache.block_size], b.head, within);
      std::memcpy(key_scales + i, cache.key_scales.as<float>() + from, count * sizeof(float));
      std::memcpy(value_scales + i, cache.value_scales.as<float>() + from, count * sizeof(float));
      i += count;
    }
  }

  template <class Any>
  void fetch_ahead(const Found<Any>& found, i64 g, i64 end) const {
    constexpr i64 kLine = 64 / sizeof(Any);
    for (int half = 0; half < 2; half++)
      for (i64 i = 0; i < 16 * dim; i += kLine) {
        if (g + 1 < end) prefetch(found.keys[g + 1][half] + i);
        if (unit == 16) prefetch(found.values[g][half] + i);
        else prefetch(found.values[g][0] + half * 16 * dim + i);
      }
  }

  // out [count][stride] = rows · tiles, as many rows at once as the dot product takes.
  template <class Tiles>
  void product(i64 count, const Value* a, i64 lda, const Tiles& tiles, i64 num_tiles, float* out, i64 stride) {
    Ahead ahead;
    for (i64 r = 0; r < count; r += Dot::kMaxRows) {
      const i64 rows = count - r < Dot::kMaxRows ? count - r : Dot::kMaxRows;
      Dot::panel(static_cast<int>(rows), a + r * lda, lda, tiles, num_tiles, ahead,
                 [&](i64 i, int c, F16 x) { store(out + (r + i) * stride + c * 16, x); });
    }
  }

  void load_queries(const RowBlock& b) {
    for (i64 r = 0; r < b.count; r++) {
      const u16* q = op.q.row<u16>(b.token(r)) + b.query_head(r) * cache.dim;
      for (i64 d = 0; d < dim; d += 16) {
        const i64 left = cache.dim - d;
        Dot::put(queries + r * dim + d, left >= 16 ? load_bf16(q + d) : left > 0 ? load_some(q + d, left) : set(0.0f));
      }
    }
  }

  // Few rows multiply codes as they lie; for many, these are written out as bf16 once.
  void partition(const RowBlock& b, i64 start, i64 first_group, i64 end_group) {
    if constexpr (kHasCodes) gather_scales(b, start, first_group * kGroup, end_group * kGroup);
    if constexpr (kHasCodes && kMultipliesCodes) {
      if (cache.unit && b.count <= Dot::kMaxRows) {
        Found<Item> codes;
        for (i64 g = first_group; g < end_group; g++) find_pages(b, start, g, codes);
        return compute(b, start, first_group, end_group, codes);
      }
    }
    for (i64 g = first_group; g < end_group; g++) find_tiles(b, start, g);
    compute(b, start, first_group, end_group, tiles);
  }

  // Scores of codes → scores of keys.
  void scale_scores(float* row, i64 from, i64 to) const {
    for (i64 i = from; i < to; i += 16) store(row + i, mul(load(row + i), load(key_scales + i)));
  }

  // A weight with the scale of its value, where there is one; a masked one stays 0 whatever the scale.
  F16 weight_of(F16 e, i64 i, const Span& span) const {
    if constexpr (kHasCodes) return keep(mul(e, load(value_scales + i)), span.low - i, span.high - i, set(0.0f));
    return e;
  }

  template <class Any>
  void compute(const RowBlock& b, i64 start, i64 first_group, i64 end_group, const Found<Any>& found) {
    for (i64 g = first_group; g < end_group; g++) {
      if (b.count <= 8) fetch_ahead(found, g, end_group);
      const KeyTiles<Any> keys{{found.keys[g][0], found.keys[g][1]}};
      product(b.count, queries, dim, keys, dim / 32, scores + g * kGroup, kPartition);
    }
    Merge merges[kRows];
    bool is_first[kRows], is_empty[kRows];
    for (i64 r = 0; r < b.count; r++) {
      const Span span = span_of(b, r, start);
      Value* row = weights + r * kPartition;
      float best = 0, total = 0;
      if constexpr (kHasCodes) scale_scores(scores + r * kPartition, first_group * kGroup, end_group * kGroup);
      softmax_row(op, scores + r * kPartition, first_group * kGroup, end_group * kGroup, span.low, span.high, best, total,
                  [&](i64 i, F16 e) { Dot::put(row + i, weight_of(e, i, span)); });
      is_empty[r] = span.is_empty();
      is_first[r] = run.total[r] < 0;
      if (!is_empty[r]) merges[r] = merge_row(run, r, best, total, is_first[r]);
    }
    for (i64 d = 0; d < dim; d += kColumns) {
      const ValueTiles<Any> values{found.values + first_group, d / 16 * unit * 16, unit * 16};
      product(b.count, weights + first_group * kGroup, kPartition, values, end_group - first_group, fresh, kColumns);
      for (i64 r = 0; r < b.count; r++)
        if (!is_empty[r]) merge_sums(run.sums + r * dim + d, fresh + r * kColumns, kColumns, merges[r], is_first[r]);
    }
  }

  void operator()(const RowBlock& b) {
    load_queries(b);
    for (i64 r = 0; r < b.count; r++) run.total[r] = -1;  // no partition yet
    const i64 first = b.first_key(0), end = b.end_key();
    for (i64 start = first / kPartition * kPartition; start < end; start += kPartition) {
      const i64 first_group = first > start ? (first - start) / kGroup : 0;
      const i64 left = ceil_div(end - start, kGroup);
      partition(b, start, first_group, left < kGroups ? left : kGroups);
    }
    write_rows<u16>(b, run, cache.dim, dim);
  }
};

// fp32: scores by the dot product of fp32 weights; each accumulator one FMA chain over the keys in order.
// Item is what pages hold: float, or i8 for codes, whose scales multiply as in TiledAttention.
template <class Item>
struct PlainAttention {
  static constexpr bool kHasCodes = std::is_same_v<Item, i8>;
  const Attend& op;
  const Cache& cache;
  const i64 dim;
  float *query, *key, *scores, *fresh;
  Running run;

  PlainAttention(const Attend& attend, Team& team) : op(attend), cache(*attend.cache), dim(cache.dim_padded) {
    query = reinterpret_cast<float*>(team.scratch());
    key = query + dim;
    scores = key + dim;
    fresh = scores + kPartition;
    run.sums = fresh + dim;
  }

  const Item* row(const RowBlock& b, const HugeBuffer& buffer, i64 number) const {
    return page<Item>(cache, buffer, b.table[number / cache.block_size], b.head) + number % cache.block_size * dim;
  }
  static F16 load_items(const float* p) { return load(p); }
  static F16 load_items(const i8* p) { return to_floats(load_bytes(p)); }

  const float* key_row(const RowBlock& b, i64 number) const {
    const Item* from = row(b, cache.keys, number);
    if constexpr (!kHasCodes) return from;
    for (i64 d = 0; d < dim; d += 16) store(key + d, load_items(from + d));
    return key;
  }

  float scaled(const RowBlock& b, float x, const HugeBuffer& scales, i64 number) const {
    if constexpr (!kHasCodes) return x;
    return x * scales.as<float>()[scale_index(cache, b.table[number / cache.block_size], b.head, number % cache.block_size)];
  }

  void one_row(const RowBlock& b, i64 r) {
    const float* q = op.q.row<float>(b.token(r)) + b.query_head(r) * cache.dim;
    for (i64 d = 0; d < dim; d++) query[d] = d < cache.dim ? q[d] : 0;
    run.total[r] = -1;
    for (i64 start = b.first_key(r) / kPartition * kPartition; start <= b.position(r); start += kPartition) {
      const Span span = span_of(b, r, start);
      for (i64 j = span.low; j < span.high; j++) {
        float dots[4];
        dots_f32<1, 1>(query, dim, key_row(b, start + j), dim, dim, dots);
        scores[j] = scaled(b, dots[0], cache.key_scales, start + j);
      }
      float best = 0, total = 0;
      softmax_row(op, scores, span.low / 16 * 16, round_up(span.high, 16), span.low, span.high, best, total,
                  [&](i64 i, F16 e) { store(scores + i, e); });
      const bool is_first = run.total[r] < 0;
      const Merge merge = merge_row(run, r, best, total, is_first);
      for (i64 j = span.low; j < span.high; j++) scores[j] = scaled(b, scores[j], cache.value_scales, start + j);
      for (i64 d = 0; d < dim; d += 16) {
        F16 x = set(0.0f);
        for (i64 j = span.low; j < span.high; j++)
          x = fma(set(scores[j]), load_items(row(b, cache.values, start + j) + d), x);
        store(fresh + d, x);
      }
      merge_sums(run.sums + r * dim, fresh, dim, merge, is_first);
    }
  }

  void operator()(const RowBlock& b) {
    for (i64 r = 0; r < b.count; r++) one_row(b, r);
    write_rows<float>(b, run, cache.dim, dim);
  }
};

// Walks the row blocks of a step in order; a thread's block numbers only rise.
class Blocks {
 public:
  explicit Blocks(const Attend& op) : op_(op), heads_(op.cache->num_heads), fold_(op.num_heads / heads_) {}

  i64 count() const {
    i64 total = 0;
    for (i64 s = 0; s < op_.step.num_segments; s++) total += in_segment(s);
    return total;
  }

  RowBlock at(i64 number) {
    while (number - before_ >= in_segment(segment_)) before_ += in_segment(segment_++);
    const i64 i = number - before_, start = op_.step.query_starts[segment_], rows = length(segment_) * fold_;
    const i64 first = i / heads_ * kRows;
    return {segment_, i % heads_, first, rows - first < kRows ? rows - first : kRows, fold_,
            op_.step.context_lens[segment_], op_.step.block_tables + segment_ * op_.step.table_width, start, &op_};
  }

 private:
  i64 length(i64 s) const { return op_.step.query_starts[s + 1] - op_.step.query_starts[s]; }
  i64 in_segment(i64 s) const { return ceil_div(length(s) * fold_, kRows) * heads_; }
  const Attend& op_;
  const i64 heads_, fold_;
  i64 segment_ = 0, before_ = 0;
};

template <class Attention>
void attend_by(const Attend& op, Team& team) {
  Blocks blocks(op);
  Attention run(op, team);
  team.for_each(blocks.count(), [&](i64 i) { run(blocks.at(i)); });
}

template <class Dot>
void attend(const Attend& op, Team& team) {
  FlushDenormals flush;
  const bool has_codes = op.cache->has_codes;
  if (op.cache->type == Type::f32) {
    write_keys_and_values<float>(op, team);
    return has_codes ? attend_by<PlainAttention<i8>>(op, team) : attend_by<PlainAttention<float>>(op, team);
  }
  write_keys_and_values<u16>(op, team);
  Dot::enter();
  has_codes ? attend_by<TiledAttention<Dot, i8>>(op, team) : attend_by<TiledAttention<Dot, u16>>(op, team);
  Dot::leave();
}

}  // namespace headrace::HEADRACE_NS
