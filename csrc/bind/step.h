// StepInputs from Python, held while a step runs; every index that a kernel follows is checked here.
#pragma once
#include "bind/arrays.h"

namespace headrace {

struct StepArrays {
  Ints token_ids, positions;
  Longs slots;
  Ints query_starts, context_lens;
  Table block_tables;

  Step step() const {
    return {static_cast<i64>(token_ids.shape(0)), static_cast<i64>(context_lens.shape(0)),
            static_cast<i64>(block_tables.shape(1)), token_ids.data(), positions.data(), slots.data(),
            query_starts.data(), context_lens.data(), block_tables.data()};
  }
};

inline StepArrays make_step(const Ints& token_ids, const Ints& positions, const Longs& slots, const Ints& query_starts,
                            const Ints& context_lens, const Table& block_tables) {
  const i64 tokens = static_cast<i64>(token_ids.shape(0)), segments = static_cast<i64>(context_lens.shape(0));
  require(static_cast<i64>(positions.shape(0)) == tokens && static_cast<i64>(slots.shape(0)) == tokens,
          "step: positions and slots must be as many as tokens");
  require(static_cast<i64>(query_starts.shape(0)) == segments + 1 && static_cast<i64>(block_tables.shape(0)) == segments,
          "step: query starts and block tables must fit the segments");
  require(query_starts.data()[0] == 0 && query_starts.data()[segments] == tokens, "step: segments must cover the tokens");
  for (i64 s = 0; s < segments; s++) {
    const i64 first = query_starts.data()[s], last = query_starts.data()[s + 1];
    require(first < last, "step: a segment has at least one token");
    for (i64 t = first; t < last; t++)
      require(positions.data()[t] == positions.data()[first] + t - first && positions.data()[first] >= 0,
              "step: a segment's positions rise by one");
    require(positions.data()[last - 1] < context_lens.data()[s], "step: a token lies behind its context");
  }
  return {token_ids, positions, slots, query_starts, context_lens, block_tables};
}

// Against the cache: slots and the blocks of every context must exist.
inline void check_attend(const Attend& op) {
  const Cache& cache = *op.cache;
  const Step& step = op.step;
  require(op.k.cols == cache.num_heads * cache.dim && op.v.cols == op.k.cols, "attend: keys do not fit the cache");
  require(op.q.cols % op.k.cols == 0 && op.out.cols == op.q.cols, "attend: query heads do not fit");
  require(op.q.rows == step.num_tokens && op.k.rows == step.num_tokens && op.v.rows == step.num_tokens &&
              op.out.rows == step.num_tokens, "attend: rows do not fit the step");
  require(op.q.type == cache.type && op.k.type == cache.type && op.v.type == cache.type && op.out.type == cache.type,
          "attend: types do not fit the cache");
  require(op.window >= 0, "attend: a window is not negative");
  require(op.scale > 0, "attend: the scale is positive");
  for (i64 t = 0; t < step.num_tokens; t++)
    require(step.slots[t] < cache.num_blocks * cache.block_size, "attend: no such slot");
  for (i64 s = 0; s < step.num_segments; s++) {
    const i64 blocks = ceil_div(step.context_lens[s], cache.block_size);
    require(blocks <= step.table_width, "attend: the block table is too short");
    for (i64 b = 0; b < blocks; b++) {
      const i64 id = step.block_tables[s * step.table_width + b];
      require(id >= 0 && id < cache.num_blocks, "attend: no such block");
    }
  }
}

}  // namespace headrace
