// What a machine is asked to compute with must be its own.
#pragma once
#include <vector>

#include "bind/arrays.h"
#include "bind/machine.h"

namespace headrace {

// Weights and caches are laid out for the instruction set of their machine.
template <class Thing>
void require_owned(const Machine& machine, const Thing& thing) {
  require(machine.owns(thing), "weights and caches are those of another instruction set");
}

inline void check_experts(const Machine& machine, const std::vector<const PackedWeight*>& gate_up, const std::vector<const PackedWeight*>& down,
                          i64 hidden) {
  require(!gate_up.empty() && gate_up.size() == down.size(), "experts: each has two matrices");
  const i64 inner = down[0]->k;
  for (std::size_t e = 0; e < down.size(); e++) {
    require_owned(machine, *gate_up[e]);
    require_owned(machine, *down[e]);
    require(gate_up[e]->n == 2 * inner && gate_up[e]->k == hidden && down[e]->n == hidden && down[e]->k == inner &&
                gate_up[e]->type == down[e]->type, "experts: shapes or types do not fit");
  }
}

}  // namespace headrace
