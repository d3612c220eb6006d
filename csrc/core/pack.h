// Weights into the layout of core/ops.h, and back.
#pragma once
#include "core/ops.h"

namespace headrace {

// [n, k] dense, bf16 or f32, packed by all threads of the pool.
PackedWeight pack_weight(const void* values, Type type, i64 n, i64 k, bool is_chained, Pool& pool);

Cache make_cache(Type type, bool has_codes, i64 num_blocks, i64 block_size, i64 num_heads, i64 dim, bool is_chained);
void zero_block(Cache& cache, i64 block);

}  // namespace headrace
