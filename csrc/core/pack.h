// Weights into the layout of core/ops.h, and back.
#pragma once
#include <vector>

#include "core/ops.h"

namespace headrace {

// [n, k] dense, bf16 or f32, packed by all threads of the pool.
PackedWeight pack_weight(const void* values, Type type, i64 n, i64 k, bool is_chained, Pool& pool);

struct CacheShape {
  bool has_codes;
  i64 num_heads, dim;
};
// Zeroed, one per layer.
std::vector<Cache> make_caches(Type type, i64 num_blocks, i64 block_size, const std::vector<CacheShape>& layers, bool is_chained);
void zero_block(Cache& cache, i64 block);

}  // namespace headrace
