// What a dot product multiplies by: tiles of 32 of K by 32 columns, dense or integers in groups. A panel asks for pairs of
// K of 16 columns (column half c, K half h of tile k, pair p of eight) and says how a finished sum joins the total.
#pragma once
#include <concepts>

namespace headrace::HEADRACE_NS {

// What is brought into the second cache meanwhile: so many lines with each tile, up to the end. Where several groups of
// rows take their turns over the same tiles, the memory would rest from the second group on.
struct Ahead {
  const char *at = nullptr, *end = nullptr;
  i64 lines_per_tile = 0;
  HEADRACE_INLINE void fetch() {
    for (i64 i = 0; i < lines_per_tile && at < end; i++, at += 64) prefetch_far(at);
  }
};

struct DenseTiles {  // [k][16 pairs][2 column halves][16][2]
  static constexpr i64 kPair = 64;  // from one pair to the next
  const u16* base;
  const u16* at(i64 k, int c, int h) const { return base + k * 1024 + h * 512 + c * 32; }
};

// Scales of a column block from a tile on, and what minimums are multiplied by: the sums of a row's values by group.
struct Groups {
  const char* scales;
  i64 bytes_per_group, minimum_offset;  // offset 0: there are none
  bool is_half, are_short;              // float16; of 16 values
  const float* sums;                    // [rows][stride], from the same tile on
  i64 stride;

  F16 load_scale(const char* at, int c) const {
    return is_half ? load_f16(reinterpret_cast<const u16*>(at) + c * 16) : load(reinterpret_cast<const float*>(at) + c * 16);
  }
  F16 join(F16 total, F16 sum, i64 k, int h, int c, i64 row) const {
    const i64 group = are_short ? 2 * k + h : k;
    const char* at = scales + group * bytes_per_group;
    total = fma(sum, load_scale(at, c), total);
    if (minimum_offset == 0) return total;
    return fma(set(sums[row * stride + group]), load_scale(at + minimum_offset, c), total);
  }
};

// Integers of 4 or 8 bits as they are packed.
template <int Bits>
struct IntTiles {
  const i32* base;  // [k][Bits words][2 column halves][16 columns]
  Groups groups;

  I16 word(i64 k, int c, i64 number) const { return load_words(base + ((k * Bits + number) * 2 + c) * 16); }
};

// The same integers written out as bf16 once for many rows.
struct WideTiles {
  static constexpr i64 kPair = DenseTiles::kPair;
  DenseTiles tiles;
  Groups groups;
  const u16* at(i64 k, int c, int h) const { return tiles.at(k, c, h); }
};

// Codes of a pair: 16 even ones, then the odd ones.
inline F16 load_even(const i8* p) { return to_floats(load_bytes(p)); }
inline F16 load_odd(const i8* p) { return to_floats(load_bytes(p + 16)); }

template <class Tiles>
inline void pair_of(const Tiles& b, i64 k, int c, int h, int p, F16& low, F16& high) {
  const auto* at = b.at(k, c, h) + p * Tiles::kPair;
  low = load_even(at);
  high = load_odd(at);
}
inline void pair_of(const IntTiles<4>& b, i64 k, int c, int h, int p, F16& low, F16& high) {
  const I16 words = b.word(k, c, h * 2 + p / 4);
  low = nibble(words, p % 4 * 4);
  high = nibble(words, 16 + p % 4 * 4);
}
inline void pair_of(const IntTiles<8>& b, i64 k, int c, int h, int p, F16& low, F16& high) {
  const I16 words = b.word(k, c, h * 4 + p / 2);
  low = octet(words, p % 2 * 8);
  high = octet(words, 16 + p % 2 * 8);
}

// Whether tiles hold bf16 as it is multiplied; others are made so first.
template <class Tiles>
constexpr bool is_ready = requires(const Tiles& b) { { b.at(0, 0, 0) } -> std::same_as<const u16*>; };

// Dense sums end with a tile of K, those of integers with a group.
template <class Tiles>
constexpr bool is_grouped = requires(const Tiles& b) { b.groups; };

template <class Tiles>
inline bool ends_sum(const Tiles& b, int h) {
  if constexpr (is_grouped<Tiles>) return h == 1 || b.groups.are_short;
  return h == 1;
}
template <class Tiles>
inline F16 join(const Tiles& b, F16 total, F16 sum, i64 k, int h, int c, i64 row) {
  if constexpr (is_grouped<Tiles>) return b.groups.join(total, sum, k, h, c, row);
  return add(total, sum);
}

// Dot::rows<R> for as many rows as there are, up to R.
template <class Dot, int R, class Tiles, class Fetch, class Put>
void by_number_of_rows(int num_rows, const typename Dot::Value* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead,
                       const Put& put) {
  if (num_rows == R) return Dot::template rows<R>(a, lda, b, num_tiles, ahead, put);
  if constexpr (R > 1) by_number_of_rows<Dot, R - 1>(num_rows, a, lda, b, num_tiles, ahead, put);
}

// Two vectors whose values bf16 holds exactly, as it, side by side.
inline void store_pair(u16* to, F16 low, F16 high) {
  store_words(reinterpret_cast<i32*>(to), add(shift_right<16>(as_words(low)), as_words(high)));
}

// Column block of integers → bf16 tiles as DenseTiles has them.
template <int Bits>
void widen_tiles(const IntTiles<Bits>& from, i64 num_tiles, u16* to) {
  for (i64 k = 0; k < num_tiles; k++)
    for (int c = 0; c < 2; c++)
      for (int p = 0; p < 16; p++) {
        F16 low, high;
        pair_of(from, k, c, p / 8, p % 8, low, high);
        store_pair(to + k * 1024 + p * 64 + c * 32, low, high);
      }
}

}  // namespace headrace::HEADRACE_NS
