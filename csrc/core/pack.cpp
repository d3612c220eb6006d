#include "core/pack.h"

#include <cstring>

namespace headrace {
namespace {

void pack_columns_bf16(const u16* from, const PackedWeight& w, i64 column_block) {
  u16* to = w.data.as<u16>() + column_block * w.k_padded * kColumns;
  for (i64 c = 0; c < kColumns; c++) {
    const i64 column = column_block * kColumns + c;
    if (column >= w.n) return;
    const u16* row = from + column * w.k;
    for (i64 k = 0; k < w.k; k++) to[w.value_at(c, place_of(k, w.is_chained))] = row[k];
  }
}

}  // namespace

PackedWeight pack_weight(const void* values, Type type, i64 n, i64 k, bool is_chained, Pool& pool) {
  PackedWeight w;
  w.is_chained = is_chained;
  w.type = type;
  w.n = n;
  w.k = k;
  w.n_padded = round_up(n, type == Type::bf16 ? kColumns : 4);
  w.k_padded = round_up(k, type == Type::bf16 ? kTileK : 16);
  w.data = HugeBuffer(w.n_padded * w.k_padded * item_bytes(type));
  pool.run([&](Team& team) {
    if (type == Type::bf16)
      return team.for_each(w.n_padded / kColumns,
                           [&](i64 block) { pack_columns_bf16(static_cast<const u16*>(values), w, block); });
    team.for_each(n, [&](i64 row) {
      std::memcpy(w.data.as<float>() + row * w.k_padded, static_cast<const float*>(values) + row * k, k * 4);
    });
  });
  return w;
}

std::vector<Cache> make_caches(Type type, i64 num_blocks, i64 block_size, const std::vector<CacheShape>& layers, bool is_chained) {
  std::vector<Cache> caches;
  i64 stride = 0;
  for (const CacheShape& layer : layers) {
    Cache cache{type, layer.has_codes, num_blocks, block_size, layer.num_heads, layer.dim, round_up(layer.dim, 32), 0, is_chained,
                {}, {}, {}, {}};
    if (type == Type::bf16 && block_size % 16 == 0) cache.unit = block_size % 32 == 0 ? 32 : 16;
    for (Pages* pages : {&cache.keys, &cache.values, &cache.key_scales, &cache.value_scales}) {
      pages->offset = stride;
      stride += pages == &cache.keys || pages == &cache.values ? cache.page_bytes() : cache.scale_bytes();
    }
    caches.push_back(cache);
  }
  // An odd number of lines: pages of blocks that many sequences take in turn shall not crowd the same sets of a cache.
  constexpr i64 kLine = 64;
  if (stride % (2 * kLine) == 0) stride += kLine;
  const HugeBuffer room(num_blocks * stride);
  for (Cache& cache : caches)
    for (Pages* pages : {&cache.keys, &cache.values, &cache.key_scales, &cache.value_scales}) {
      pages->room = room;
      pages->stride = stride;
    }
  return caches;
}

void zero_block(Cache& cache, i64 block) {
  cache.each_part(block, [](char* start, i64 bytes) { std::memset(start, 0, bytes); });
}

}  // namespace headrace
