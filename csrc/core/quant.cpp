#include "core/quant.h"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

using Byte = unsigned char;

float half_at(const Byte* p) {
  u16 half;
  std::memcpy(&half, p, 2);
  return half_to_float(half);
}

// 32 nibbles of 16 bytes: all low ones, then all high ones.
void nibbles(const Byte* from, i32* codes) {
  for (int i = 0; i < 16; i++) {
    codes[i] = from[i] & 15;
    codes[16 + i] = from[i] >> 4;
  }
}

void add_fifth_bits(const Byte* from, i32* codes) {
  for (int i = 0; i < 32; i++) codes[i] |= (from[i / 8] >> (i % 8) & 1) << 4;
}

void read_q4_0(const Byte* b, i32* codes, float* scales, float* minimums) {
  nibbles(b + 2, codes);
  scales[0] = half_at(b);
  minimums[0] = -8 * scales[0];
}

void read_q4_1(const Byte* b, i32* codes, float* scales, float* minimums) {
  nibbles(b + 4, codes);
  scales[0] = half_at(b);
  minimums[0] = half_at(b + 2);
}

void read_q5_0(const Byte* b, i32* codes, float* scales, float*) {
  nibbles(b + 6, codes);
  add_fifth_bits(b + 2, codes);
  for (int i = 0; i < 32; i++) codes[i] -= 16;
  scales[0] = half_at(b);
}

void read_q5_1(const Byte* b, i32* codes, float* scales, float* minimums) {
  nibbles(b + 8, codes);
  add_fifth_bits(b + 4, codes);
  scales[0] = half_at(b);
  minimums[0] = half_at(b + 2);
}

void read_q8_0(const Byte* b, i32* codes, float* scales, float*) {
  for (int i = 0; i < 32; i++) codes[i] = static_cast<signed char>(b[2 + i]);
  scales[0] = half_at(b);
}

// Six-bit scales and minimums of the eight groups of a super-block, in twelve bytes.
void scales_of_super_block(const Byte* b, float* scales, float* minimums) {
  const float d = half_at(b), least = half_at(b + 2);
  const Byte* packed = b + 4;
  for (int g = 0; g < 8; g++) {
    const int scale = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
    const int minimum = g < 4 ? packed[g + 4] & 63 : packed[g + 4] >> 4 | packed[g] >> 6 << 4;
    scales[g] = d * static_cast<float>(scale);
    minimums[g] = -(least * static_cast<float>(minimum));
  }
}

// 64 numbers at a time: low nibbles of 32 bytes, then the high ones.
void nibbles_of_super_block(const Byte* from, i32* codes) {
  for (int i = 0; i < 256; i++) codes[i] = from[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
}

void read_q4_k(const Byte* b, i32* codes, float* scales, float* minimums) {
  scales_of_super_block(b, scales, minimums);
  nibbles_of_super_block(b + 16, codes);
}

void read_q5_k(const Byte* b, i32* codes, float* scales, float* minimums) {
  scales_of_super_block(b, scales, minimums);
  nibbles_of_super_block(b + 48, codes);
  for (int i = 0; i < 256; i++) codes[i] |= (b[16 + i % 32] >> (i / 32) & 1) << 4;
}

void read_q6_k(const Byte* b, i32* codes, float* scales, float*) {
  for (int i = 0; i < 256; i++) {
    const int part = i / 128, quarter = i % 128 / 32, at = i % 32;
    const int low = b[part * 64 + quarter % 2 * 32 + at] >> (quarter / 2 * 4) & 15;
    const int high = b[128 + part * 32 + at] >> (quarter * 2) & 3;
    codes[i] = (low | high << 4) - 32;
  }
  const float d = half_at(b + 208);
  for (int g = 0; g < 16; g++) scales[g] = d * static_cast<float>(static_cast<signed char>(b[192 + g]));
}

constexpr BlockFormat kFormats[] = {
    {"Q4_0", 32, 18, {4, 32, true, false}, read_q4_0},   {"Q4_1", 32, 20, {4, 32, true, true}, read_q4_1},
    {"Q5_0", 32, 22, {8, 32, false, true}, read_q5_0},   {"Q5_1", 32, 24, {8, 32, true, true}, read_q5_1},
    {"Q8_0", 32, 34, {8, 32, false, true}, read_q8_0},   {"Q4_K", 256, 144, {4, 32, true, false}, read_q4_k},
    {"Q5_K", 256, 176, {8, 32, true, false}, read_q5_k}, {"Q6_K", 256, 210, {8, 16, false, false}, read_q6_k},
};

PackedWeight room_for(i64 n, i64 k, const Form& form, bool is_chained) {
  PackedWeight w;
  w.is_chained = is_chained;
  w.n = n;
  w.k = k;
  w.n_padded = round_up(n, kColumns);
  w.k_padded = round_up(k, kTileK);
  w.bits = form.bits;
  w.group = form.group;
  w.has_minimum = form.has_minimum;
  w.is_half = form.is_half;
  w.data = HugeBuffer(w.n_padded * w.k_padded * w.bits / 8);
  w.scales = HugeBuffer(w.n_padded / kColumns * (w.k_padded / w.group) * w.group_bytes());
  return w;
}

void put_scale(const PackedWeight& w, char* group, i64 column, float value) {
  if (!w.is_half) {
    reinterpret_cast<float*>(group)[column] = value;
    return;
  }
  reinterpret_cast<u16*>(group)[column] = float_to_half(value);
}

// Where the integers of a column lie in each tile of K: which word, and how far up in it.
struct Spots {
  i64 words[kTileK];
  int shifts[kTileK];

  Spots(const PackedWeight& w, i64 column) {
    for (i64 k = 0; k < kTileK; k++) {
      const i64 place = place_of(k, w.is_chained);
      words[k] = w.word_at(column, place);
      shifts[k] = w.shift_of(place);
    }
  }
};

void put_column(const PackedWeight& w, i64 column, const IntegerRow& from) {
  const i64 block = column / kColumns, inside = column % kColumns;
  const Spots spots(w, inside);
  const u32 mask = w.bits == 4 ? 15 : 255;
  u32* tile = w.data.as<u32>() + block * w.k_padded * w.bits;
  for (i64 start = 0; start < w.k; start += kTileK, tile += w.bits * kColumns) {
    const i64 count = std::min(kTileK, w.k - start);
    for (i64 k = 0; k < count; k++)
      tile[spots.words[k]] |= (static_cast<u32>(from.codes[start + k]) & mask) << spots.shifts[k];
  }
  const i64 num_groups = w.k_padded / w.group;
  for (i64 g = 0; g * w.group < w.k; g++) {
    char* group = w.scales.as<char>() + (block * num_groups + g) * w.group_bytes();
    put_scale(w, group, inside, from.scales[g]);
    if (w.has_minimum) put_scale(w, group + kColumns * w.scale_bytes(), inside, from.minimums[g]);
  }
}

void read_blocks(const BlockFormat& f, const Byte* row, i64 k, i64 group, IntegerRow& to) {
  float scales[16], minimums[16] = {};
  const i64 per_block = f.block_values / group, repeats = f.form.group / group;
  for (i64 b = 0; b < k / f.block_values; b++) {
    f.read(row + b * f.block_bytes, to.codes.data() + b * f.block_values, scales, minimums);
    for (i64 g = 0; g < per_block; g++) {
      to.scales[b * per_block + g] = scales[g / repeats];
      to.minimums[b * per_block + g] = f.form.has_minimum ? minimums[g / repeats] : 0.0f;
    }
  }
}

Form form_of_all(const std::vector<RowSource>& sources) {
  Form all = sources[0].form;
  for (const RowSource& source : sources) {
    all.bits = std::max(all.bits, source.form.bits);
    all.group = std::min(all.group, source.form.group);
    all.has_minimum |= source.form.has_minimum;
    all.is_half &= source.form.is_half;
  }
  return all;
}

}  // namespace

const BlockFormat* find_format(const std::string& name) {
  for (const BlockFormat& format : kFormats)
    if (name == format.name) return &format;
  return nullptr;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const BlockFormat& format : kFormats) names.emplace_back(format.name);
  return names;
}

RowSource rows_of_blocks(const BlockFormat& format, const unsigned char* bytes, i64 n, i64 k, const i32* order) {
  const i64 row_bytes = k / format.block_values * format.block_bytes;
  return {n, format.form, [&format, bytes, order, k, row_bytes](i64 row, i64 group, IntegerRow& to) {
            read_blocks(format, bytes + (order ? order[row] : row) * row_bytes, k, group, to);
          }};
}

PackedWeight pack_rows(const std::vector<RowSource>& sources, i64 k, bool is_chained, Pool& pool) {
  std::vector<i64> starts;
  i64 n = 0;
  for (const RowSource& source : sources) {
    starts.push_back(n);
    n += source.n;
  }
  PackedWeight w = room_for(n, k, form_of_all(sources), is_chained);
  const auto num_groups = static_cast<std::size_t>(ceil_div(k, w.group));
  const IntegerRow empty{std::vector<i32>(k), std::vector<float>(num_groups), std::vector<float>(num_groups)};
  std::vector<IntegerRow> rows(pool.size(), empty);
  pool.run([&](Team& team) {
    IntegerRow& row = rows[team.rank()];
    team.for_each(w.n_padded / kColumns, [&](i64 block) {
      for (i64 c = block * kColumns; c < n && c < (block + 1) * kColumns; c++) {
        std::size_t p = sources.size() - 1;
        while (starts[p] > c) p--;
        sources[p].read(c - starts[p], w.group, row);
        put_column(w, c, row);
      }
    });
  });
  return w;
}

}  // namespace headrace
