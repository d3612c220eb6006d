// Matrices of integers in groups, row by row from what checkpoints hold, into the layout of core/ops.h.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/ops.h"

namespace headrace {

// What integers are like: 4 bits (0 to 15) or 8 (−128 to 127), in groups of 32 or 16 with a scale and perhaps a minimum.
struct Form {
  int bits = 4;
  i64 group = 32;
  bool has_minimum = false;
  bool is_half = true;  // whether a float16 holds every scale and minimum
};

// One row's integers [k], and scales and minimums of its groups.
struct IntegerRow {
  std::vector<i32> codes;
  std::vector<float> scales, minimums;
};

// Rows of a matrix; `read` gives one of them in groups of `group`, which is no longer than the form's and divides it.
struct RowSource {
  i64 n;
  Form form;
  std::function<void(i64 row, i64 group, IntegerRow& to)> read;
};
// Sources below one another; where they differ, the wider integers and the shorter groups hold all.
PackedWeight pack_rows(const std::vector<RowSource>& sources, i64 k, bool is_chained, Pool& pool);

// A format of GGML: `block_values` numbers of a row in `block_bytes` bytes.
struct BlockFormat {
  const char* name;
  i64 block_values, block_bytes;
  Form form;
  // One block → its integers, and a scale and (if it has them) a minimum per group.
  void (*read)(const unsigned char* block, i32* codes, float* scales, float* minimums);
};
const BlockFormat* find_format(const std::string& name);  // null: not built
std::vector<std::string> format_names();

// `order` (or null) names the stored row of each.
RowSource rows_of_blocks(const BlockFormat& format, const unsigned char* bytes, i64 n, i64 k, const i32* order);

}  // namespace headrace
