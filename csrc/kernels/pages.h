// Pages of keys and values: where a token's lie, who reads which of them, and what is fetched before it is read.
#pragma once
#include <algorithm>
#include <type_traits>

namespace headrace::HEADRACE_NS {

constexpr i64 kRows = 32;
constexpr i64 kGroup = kTileK;  // keys per tile
constexpr i64 kGroups = kPartition / kGroup;
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
T* page(const Cache& cache, const Pages& pages, i64 block, i64 head) {
  return pages.at<T>(block) + head * cache.block_size * cache.dim_padded;
}

// Two places of a key's tile are a word. In a tile of values, a word is two keys', of which another thread may just be
// writing the other one.
inline void write_to_tiles(const Cache& cache, i64 key, u16* keys, u16* values, const u16* k, const u16* v) {
  const i64 dim = cache.dim_padded, first = cache.is_chained ? 2 : 0, second = cache.is_chained ? 0 : 1;
  const i64 step = cache.is_chained ? 1 : 2;  // from a group's first pair to its second
  for (i64 d = 0; d < dim; d += 4) {
    u16 four[4] = {};
    if (d < cache.dim) std::memcpy(four, k + d, (cache.dim - d < 4 ? cache.dim - d : 4) * sizeof(u16));
    const u32 pairs[2] = {u32{four[first]} | u32{four[second]} << 16, u32{four[first + step]} | u32{four[second + step]} << 16};
    for (i64 p = 0; p < 2; p++)
      std::memcpy(keys + key / 16 * 16 * dim + d / 32 * 512 + (d % 32 / 2 + p) * 32 + key % 16 * 2, &pairs[p], sizeof(u32));
  }
  for (i64 d = 0; d < dim; d += 16) {
    const i64 left = cache.dim - d;
    const F16 fresh = left >= 16 ? load_bf16(v + d) : left > 0 ? load_some(v + d, left) : set(0.0f);
    store_every_other(values + value_index(key, d, dim, cache.unit, cache.is_chained), fresh);
  }
}

// Up to 32 dimensions of a key in the order of a tile, zeros behind the last.
inline void in_places(const u16* from, i64 count, bool is_chained, u16* to) {
  u16 all[32] = {};
  if (count < 32) from = static_cast<u16*>(std::memcpy(all, from, count * sizeof(u16)));
  for (i64 d = 0; d < 32; d += 4) {
    u64 four;
    std::memcpy(&four, from + d, sizeof four);
    if (is_chained) four = (four >> 32 & 0xffff) | (four & 0xffff) << 16 | four >> 48 << 32 | (four >> 16 & 0xffff) << 48;
    std::memcpy(to + d, &four, sizeof four);
  }
}

// Sixteen keys that fill a tile; a row of k lies behind another by `k_stride`, one of v by `v_stride`.
inline void write_tile(const Cache& cache, i64 key, u16* keys, u16* values, const u16* k, i64 k_stride, const u16* v, i64 v_stride) {
  const i64 dim = cache.dim_padded;
  for (i64 d = 0; d < cache.dim; d += 32) {
    I16 words[16];
    for (i64 i = 0; i < 16; i++) {
      u16 line[32];
      in_places(k + i * k_stride + d, cache.dim - d < 32 ? cache.dim - d : 32, cache.is_chained, line);
      words[i] = load_words(reinterpret_cast<const i32*>(line));
    }
    transpose(words);
    i32* to = reinterpret_cast<i32*>(keys + key * dim + d / 32 * 512);
    for (i64 p = 0; p < 16; p++) store_words(to + p * 16, words[p]);
  }
  const i64 order[4] = {place_of(0, cache.is_chained), place_of(1, cache.is_chained), place_of(2, cache.is_chained),
                        place_of(3, cache.is_chained)};
  i64 at[4];  // which of four keys lies in a place
  for (i64 i = 0; i < 4; i++) at[order[i]] = i;
  for (i64 d = 0; d < dim; d += 16) {
    const i64 left = cache.dim - d;
    u16* to = values + key / cache.unit * cache.unit * dim + d * cache.unit + key % cache.unit / 2 * 32;
    auto load_at = [&](i64 i) {
      const u16* from = v + (i / 4 * 4 + at[i % 4]) * v_stride + d;
      return left >= 16 ? load_bf16(from) : left > 0 ? load_some(from, left) : set(0.0f);
    };
    for (i64 i = 0; i < 16; i += 2) store_pair(to + i * 16, load_at(i), load_at(i + 1));
  }
}

// Pads with zeros up to dim_padded: what lay there before is not to be multiplied.
template <class T>
void write_token(const Cache& cache, i64 slot, i64 head, const T* k, const T* v) {
  const i64 block = slot / cache.block_size, key = slot % cache.block_size, dim = cache.dim_padded;
  T *keys = page<T>(cache, cache.keys, block, head), *values = page<T>(cache, cache.values, block, head);
  if constexpr (std::is_same_v<T, u16>) {
    if (cache.unit) return write_to_tiles(cache, key, keys, values, k, v);
  }
  for (i64 d = 0; d < dim; d++) {
    keys[key * dim + d] = d < cache.dim ? k[d] : T{0};
    values[key * dim + d] = d < cache.dim ? v[d] : T{0};
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

inline float* scales_of(const Cache& cache, const Pages& scales, i64 block, i64 head) {
  return scales.at<float>(block) + head * cache.block_size;
}

template <class T>
void write_codes(const Cache& cache, i64 slot, i64 head, const T* k, const T* v) {
  const i64 block = slot / cache.block_size, key = slot % cache.block_size, dim = cache.dim_padded;
  i8 *keys = page<i8>(cache, cache.keys, block, head), *values = page<i8>(cache, cache.values, block, head);
  float codes[kMaxDim];
  scales_of(cache, cache.key_scales, block, head)[key] = quantize(k, cache.dim, dim, codes);
  for (i64 d = 0; d < dim; d++)
    keys[cache.unit ? code_place(key_index(key, d, dim, cache.is_chained)) : key * dim + d] = static_cast<i8>(codes[d]);
  scales_of(cache, cache.value_scales, block, head)[key] = quantize(v, cache.dim, dim, codes);
  for (i64 d = 0; d < dim; d++)
    values[cache.unit ? code_place(value_index(key, d, dim, cache.unit, cache.is_chained)) : key * dim + d] =
        static_cast<i8>(codes[d]);
}

// Whether tokens [t, t + 16) of a step fill a tile of keys that are kept as they come.
inline bool fill_tile(const Attend& op, i64 t, i64 end) {
  constexpr i64 kTile = 16;
  const i64* slots = op.step.slots;
  if (op.cache->unit == 0 || op.cache->has_codes || t + kTile > end || slots[t] < 0 || slots[t] % kTile != 0) return false;
  for (i64 i = 1; i < kTile; i++)
    if (slots[t + i] != slots[t] + i) return false;
  return true;
}

template <class T>
void write_at(const Attend& op, i64 t, i64 head) {
  const Cache& cache = *op.cache;
  const i64 slot = op.step.slots[t];
  if (slot < 0) return;
  const T *k = op.k.row<T>(t) + head * cache.dim, *v = op.v.row<T>(t) + head * cache.dim;
  if (cache.has_codes) write_codes(cache, slot, head, k, v);
  else write_token(cache, slot, head, k, v);
}

// The first token of a segment whose result is wanted.
inline i64 first_wanted(const Step& step, i64 s) {
  return step.query_starts[s] + (step.first_wanted ? step.first_wanted[s] : 0);
}

// Whether one row block per key head is all that reads the key of a step's segment: it then writes it, too. A key that
// fills its block may be read in the same step by another sequence that begins alike.
inline bool is_alone(const Attend& op, i64 s) {
  const Step& step = op.step;
  const i64 t = step.query_starts[s], block_size = op.cache->block_size;
  return step.query_starts[s + 1] - t == 1 && first_wanted(step, s) == t && step.slots[t] % block_size != block_size - 1 &&
         op.num_heads / op.cache->num_heads <= kRows;
}

// Keys and values of all other segments, before anybody reads them.
template <class T>
void write_ahead(const Attend& op, Team& team) {
  constexpr i64 kRun = 16;
  const Step& step = op.step;
  const Cache& cache = *op.cache;
  i64 first = 0;
  while (first < step.num_segments && is_alone(op, first)) first++;
  if (first == step.num_segments) return;
  auto write_run = [&](i64 t, i64 end) {
    i64 s = std::upper_bound(step.query_starts, step.query_starts + step.num_segments, static_cast<i32>(t)) - step.query_starts - 1;
    while (t < end) {
      while (step.query_starts[s + 1] <= t) s++;
      if (is_alone(op, s)) {
        t++;
        continue;
      }
      if constexpr (std::is_same_v<T, u16>) {
        if (fill_tile(op, t, end)) {
          const i64 block = step.slots[t] / cache.block_size, key = step.slots[t] % cache.block_size;
          for (i64 h = 0; h < cache.num_heads; h++)
            write_tile(cache, key, page<u16>(cache, cache.keys, block, h), page<u16>(cache, cache.values, block, h),
                       op.k.row<u16>(t) + h * cache.dim, op.k.stride, op.v.row<u16>(t) + h * cache.dim, op.v.stride);
          t += 16;
          continue;
        }
      }
      for (i64 h = 0; h < cache.num_heads; h++) write_at<T>(op, t, h);
      t++;
    }
  };
  team.for_each(ceil_div(step.num_tokens, kRun), [&](i64 i) {
    write_run(i * kRun, (i + 1) * kRun < step.num_tokens ? (i + 1) * kRun : step.num_tokens);
  });
}

// Up to kRows rows that share a key head: of one segment, or of several that are one token long each and begin with the
// same pages, so that these are read once for all of them.
struct RowBlock {
  i64 segment, head, first, count;  // rows [first, first + count) of the segment's length × fold
  i64 fold;                         // query heads per key head
  i64 num_keys;
  const i32* table;
  i64 start;  // the token in the step that row 0 of the segment belongs to
  const Attend* op;
  i64 num_members, shared_keys;  // segments, and keys that all of them share if there are several

  i64 token(i64 r) const { return start + (first + r) / fold; }
  i64 query_head(i64 r) const { return head * fold + (first + r) % fold; }
  i64 position(i64 r) const { return op->step.positions[token(r)]; }
  i64 first_key(i64 r) const {
    const i64 key = op->window ? position(r) - op->window + 1 : 0;
    return key > 0 ? key : 0;
  }
  i64 end_key() const { return position(count - 1) + 1; }

  template <class T>
  void write_keys() const {
    for (i64 m = 0; m < num_members; m++)
      if (is_alone(*op, segment + m)) write_at<T>(*op, start + m, head);
  }

  RowBlock member(i64 m) const {
    if (num_members == 1) return *this;
    const Step& step = op->step;
    return {segment + m, head, 0, fold, fold, step.context_lens[segment + m],
            step.block_tables + (segment + m) * step.table_width, start + m, op, 1, 0};
  }
};

// The row blocks of a step by number. Quick where numbers rise.
class Blocks {
 public:
  explicit Blocks(const Attend& op)
      : op_(op), heads_(op.cache->num_heads), fold_(op.num_heads / heads_),
        can_stack_(op.window == 0 && op.cache->unit != 0 && kPartition % op.cache->block_size == 0) {
    stack();
  }

  i64 count() {
    while (segment_ < op_.step.num_segments) pass();
    return before_;
  }

  RowBlock at(i64 number) {
    if (number < before_) {
      segment_ = before_ = 0;
      stack();
    }
    while (number - before_ >= in_stack()) pass();
    const i64 i = number - before_, rows = num_rows(), first = i / heads_ * kRows;
    return {segment_, i % heads_, first, rows - first < kRows ? rows - first : kRows, fold_, op_.step.context_lens[segment_],
            table(segment_), first_wanted(op_.step, segment_), &op_, members_, shared_partitions_ * kPartition};
  }

 private:
  // Tokens of a segment whose results are wanted.
  i64 length(i64 s) const { return op_.step.query_starts[s + 1] - first_wanted(op_.step, s); }
  const i32* table(i64 s) const { return op_.step.block_tables + s * op_.step.table_width; }
  i64 num_rows() const { return (members_ > 1 ? members_ : length(segment_)) * fold_; }
  i64 in_stack() const { return ceil_div(num_rows(), kRows) * heads_; }

  void pass() {
    before_ += in_stack();
    segment_ += members_;
    stack();
  }

  // Of up to `limit` partitions, how many two segments begin with alike.
  i64 common_partitions(i64 a, i64 b, i64 limit) const {
    const i64 per_partition = kPartition / op_.cache->block_size, seen = op_.step.context_lens[b] / kPartition;
    if (seen < limit) limit = seen;
    for (i64 i = 0; i < limit * per_partition; i++)
      if (table(a)[i] != table(b)[i]) return i / per_partition;
    return limit;
  }

  // How many segments from the present one on go together: as many as share no less than the first two.
  void stack() {
    members_ = 1;
    shared_partitions_ = 0;
    const i64 first = segment_, end = op_.step.num_segments;
    if (!can_stack_ || first >= end || !is_alone(op_, first)) return;
    i64 shared = op_.step.context_lens[first] / kPartition;
    for (i64 s = first + 1; s < end && is_alone(op_, s) && (members_ + 1) * fold_ <= kRows; s++, members_++) {
      const i64 common = common_partitions(first, s, shared);
      if (common == 0 || (members_ > 1 && common < shared)) break;
      shared = common;
    }
    if (members_ > 1) shared_partitions_ = shared;
  }

  const Attend& op_;
  const i64 heads_, fold_;
  const bool can_stack_;
  i64 segment_ = 0, before_ = 0, members_ = 1, shared_partitions_ = 0;
};

// Brings pages into the second cache at the rate at which others are used up: while a row block's partition is computed,
// those of its next one, or of the row block that this thread is to take then.
class PagesAhead {
 public:
  PagesAhead(const Attend& op, i64 item_bytes)
      : cache_(*op.cache), unit_bytes_(kKeys * op.cache->dim_padded * item_bytes), tile_lines_(kGroup * item_bytes / 2), blocks_(op) {}

  static constexpr i64 kShared = -1;  // the member that stands for all: their shared keys come first

  // From now on what lies behind `key` of a member of block `number`, in blocks before `end`. Of one segment, many rows
  // are no faster than memory.
  void follow(i64 number, i64 member, i64 key, i64 end, i64 num_rows, i64 rows_at_once) {
    constexpr i64 kFewRows = 8;
    const bool is_slow = num_rows > kFewRows && member != kShared;
    lines_per_tile_ = cache_.unit == 0 || is_slow ? 0 : ceil_div(tile_lines_, ceil_div(num_rows, rows_at_once));
    end_ = end;
    if (lines_per_tile_ == 0 || number_ > number) return;
    if (number_ == number && (member_ > member || (member_ == member && key_ >= key))) return;
    go_to(number);
    if (member != kShared) take(member);
    key_ = key;
    at_ = unit_end_ = nullptr;
    are_values_ = false;
  }

  HEADRACE_INLINE void fetch() {
    for (i64 i = 0; i < lines_per_tile_; i++, at_ += 64) {
      if (at_ == unit_end_ && !advance()) return;
      prefetch_far(at_);
    }
  }
  void fetch_before(i64) {}

 private:
  static constexpr i64 kKeys = 16;

  void go_to(i64 number) {
    number_ = number;
    block_ = current_ = blocks_.at(number);
    member_ = kShared;
    key_ = 0;
    end_key_ = block_.shared_keys;
    if (block_.num_members == 1) take(0);
  }

  void take(i64 member) {
    member_ = member;
    current_ = block_.member(member);
    key_ = block_.num_members == 1 ? current_.first_key(0) / kGroup * kGroup : block_.shared_keys;
    end_key_ = current_.end_key();
  }

  // Keys and values of sixteen keys take turns.
  HEADRACE_NOINLINE bool advance() {
    if (number_ >= end_) return false;
    while (key_ >= end_key_) {
      if (member_ + 1 < block_.num_members) take(member_ + 1);
      else if (number_ + 1 < end_) go_to(number_ + 1);
      else return false;
    }
    const i64 block = current_.table[key_ / cache_.block_size];
    const i64 number = current_.head * cache_.block_size + key_ % cache_.block_size;
    at_ = (are_values_ ? cache_.values : cache_.keys).at<char>(block) + number / kKeys * unit_bytes_;
    unit_end_ = at_ + unit_bytes_;
    if (cache_.has_codes) prefetch_far((are_values_ ? cache_.value_scales : cache_.key_scales).at<float>(block) + number);
    if (are_values_) key_ += kKeys;
    are_values_ = !are_values_;
    return true;
  }

  const Cache& cache_;
  i64 unit_bytes_, tile_lines_, lines_per_tile_ = 0;
  Blocks blocks_;
  RowBlock block_{}, current_{};
  i64 number_ = -1, member_ = 0, key_ = 0, end_key_ = 0, end_ = 0;
  bool are_values_ = false;
  const char *at_ = nullptr, *unit_end_ = nullptr;
};

// The same before a panel rather than with its tiles: there are few, and its registers are short.
struct FetchedBefore {
  PagesAhead& pages;
  void fetch_before(i64 num_tiles) {
    for (i64 k = 0; k < num_tiles; k++) pages.fetch();
  }
  HEADRACE_INLINE void fetch() {}
};

}  // namespace headrace::HEADRACE_NS
