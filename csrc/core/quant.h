// Matrices of integers in groups, from GGML's blocks or from plain codes, into the layout of core/ops.h.
#pragma once
#include <string>
#include <vector>

#include "core/ops.h"

namespace headrace {

// A format of GGML: `block_values` numbers of a row in `block_bytes` bytes.
struct BlockFormat {
  const char* name;
  i64 block_values, block_bytes;
  int bits;
  i64 group;
  bool has_minimum, has_half_scales;
  // One block → its integers, and a scale and (if it has them) a minimum per group.
  void (*read)(const unsigned char* block, i32* codes, float* scales, float* minimums);
};
const BlockFormat* find_format(const std::string& name);  // null: not built
std::vector<std::string> format_names();

// Rows [n, k] of one source; `order` (or null) names the source row of each.
struct BlockPart {
  const BlockFormat* format;
  const unsigned char* bytes;
  i64 n;
  const i32* order;
};
// Parts below one another; where they differ, the wider integers and the shorter groups hold all.
PackedWeight pack_blocks(const std::vector<BlockPart>& parts, i64 k, bool is_chained, Pool& pool);

// codes [n, k], scales and (or null) minimums [n, k / group].
PackedWeight pack_codes(const signed char* codes, const float* scales, const float* minimums, i64 n, i64 k, int bits,
                        i64 group, bool is_chained, Pool& pool);

}  // namespace headrace
