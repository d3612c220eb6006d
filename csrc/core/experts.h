// A step's mixture of experts: tokens brought together by expert, multiplied there, and added up again in order.
#pragma once
#include <vector>

#include "core/ops.h"

namespace headrace {

// [T, hidden], T × chosen (ids, weights), per expert [2 × inner, hidden] and [hidden, inner] → [T, hidden].
struct Experts {
  View x;
  const i32* ids;
  const float* weights;
  i64 num_chosen;
  const std::vector<const PackedWeight*>* gate_up;
  const std::vector<const PackedWeight*>* down;
  Activation activation;
  View out;
};

// What lies between, for up to `max_pairs` pairs of a token and one of `num_experts` experts.
class ExpertRoom {
 public:
  ExpertRoom(i64 num_experts, i64 max_pairs, i64 hidden, i64 inner, Type type);
  void run(const Experts& op, const Kernels& kernels, Team& team);

 private:
  void sort_by_expert(const Experts& op);
  i64 hidden_, inner_;
  Type type_;
  std::vector<i32> tokens_, places_;  // by place: the token; by pair: the place
  std::vector<i64> starts_, next_;    // by expert: its first place, and its next free one
  HugeBuffer gathered_, both_, active_, parts_;
};

}  // namespace headrace
