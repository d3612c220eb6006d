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

// Rows [first, first + count) of x as the dot product takes them, [count][k_padded], zeros behind k.
template <class Dot>
void widen_rows(const View& x, i64 first, i64 count, i64 k, i64 k_padded, typename Dot::Value* to) {
  for (i64 r = 0; r < count; r++) {
    if (x.type == Type::f32) widen_row<Dot>(x.row<float>(first + r), k, k_padded, to + r * k_padded);
    else widen_row<Dot>(x.row<u16>(first + r), k, k_padded, to + r * k_padded);
  }
}

template <class T>
void write_columns(const float* sums, const float* bias, T* to, i64 count) {
  by_sixteen(count, [&](i64 i, i64 n) {
    F16 x = load(sums + i);
    if (bias) x = add(x, load_up_to(bias + i, n));
    store_up_to(to + i, x, n);
  });
}

// out [rows][32] of `num_tiles` tiles: segments of K, each summed by itself. `tiles_from(k)` gives the tiles behind k.
template <class Dot, class TilesFrom>
void panel_in_segments(i64 num_tiles, i64 lda, int rows, const typename Dot::Value* a, float* sums, TilesFrom tiles_from) {
  constexpr i64 kSegment = kSegmentK / kTileK;
  alignas(64) float part[Dot::kMaxRows * kColumns];
  for (i64 k = 0; k < num_tiles; k += kSegment) {
    const i64 count = num_tiles - k < kSegment ? num_tiles - k : kSegment;
    Dot::panel(rows, a + k * kTileK, lda, tiles_from(k), count, k == 0 ? sums : part);
    if (k == 0) continue;
    for (i64 i = 0; i < rows * kColumns; i += 16) store(sums + i, add(load(sums + i), load(part + i)));
  }
}

// Rows of x as the kernel takes them, and for integers with a minimum the sums of their groups.
template <class Dot>
struct Rows {
  const typename Dot::Value* values;  // [count][k_padded]
  const float* sums;                  // [count][groups]
  i64 first, count;
};

inline Groups groups_of(const PackedWeight& w, i64 column_block, i64 tile, const float* sums) {
  const i64 num_groups = w.k_padded / w.group, first = tile * kTileK / w.group;
  const char* scales = w.scales.as<char>() + (column_block * num_groups + first) * w.group_bytes();
  return {scales, w.group_bytes(), w.has_minimum ? kColumns * w.scale_bytes() : 0, w.is_half, w.group < kTileK,
          sums + first, num_groups};
}

template <int Bits>
IntTiles<Bits> int_tiles(const PackedWeight& w, i64 column_block, i64 tile, const float* sums) {
  const i64 words_per_tile = 32 * Bits;
  return {w.data.as<i32>() + (column_block * w.k_padded / kTileK + tile) * words_per_tile, groups_of(w, column_block, tile, sums)};
}

// One column block times up to kMaxRows rows; `wide` holds the block's integers as bf16 if they were written out.
template <class Dot>
void panel_of_weight(const PackedWeight& w, i64 column_block, int rows, const typename Dot::Value* a, const float* group_sums,
                     const u16* wide, float* sums) {
  const i64 num_tiles = w.k_padded / kTileK;
  auto run = [&](auto tiles_from) { panel_in_segments<Dot>(num_tiles, w.k_padded, rows, a, sums, tiles_from); };
  if (w.bits == 0) {
    const u16* base = w.data.as<u16>() + column_block * w.k_padded * kColumns;
    return run([&](i64 k) { return DenseTiles{base + k * 1024}; });
  }
  if constexpr (std::is_same_v<Dot, typename Dot::Integers>) {
    if (wide) return run([&](i64 k) { return WideTiles{{wide + k * 1024}, groups_of(w, column_block, k, group_sums)}; });
    if (w.bits == 4) return run([&](i64 k) { return int_tiles<4>(w, column_block, k, group_sums); });
    run([&](i64 k) { return int_tiles<8>(w, column_block, k, group_sums); });
  }
}

template <class Dot>
void columns_times_rows(const Linear& op, i64 column_block, const Rows<Dot>& x, u16* room) {
  const PackedWeight& w = *op.weight;
  const i64 column = column_block * kColumns, num_groups = w.bits ? w.k_padded / w.group : 0;
  const i64 count = w.n - column < kColumns ? w.n - column : kColumns;
  const u16* wide = nullptr;
  if (w.bits && room && x.count > 2 * Dot::kMaxRows) {
    if (w.bits == 4) widen_tiles(int_tiles<4>(w, column_block, 0, x.sums), w.k_padded / kTileK, room);
    else widen_tiles(int_tiles<8>(w, column_block, 0, x.sums), w.k_padded / kTileK, room);
    wide = room;
  }
  alignas(64) float sums[Dot::kMaxRows * kColumns];
  for (i64 r = 0; r < x.count; r += Dot::kMaxRows) {
    const int rows = static_cast<int>(x.count - r < Dot::kMaxRows ? x.count - r : Dot::kMaxRows);
    panel_of_weight<Dot>(w, column_block, rows, x.values + r * w.k_padded, x.sums + r * num_groups, wide, sums);
    for (int i = 0; i < rows; i++) {
      const float* bias = op.bias ? op.bias + column : nullptr;
      if (op.y.type == Type::f32)
        write_columns(sums + i * kColumns, bias, op.y.row<float>(x.first + r + i) + column, count);
      else
        write_columns(sums + i * kColumns, bias, op.y.row<u16>(x.first + r + i) + column, count);
    }
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

// How rows and columns are cut into tasks; no cut changes a bit.
struct Cut {
  i64 rows_per_block, num_row_blocks, columns_per_task, num_column_tasks;
};

inline Cut cut_linear(i64 num_rows, i64 column_blocks, i64 row_bytes, i64 panel_bytes, const Team& team) {
  constexpr i64 kRows = 96, kStreamBytes = 96 << 10;
  i64 rows = team.scratch_bytes() / 2 / row_bytes;
  rows = rows > kRows ? kRows : rows < 1 ? 1 : rows;
  const i64 row_blocks = ceil_div(num_rows, rows), wanted = ceil_div(i64{8} * team.size(), row_blocks);
  i64 columns = ceil_div(column_blocks, wanted);
  const i64 least = ceil_div(kStreamBytes, panel_bytes);
  if (columns < least) columns = least;
  return {rows, row_blocks, columns, ceil_div(column_blocks, columns)};
}

template <class Dot>
void linear_bf16(const Linear& op, Team& team) {
  using Value = typename Dot::Value;
  const PackedWeight& w = *op.weight;
  const i64 column_blocks = w.n_padded / kColumns, num_groups = w.bits ? w.k_padded / w.group : 0;
  const i64 row_bytes = w.k_padded * static_cast<i64>(sizeof(Value)) + num_groups * 4;
  const i64 panel_bytes = w.bits ? w.k_padded * kColumns * w.bits / 8 : w.k_padded * kColumns * 2;
  const Cut cut = cut_linear(op.x.rows, column_blocks, row_bytes, panel_bytes, team);
  Value* a = reinterpret_cast<Value*>(team.scratch());
  float* sums = reinterpret_cast<float*>(a + cut.rows_per_block * w.k_padded);
  const i64 half = team.scratch_bytes() / 2;
  u16* room = w.bits && w.k_padded * kColumns * 2 <= half ? reinterpret_cast<u16*>(team.scratch() + half) : nullptr;
  i64 widened = -1;
  Dot::enter();
  team.for_each(cut.num_row_blocks * cut.num_column_tasks, [&](i64 task) {
    const i64 block = task / cut.num_column_tasks, first_row = block * cut.rows_per_block;
    const i64 left = op.x.rows - first_row, num_rows = left < cut.rows_per_block ? left : cut.rows_per_block;
    if (widened != block) {
      widen_rows<Dot>(op.x, first_row, num_rows, w.k, w.k_padded, a);
      if (w.has_minimum)
        for (i64 r = 0; r < num_rows; r++) sum_groups<Dot>(a + r * w.k_padded, w, sums + r * num_groups);
    }
    widened = block;
    const i64 first = task % cut.num_column_tasks * cut.columns_per_task;
    const i64 last = first + cut.columns_per_task < column_blocks ? first + cut.columns_per_task : column_blocks;
    const Rows<Dot> rows{a, sums, first_row, num_rows};
    for (i64 column = first; column < last; column++) columns_times_rows<Dot>(op, column, rows, room);
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
  const i64 column_blocks = w.n_padded / 4, row_bytes = w.k_padded * 4;
  const Cut cut = cut_linear(op.x.rows, column_blocks, row_bytes, row_bytes * 4, team);
  float* a = reinterpret_cast<float*>(team.scratch());
  i64 copied = -1;
  team.for_each(cut.num_row_blocks * cut.num_column_tasks, [&](i64 task) {
    const i64 block = task / cut.num_column_tasks, first_row = block * cut.rows_per_block;
    const i64 left = op.x.rows - first_row, num_rows = left < cut.rows_per_block ? left : cut.rows_per_block;
    if (copied != block)
      for (i64 r = 0; r < num_rows; r++) {
        std::memcpy(a + r * w.k_padded, op.x.row<float>(first_row + r), w.k * 4);
        std::memset(a + r * w.k_padded + w.k, 0, (w.k_padded - w.k) * 4);
      }
    copied = block;
    float sums[96 * 4];
    const i64 first = task % cut.num_column_tasks * cut.columns_per_task;
    const i64 last = first + cut.columns_per_task < column_blocks ? first + cut.columns_per_task : column_blocks;
    for (i64 c = first; c < last; c++) {
      four_columns_f32(a, w.k_padded, num_rows, w.data.as<float>() + c * 4 * w.k_padded, w.k_padded, sums);
      const i64 count = w.n - c * 4 < 4 ? w.n - c * 4 : 4;
      for (i64 r = 0; r < num_rows; r++)
        for (i64 n = 0; n < count; n++)
          op.y.row<float>(first_row + r)[c * 4 + n] = sums[r * 4 + n] + (op.bias ? op.bias[c * 4 + n] : 0.0f);
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
