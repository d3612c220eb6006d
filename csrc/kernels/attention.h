// attend: k and v to their pages, then each query over the keys of its sequence up to its own position.
//
// A row is one query head of one token; rows that share a key head lie behind one another and are taken kRows at a time,
// those of several segments together where they begin with the same pages. A row's result is a function of its query and its keys alone: keys in partitions of 512 from
// position 0, each with its own (max, sum, accumulator), merged in order. A masked key has weight 0, whether it is
// computed for a neighbour's sake or not; sums end with + 0 so that −0 cannot tell.
#pragma once

namespace headrace::HEADRACE_NS {

// Running (max, sum, accumulator) of a block's rows; the max as a power of 2.
struct Running {
  float *best, *total;  // [kRows]
  float* sums;          // [kRows][dim padded]
  Running from(i64 row, i64 dim) const { return {best + row, total + row, sums + row * dim}; }
};

// What a row sees of a partition: keys [low, high) relative to its start.
struct Span {
  i64 low, high;
  bool is_empty() const { return high <= low; }
  // Of the sixteen from i on, those that are not seen replaced by `other`.
  F16 keep_seen(F16 x, i64 i, F16 other) const {
    if (low <= i && i + 16 <= high) return x;
    return keep(x, low - i, high - i, other);
  }
};

// What a dot product is multiplied by to become a power of 2.
inline float power_factor(const Attend& op) { return (op.soft_cap > 0 ? 1.0f : op.scale) * 1.44269504088896341f; }

// Scores [from, to) capped in place; gives sixteen maxima of them.
HEADRACE_NOINLINE inline F16 cap_scores(float* scores, i64 from, i64 to, const Attend& op) {
  F16 top = set(-__builtin_inff());
  for (i64 i = from; i < to; i += 16) {
    const F16 s = mul(tanh(div(mul(load(scores + i), set(op.scale)), set(op.soft_cap))), set(op.soft_cap));
    store(scores + i, s);
    top = max(top, s);
  }
  return top;
}

// Scores → weights 2^(factor · score − best), 0 where masked, each given to put(i, weights); gives their sum.
template <class Put>
float softmax_row(const float* scores, i64 from, i64 to, const Span& span, float factor, float best, Put put) {
  constexpr int kAbreast = 4;
  const F16 scale = set(factor), peak = set(-best);
  F16 lanes = set(0.0f);
  auto take = [&](i64 i, F16 e) {
    e = span.keep_seen(e, i, set(0.0f));
    lanes = add(lanes, e);
    put(i, e);
  };
  i64 i = from;
  for (; i + 16 * kAbreast <= to; i += 16 * kAbreast) {
    F16 e[kAbreast];
    for (int n = 0; n < kAbreast; n++) e[n] = fma(load(scores + i + 16 * n), scale, peak);
    exp2_each(e);
    for (int n = 0; n < kAbreast; n++) take(i + 16 * n, e[n]);
  }
  for (; i < to; i += 16) {
    F16 e[1] = {fma(load(scores + i), scale, peak)};
    exp2_each(e);
    take(i, e[0]);
  }
  return sum(lanes);
}

// How the running and the new partition are weighted; moves the running max and sum.
struct Merge {
  float old_weight, new_weight;
};
inline Merge merge_row(const Running& run, i64 r, float best, float total, bool is_first) {
  if (is_first) {
    run.best[r] = best;
    run.total[r] = total;
    return {0.0f, 1.0f};
  }
  const float top = run.best[r] > best ? run.best[r] : best;
  const Merge merge{exp2_of(run.best[r] - top), exp2_of(best - top)};
  run.total[r] = __builtin_fmaf(total, merge.new_weight, run.total[r] * merge.old_weight);
  run.best[r] = top;
  return merge;
}

// Sixteen sums of a new partition to the running ones.
inline void merge_sums(float* sums, F16 fresh, Merge merge, bool is_first) {
  const F16 x = add(fresh, set(0.0f));
  store(sums, is_first ? x : fma(x, set(merge.new_weight), mul(load(sums), set(merge.old_weight))));
}

template <class T>
void write_rows(const RowBlock& block, const Running& run, i64 dim, i64 dim_padded) {
  for (i64 r = 0; r < block.count; r++) {
    T* out = block.op->out.row<T>(block.token(r)) + block.query_head(r) * dim;
    const F16 total = set(run.total[r]);
    by_sixteen(dim, [&](i64 d, i64 n) { store_up_to(out + d, div(load(run.sums + r * dim_padded + d), total), n); });
  }
}

inline Span span_of(const RowBlock& block, i64 r, i64 start) {
  const i64 low = block.first_key(r) - start, end = block.position(r) + 1 - start;
  return {low > 0 ? low : 0, end < kPartition ? end : kPartition};
}

// Tiles of bf16, or of codes as they lie in their pages.
template <class Item>
struct KeyTiles {  // 32 keys in two halves of 16
  static constexpr i64 kPair = 32;
  const Item* half[2];
  const Item* at(i64 k, int c, int h) const { return half[c] + k * 512 + h * 256; }
};
template <class Item>
struct ValueTiles {  // groups of 32 keys in two halves of 16, by 16 dims
  static constexpr i64 kPair = 32;
  const Item* const (*halves)[2];
  i64 offset, step;
  const Item* at(i64 k, int c, int h) const { return halves[k][h] + offset + c * step; }
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
  // From row to row: a line more than a partition, or the rows would crowd the same sets of the first cache.
  static constexpr i64 kScores = kPartition + 64 / sizeof(float), kWeights = kPartition + 64 / sizeof(Value);
  static constexpr bool kMultipliesCodes = std::is_same_v<typename Dot::Integers, Dot>;
  const Attend& op;
  const Cache& cache;
  const i64 dim, unit;  // padded dim; keys per tile of values, here never 0
  struct Rows {
    Value *queries, *weights;
    float *scores, *tops;  // of each row sixteen maxima of its scores
    Running run;
    Rows from(i64 row, i64 dim) const {
      return {queries + row * dim, weights + row * kWeights, scores + row * kScores, tops + row * 16, run.from(row, dim)};
    }
  } all_rows;
  u16 *own_keys, *own_values;  // tiles put together where pages cannot be used as they lie
  float *key_scales, *value_scales;  // of a partition, where there are codes
  Found<u16> tiles;
  PagesAhead pages;

  TiledAttention(const Attend& attend, Team& team)
      : op(attend), cache(*attend.cache), dim(cache.dim_padded), unit(cache.unit ? cache.unit : 32), pages(attend, sizeof(Item)) {
    char* at = team.scratch();
    all_rows.queries = take<Value>(at, kRows * dim);
    all_rows.weights = take<Value>(at, kRows * kWeights);
    all_rows.scores = take<float>(at, kRows * kScores);
    all_rows.tops = take<float>(at, kRows * 16);
    all_rows.run = {take<float>(at, kRows), take<float>(at, kRows), take<float>(at, kRows * dim)};
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

  const Item* unit_at(const RowBlock& b, const Pages& from, i64 key) const {
    const i64 block = b.table[key / cache.block_size];
    return page<Item>(cache, from, block, b.head) + key % cache.block_size * dim;
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
      const i64 block = b.table[key / cache.block_size];
      std::memcpy(key_scales + i, scales_of(cache, cache.key_scales, block, b.head) + within, count * sizeof(float));
      std::memcpy(value_scales + i, scales_of(cache, cache.value_scales, block, b.head) + within, count * sizeof(float));
      i += count;
    }
  }

  // Rows · tiles, as many rows at once as the dot product takes; put(r, left, right) as its panels give them. What it needs,
  // `put` holds by value: what lies behind a pointer would be read again after each of its stores.
  template <class Tiles, class Fetch, class Put>
  static void product(i64 count, const Value* a, i64 lda, const Tiles& tiles, i64 num_tiles, Fetch& ahead, Put put) {
    constexpr i64 kAtOnce = Dot::template kMaxRows<Tiles>;
    for (i64 r = 0; r < count; r += kAtOnce) {
      const i64 rows = count - r < kAtOnce ? count - r : kAtOnce;
      ahead.fetch_before(num_tiles);
      Dot::panel(static_cast<int>(rows), a + r * lda, lda, tiles, num_tiles, ahead,
                 [put, r](i64 i, F16 left, F16 right) HEADRACE_INLINE_LAMBDA { put(r + i, left, right); });
    }
  }

  void load_queries(const RowBlock& b) {
    for (i64 r = 0; r < b.count; r++) {
      const u16* q = op.q.row<u16>(b.token(r)) + b.query_head(r) * cache.dim;
      for (i64 d = 0; d < dim; d += 16) {
        const i64 left = cache.dim - d;
        Dot::put(all_rows.queries + r * dim + d, left >= 16 ? load_bf16(q + d) : left > 0 ? load_some(q + d, left) : set(0.0f));
      }
    }
  }

  // Few rows multiply codes as they lie; for many, these are written out as bf16 once.
  void partition(const RowBlock& b, const Rows& rows, i64 start, i64 first_group, i64 end_group) {
    if constexpr (kHasCodes) gather_scales(b, start, first_group * kGroup, end_group * kGroup);
    if constexpr (kHasCodes && kMultipliesCodes) {
      if (cache.unit && b.count <= Dot::template kMaxRows<KeyTiles<i8>>) {
        Found<Item> codes;
        for (i64 g = first_group; g < end_group; g++) find_pages(b, start, g, codes);
        return compute(b, rows, start, first_group, end_group, codes);
      }
    }
    for (i64 g = first_group; g < end_group; g++) find_tiles(b, start, g);
    compute(b, rows, start, first_group, end_group, tiles);
  }

  // A weight with the scale of its value, where there is one; a masked one stays 0 whatever the scale.
  F16 weight_of(F16 e, i64 i, const Span& span) const {
    if constexpr (kHasCodes) return span.keep_seen(mul(e, load(value_scales + i)), i, set(0.0f));
    return e;
  }

  // Scores of the keys of group g, −inf for those that are not seen where `IsMasked`.
  template <bool IsMasked, class Any>
  void score_group(const RowBlock& b, const Rows& rows, i64 g, const Found<Any>& found, const Span* spans) {
    const KeyTiles<Any> keys{{found.keys[g][0], found.keys[g][1]}};
    const i64 first = g * kGroup;
    auto put = [=, to = rows.scores + first, top = rows.tops, factors = key_scales + first](i64 r, F16 left, F16 right) HEADRACE_INLINE_LAMBDA {
      if constexpr (kHasCodes) {
        left = mul(left, load(factors));
        right = mul(right, load(factors + 16));
      }
      if constexpr (IsMasked) {
        left = spans[r].keep_seen(left, first, set(-__builtin_inff()));
        right = spans[r].keep_seen(right, first + 16, set(-__builtin_inff()));
      }
      store(to + r * kScores, left);
      store(to + r * kScores + 16, right);
      store(top + r * 16, max(load(top + r * 16), max(left, right)));
    };
    FetchedBefore ahead{pages};
    product(b.count, rows.queries, dim, keys, dim / 32, ahead, put);
  }

  template <class Any>
  void compute(const RowBlock& b, const Rows& rows, i64 start, i64 first_group, i64 end_group, const Found<Any>& found) {
    Span spans[kRows];
    Span common{0, kPartition};  // what all rows see
    for (i64 r = 0; r < b.count; r++) {
      spans[r] = span_of(b, r, start);
      common = {spans[r].low > common.low ? spans[r].low : common.low, spans[r].high < common.high ? spans[r].high : common.high};
      store(rows.tops + r * 16, set(-__builtin_inff()));
    }
    for (i64 g = first_group; g < end_group; g++) {
      if (common.low <= g * kGroup && (g + 1) * kGroup <= common.high) score_group<false>(b, rows, g, found, spans);
      else score_group<true>(b, rows, g, found, spans);
    }
    const float factor = power_factor(op);
    Merge merges[kRows];
    bool is_first[kRows];
    for (i64 r = 0; r < b.count; r++) {
      Value* row = rows.weights + r * kWeights;
      float* scores = rows.scores + r * kScores;
      const i64 from = first_group * kGroup, to = end_group * kGroup;
      const F16 tops = op.soft_cap > 0 ? cap_scores(scores, from, to, op) : load(rows.tops + r * 16);
      const float best = largest(tops) * factor;
      const float total = softmax_row(scores, from, to, spans[r], factor, best,
                                      [&](i64 i, F16 e) { Dot::put(row + i, weight_of(e, i, spans[r])); });
      is_first[r] = rows.run.total[r] < 0;
      if (!spans[r].is_empty()) merges[r] = merge_row(rows.run, r, best, total, is_first[r]);
    }
    for (i64 d = 0; d < dim; d += kColumns) {
      const ValueTiles<Any> values{found.values + first_group, d / 16 * unit * 16, unit * 16};
      auto put = [seen = +spans, how = +merges, first = +is_first, to = rows.run.sums + d, stride = dim](i64 r, F16 left, F16 right) HEADRACE_INLINE_LAMBDA {
        if (seen[r].is_empty()) return;
        merge_sums(to + r * stride, left, how[r], first[r]);
        merge_sums(to + r * stride + 16, right, how[r], first[r]);
      };
      product(b.count, rows.weights + first_group * kGroup, kWeights, values, end_group - first_group, pages, put);
    }
  }

  // Whose keys a row block goes over: block `number`'s, of a thread that goes on with those up to `end`.
  struct Turn {
    i64 number, member, end;
  };

  // Keys [first, end) for all rows of a block, or of a member.
  void go_over(const RowBlock& b, const Rows& rows, i64 first, i64 end, const Turn& turn) {
    for (i64 start = first / kPartition * kPartition; start < end; start += kPartition) {
      const i64 first_group = first > start ? (first - start) / kGroup : 0;
      const i64 left = ceil_div(end - start, kGroup);
      pages.follow(turn.number, turn.member, start + kPartition, turn.end, b.count, Dot::template kMaxRows<KeyTiles<u16>>);
      partition(b, rows, start, first_group, left < kGroups ? left : kGroups);
    }
  }

  void operator()(const RowBlock& b, i64 number, i64 end_number) {
    b.template write_keys<u16>();
    load_queries(b);
    for (i64 r = 0; r < b.count; r++) all_rows.run.total[r] = -1;  // no partition yet
    const bool is_stack = b.num_members > 1;
    if (is_stack) go_over(b, all_rows, 0, b.shared_keys, {number, PagesAhead::kShared, end_number});
    for (i64 m = 0; m < b.num_members; m++) {
      const RowBlock member = b.member(m);
      const i64 first = is_stack ? b.shared_keys : member.first_key(0);
      go_over(member, all_rows.from(m * b.fold, dim), first, member.end_key(), {number, m, end_number});
    }
    write_rows<u16>(b, all_rows.run, cache.dim, dim);
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
  float *query, *key, *scores;
  Running run;

  PlainAttention(const Attend& attend, Team& team) : op(attend), cache(*attend.cache), dim(cache.dim_padded) {
    query = reinterpret_cast<float*>(team.scratch());
    key = query + dim;
    scores = key + dim;
    float* room = scores + kPartition;
    run = {room, room + kRows, room + 2 * kRows};
  }

  const Item* row(const RowBlock& b, const Pages& from, i64 number) const {
    return page<Item>(cache, from, b.table[number / cache.block_size], b.head) + number % cache.block_size * dim;
  }
  static F16 load_items(const float* p) { return load(p); }
  static F16 load_items(const i8* p) { return to_floats(load_bytes(p)); }

  const float* key_row(const RowBlock& b, i64 number) const {
    const Item* from = row(b, cache.keys, number);
    if constexpr (!kHasCodes) return from;
    for (i64 d = 0; d < dim; d += 16) store(key + d, load_items(from + d));
    return key;
  }

  float scaled(const RowBlock& b, float x, const Pages& scales, i64 number) const {
    if constexpr (!kHasCodes) return x;
    return x * scales_of(cache, scales, b.table[number / cache.block_size], b.head)[number % cache.block_size];
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
      const i64 from = span.low / 16 * 16, to = round_up(span.high, 16);
      F16 top = set(-__builtin_inff());
      for (i64 i = from; i < to; i += 16) {
        const F16 s = span.keep_seen(load(scores + i), i, set(-__builtin_inff()));
        store(scores + i, s);
        top = max(top, s);
      }
      if (op.soft_cap > 0) top = cap_scores(scores, from, to, op);
      const float factor = power_factor(op), best = largest(top) * factor;
      const float total = softmax_row(scores, from, to, span, factor, best, [&](i64 i, F16 e) { store(scores + i, e); });
      const bool is_first = run.total[r] < 0;
      const Merge merge = merge_row(run, r, best, total, is_first);
      for (i64 j = span.low; j < span.high; j++) scores[j] = scaled(b, scores[j], cache.value_scales, start + j);
      for (i64 d = 0; d < dim; d += 16) {
        F16 x = set(0.0f);
        for (i64 j = span.low; j < span.high; j++)
          x = fma(set(scores[j]), load_items(row(b, cache.values, start + j) + d), x);
        merge_sums(run.sums + r * dim + d, x, merge, is_first);
      }
    }
  }

  void operator()(const RowBlock& b, i64, i64) {
    b.template write_keys<float>();
    for (i64 r = 0; r < b.count; r++) one_row(b, r);
    write_rows<float>(b, run, cache.dim, dim);
  }
};

template <class Attention>
void attend_by(const Attend& op, Team& team) {
  Blocks blocks(op);
  Attention run(op, team);
  team.for_each_in_ranges(blocks.count(), [&](i64 i, i64 end) { run(blocks.at(i), i, end); });
}

template <class Dot>
void attend(const Attend& op, Team& team) {
  FlushDenormals flush;
  const bool has_codes = op.cache->has_codes;
  if (op.cache->type == Type::f32) {
    write_ahead<float>(op, team);
    return has_codes ? attend_by<PlainAttention<i8>>(op, team) : attend_by<PlainAttention<float>>(op, team);
  }
  write_ahead<u16>(op, team);
  Dot::enter();
  has_codes ? attend_by<TiledAttention<Dot, i8>>(op, team) : attend_by<TiledAttention<Dot, u16>>(op, team);
  Dot::leave();
}

}  // namespace headrace::HEADRACE_NS
