// Rows of integers as the packed formats of checkpoints hold them, and rows of numbers that are made integers here.
#pragma once
#include <array>

#include "core/quant.h"

namespace headrace {

// Integers of 4 or 8 bits in words of 8 or 32 bits.
struct Integers {
  const unsigned char* words;
  int bits, word_bytes;
  i64 row_stride, column_stride;  // in words
  bool holds_rows;                // a word holds consecutive rows, else consecutive columns
  bool is_signed;                 // of 8 bits: two's complement, else 128 more than what is meant
  std::array<int, 8> places;      // within a word, of each of its integers; 0 is the lowest bits

  int per_word() const { return word_bytes * 8 / bits; }
};

// Groups of `group` along a row, scales and minimums (or null) [n, ceil(k / group)]; `may_be_half` where all of them may be
// kept as float16 if that changes none.
RowSource rows_of_integers(const Integers& from, const float* scales, const float* minimums, i64 n, i64 k, i64 group,
                           bool may_be_half);

enum class Number : int { f32, bf16, f16 };

// Numbers [n, k] rounded to integers of 4 or 8 bits in groups of 32, as headrace.ops.rounding says, to the bit.
RowSource rows_to_round(const void* values, Number type, i64 n, i64 k, int bits);

}  // namespace headrace
