// linear: [rows, k] · packed [n, k] + bias → [rows, n]. K in segments of 1,024 summed in order.
#pragma once
#include <type_traits>

namespace headrace::HEADRACE_NS {

// Rounds to bf16 what is not.
template <class Dot, class T>
void widen_row(const T* from, i64 k, i64 k_padded, typename Dot::Value* row) {
  by_sixteen(k_padded, [&](i64 i, i64) {
    if (i + 16 <= k) return Dot::put(row + i, load_any(from + i));
    Dot::put(row + i, i < k ? load_some(from + i, k - i) : set(0.0f));
  });
}

// Rows [first, first + count) of x as the dot product takes them, [count][stride], zeros behind k.
template <class Dot>
void widen_rows(const View& x, i64 first, i64 count, i64 k, i64 k_padded, typename Dot::Value* to, i64 stride) {
  for (i64 r = 0; r < count; r++) {
    if (x.type == Type::f32) widen_row<Dot>(x.row<float>(first + r), k, k_padded, to + r * stride);
    else widen_row<Dot>(x.row<u16>(first + r), k, k_padded, to + r * stride);
  }
}

// Rows of x as the kernel takes them, and for integers with a minimum the sums of their groups.
template <class Dot>
struct Rows {
  const typename Dot::Value* values;  // [count][stride]
  i64 stride;
  const float* sums;  // [count][groups]
  i64 first, count;
};
constexpr i64 kRowsPerBlock = 96;

// Tiles [first, first + count) of K of a column block: at most a segment.
struct Segment {
  i64 column_block, first, count;
};

inline Groups groups_of(const PackedWeight& w, const Segment& s, const float* sums) {
  const i64 num_groups = w.k_padded / w.group, first = s.first * kTileK / w.group;
  const char* scales = w.scales.as<char>() + (s.column_block * num_groups + first) * w.group_bytes();
  return {scales, w.group_bytes(), w.has_minimum ? kColumns * w.scale_bytes() : 0, w.is_half, w.group < kTileK,
          sums + first, num_groups};
}

inline const char* bytes_of(const PackedWeight& w, const Segment& s) {
  return w.data.as<char>() + (s.column_block * w.k_padded / kTileK + s.first) * w.tile_bytes();
}

template <int Bits>
IntTiles<Bits> int_tiles(const PackedWeight& w, const Segment& s, const float* sums) {
  return {reinterpret_cast<const i32*>(bytes_of(w, s)), groups_of(w, s, sums)};
}

template <class Dot>
i64 rows_at_once(const PackedWeight& w) {
  if (w.bits == 0) return Dot::template kMaxRows<DenseTiles>;
  return w.bits == 4 ? Dot::template kMaxRows<IntTiles<4>> : Dot::template kMaxRows<IntTiles<8>>;
}

// While the rows go over a segment, as much is fetched of what lies behind it.
template <class Dot>
void look_ahead(Ahead& ahead, const PackedWeight& w, const Segment& s, i64 num_rows) {
  constexpr i64 kOnePassBytes = 16384;
  const i64 passes = ceil_div(num_rows, rows_at_once<Dot>(w)), lines = w.tile_bytes() / 64;
  const bool is_one_pass = num_rows <= Dot::template kMaxRows<DenseTiles>;  // else a tile is read twice at least
  const char* behind = bytes_of(w, s) + (is_one_pass ? kOnePassBytes : s.count * w.tile_bytes());
  ahead.lines_per_tile = is_one_pass ? Dot::fetches_one_pass ? lines : 0 : ceil_div(lines, passes);
  if (ahead.at < behind) ahead.at = behind;
}

// Where a segment's sums go: to those of the segments before, and after the last segment to y.
template <class T>
struct Columns {
  T* y;  // the first row's
  i64 stride, count;
  const float* bias;   // or null
  const float* added;  // the first row's, or null
  i64 added_stride;
  float* sums;  // [rows][32]
  bool is_first, is_last;

  HEADRACE_INLINE void put(i64 r, int c, F16 x) const {
    float* sum = sums + r * kColumns + c * 16;
    if (!is_first) x = add(load(sum), x);
    if (!is_last) return store(sum, x);
    const i64 left = count - c * 16, n = left < 16 ? left : 16;
    if (n <= 0) return;
    if (bias) x = add(x, load_up_to(bias + c * 16, n));
    if (added) x = add(load_up_to(added + r * added_stride + c * 16, n), x);
    store_up_to(y + r * stride + c * 16, x, n);
  }
};

// Rows times a segment, which is summed by itself. `tiles_of(r)` are its tiles for the rows from r on.
template <class Dot, class T, class TilesOf>
void rows_times_segment(const Rows<Dot>& x, const Segment& s, Ahead& ahead, const Columns<T>& to, TilesOf tiles_of) {
  constexpr i64 kAtOnce = Dot::template kMaxRows<decltype(tiles_of(0))>;
  for (i64 r = 0; r < x.count; r += kAtOnce) {
    const int rows = static_cast<int>(x.count - r < kAtOnce ? x.count - r : kAtOnce);
    Dot::panel(rows, x.values + r * x.stride + s.first * kTileK, x.stride, tiles_of(r), s.count, ahead,
               [to, r](i64 i, F16 left, F16 right) HEADRACE_INLINE_LAMBDA {
                 to.put(r + i, 0, left);
                 to.put(r + i, 1, right);
               });
  }
}

// `room` holds a segment's integers as bf16, where there are rows enough to write them out for.
template <class Dot, class T>
void multiply_segment(const PackedWeight& w, const Segment& s, const Rows<Dot>& x, u16* room, Ahead& ahead, const Columns<T>& to) {
  auto run = [&](auto tiles_of) { rows_times_segment<Dot>(x, s, ahead, to, tiles_of); };
  if (w.bits == 0) return run([&](i64) { return DenseTiles{reinterpret_cast<const u16*>(bytes_of(w, s))}; });
  if constexpr (std::is_same_v<Dot, typename Dot::Integers>) {
    auto sums_of = [&](i64 r) { return x.sums + r * (w.k_padded / w.group); };
    if constexpr (!Dot::reads_integers) {
      if (x.count > 2 * Dot::template kMaxRows<WideTiles>) {
        if (w.bits == 4) widen_tiles(int_tiles<4>(w, s, x.sums), s.count, room);
        else widen_tiles(int_tiles<8>(w, s, x.sums), s.count, room);
        return run([&](i64 r) { return WideTiles{{room}, groups_of(w, s, sums_of(r))}; });
      }
    }
    if (w.bits == 4) return run([&](i64 r) { return int_tiles<4>(w, s, sums_of(r)); });
    run([&](i64 r) { return int_tiles<8>(w, s, sums_of(r)); });
  }
}

template <class Dot, class T>
void columns_times_rows(const Linear& op, i64 column_block, const Rows<Dot>& x, u16* room, Ahead& ahead) {
  constexpr i64 kSegment = kSegmentK / kTileK;
  const PackedWeight& w = *op.weight;
  const i64 column = column_block * kColumns, num_tiles = w.k_padded / kTileK;
  alignas(64) float sums[kRowsPerBlock * kColumns];
  Columns<T> to{op.y.row<T>(x.first) + column, op.y.stride, w.n - column, op.bias ? op.bias + column : nullptr,
                op.added.data ? op.added.row<float>(x.first) + column : nullptr, op.added.stride, sums, true, false};
  for (i64 first = 0; first < num_tiles; first += kSegment) {
    const Segment segment{column_block, first, num_tiles - first < kSegment ? num_tiles - first : kSegment};
    to.is_first = first == 0;
    to.is_last = first + kSegment >= num_tiles;
    look_ahead<Dot>(ahead, w, segment, x.count);
    multiply_segment<Dot>(w, segment, x, room, ahead, to);
  }
}

// The sum of each group of a row as the kernel takes it: lanes of 16 values, summed pairwise.
template <class Dot>
void sum_groups(const typename Dot::Value* x, const PackedWeight& w, float* sums) {
  for (i64 g = 0; g < w.k_padded / w.group; g++) {
    F16 lanes = set(0.0f);
    for (i64 i = g * w.group; i < (g + 1) * w.group; i += 16) lanes = add(lanes, Dot::get(x + i));
    sums[g] = sum(lanes);
  }
}

// Rows are cut into blocks that a thread's scratch has room for, about as long as each other so that threads share them
// evenly, and of whole groups of `at_once`; a task is a row block by a column block.
inline i64 rows_per_block(i64 num_rows, i64 at_once, i64 row_bytes, const Team& team) {
  const i64 room = team.scratch_bytes() / 2 / row_bytes, most = room > kRowsPerBlock ? kRowsPerBlock : room < 1 ? 1 : room;
  const i64 even = round_up(ceil_div(num_rows, ceil_div(num_rows, most)), at_once);
  return even < most ? even : most;
}

// A row's values lie so far behind those of the row before that the rows do not crowd the same sets of the first cache.
template <class Value>
i64 stride_of(i64 k_padded) {
  constexpr i64 kLine = 64 / sizeof(Value), kPage = 4096 / sizeof(Value);
  return k_padded % kPage == 0 ? k_padded + kLine : k_padded;
}

template <class Dot>
void linear_bf16(const Linear& op, Team& team) {
  using Value = typename Dot::Value;
  const PackedWeight& w = *op.weight;
  const i64 column_blocks = w.n_padded / kColumns, num_groups = w.bits ? w.k_padded / w.group : 0;
  const i64 stride = stride_of<Value>(w.k_padded), row_bytes = stride * static_cast<i64>(sizeof(Value)) + num_groups * 4;
  const i64 column_bytes = w.k_padded / kTileK * w.tile_bytes(), block_rows = rows_per_block(op.x.rows, rows_at_once<Dot>(w), row_bytes, team);
  Value* a = reinterpret_cast<Value*>(team.scratch());
  float* sums = reinterpret_cast<float*>(a + block_rows * stride);
  u16* room = reinterpret_cast<u16*>(team.scratch() + team.scratch_bytes() / 2);
  i64 widened = -1;
  Ahead ahead;
  Dot::enter();
  team.for_each_in_ranges(ceil_div(op.x.rows, block_rows) * column_blocks, [&](i64 task, i64 last) {
    const i64 block = task / column_blocks, first_row = block * block_rows, left = op.x.rows - first_row;
    const i64 num_rows = left < block_rows ? left : block_rows;
    if (widened != block) {
      ahead = {};
      widen_rows<Dot>(op.x, first_row, num_rows, w.k, w.k_padded, a, stride);
      if (w.has_minimum)
        for (i64 r = 0; r < num_rows; r++) sum_groups<Dot>(a + r * stride, w, sums + r * num_groups);
    }
    widened = block;
    const i64 end = last - block * column_blocks;
    ahead.end = w.data.as<char>() + (end < column_blocks ? end : column_blocks) * column_bytes;
    const Rows<Dot> rows{a, stride, sums, first_row, num_rows};
    if (op.y.type == Type::f32) columns_times_rows<Dot, float>(op, task % column_blocks, rows, room, ahead);
    else columns_times_rows<Dot, u16>(op, task % column_blocks, rows, room, ahead);
  });
  Dot::leave();
}

// fp32: lane j of an accumulator is the chain over k ≡ j mod 16; lanes are summed pairwise at a segment's end.
template <int R, int N>
void dots_f32(const float* x, i64 ldx, const float* w, i64 ldw, i64 k_padded, float* out) {
  for (i64 start = 0; start < k_padded; start += kSegmentK) {
    const i64 end = start + kSegmentK < k_padded ? start + kSegmentK : k_padded;
    F16 total[R][N];
    for (int r = 0; r < R; r++)
      for (int n = 0; n < N; n++) total[r][n] = set(0.0f);
    for (i64 k = start; k < end; k += 16) {
      F16 wk[N];
      for (int n = 0; n < N; n++) wk[n] = load(w + n * ldw + k);
      for (int r = 0; r < R; r++) {
        const F16 xk = load(x + r * ldx + k);
        for (int n = 0; n < N; n++) total[r][n] = fma(xk, wk[n], total[r][n]);
      }
    }
    for (int r = 0; r < R; r++)
      for (int n = 0; n < N; n++) out[r * 4 + n] = start == 0 ? sum(total[r][n]) : out[r * 4 + n] + sum(total[r][n]);
  }
}

inline void four_columns_f32(const float* x, i64 ldx, i64 num_rows, const float* w, i64 k_padded, float* out) {
  i64 r = 0;
  for (; r + 2 <= num_rows; r += 2) {
    dots_f32<2, 2>(x + r * ldx, ldx, w, k_padded, k_padded, out + r * 4);
    dots_f32<2, 2>(x + r * ldx, ldx, w + 2 * k_padded, k_padded, k_padded, out + r * 4 + 2);
  }
  if (r < num_rows) dots_f32<1, 4>(x + r * ldx, ldx, w, k_padded, k_padded, out + r * 4);
}

inline void linear_f32(const Linear& op, Team& team) {
  const PackedWeight& w = *op.weight;
  const i64 column_blocks = w.n_padded / 4, block_rows = rows_per_block(op.x.rows, 2, w.k_padded * 4, team);
  float* a = reinterpret_cast<float*>(team.scratch());
  i64 copied = -1;
  team.for_each_in_ranges(ceil_div(op.x.rows, block_rows) * column_blocks, [&](i64 task, i64) {
    const i64 block = task / column_blocks, first_row = block * block_rows, c = task % column_blocks;
    const i64 left = op.x.rows - first_row, num_rows = left < block_rows ? left : block_rows;
    if (copied != block)
      for (i64 r = 0; r < num_rows; r++) {
        std::memcpy(a + r * w.k_padded, op.x.row<float>(first_row + r), w.k * 4);
        std::memset(a + r * w.k_padded + w.k, 0, (w.k_padded - w.k) * 4);
      }
    copied = block;
    float sums[kRowsPerBlock * 4];
    four_columns_f32(a, w.k_padded, num_rows, w.data.as<float>() + c * 4 * w.k_padded, w.k_padded, sums);
    const i64 count = w.n - c * 4 < 4 ? w.n - c * 4 : 4;
    for (i64 r = 0; r < num_rows; r++)
      for (i64 n = 0; n < count; n++) {
        const float sum = sums[r * 4 + n] + (op.bias ? op.bias[c * 4 + n] : 0.0f);
        const float* added = op.added.data ? op.added.row<float>(first_row + r) + c * 4 + n : nullptr;
        op.y.row<float>(first_row + r)[c * 4 + n] = added ? *added + sum : sum;
      }
  });
}

template <class Dot>
void linear(const Linear& op, Team& team) {
  FlushDenormals flush;
  if (op.weight->bits) return linear_bf16<typename Dot::Integers>(op, team);
  if (op.weight->type == Type::bf16) return linear_bf16<Dot>(op, team);
  linear_f32(op, team);
}

}  // namespace headrace::HEADRACE_NS
