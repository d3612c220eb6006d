#include "core/experts.h"

#include <algorithm>

namespace headrace {

ExpertRoom::ExpertRoom(i64 num_experts, i64 max_pairs, i64 hidden, i64 inner, Type type)
    : hidden_(hidden), inner_(inner), type_(type), tokens_(max_pairs), places_(max_pairs),
      starts_(num_experts + 1), next_(num_experts), gathered_(max_pairs * hidden * item_bytes(type)),
      both_(max_pairs * 2 * inner * item_bytes(type)), active_(max_pairs * inner * item_bytes(type)), parts_(max_pairs * hidden * 4) {}

void ExpertRoom::sort_by_expert(const Experts& op) {
  const i64 num_pairs = op.x.rows * op.num_chosen;
  std::fill(starts_.begin(), starts_.end(), 0);
  for (i64 i = 0; i < num_pairs; i++) starts_[op.ids[i] + 1]++;
  for (std::size_t e = 1; e < starts_.size(); e++) starts_[e] += starts_[e - 1];
  std::copy(starts_.begin(), starts_.end() - 1, next_.begin());
  for (i64 i = 0; i < num_pairs; i++) {
    const i64 place = next_[op.ids[i]]++;
    places_[i] = static_cast<i32>(place);
    tokens_[place] = static_cast<i32>(i / op.num_chosen);
  }
}

void ExpertRoom::run(const Experts& op, const Kernels& kernels, Team& team) {
  team.solo([&] { sort_by_expert(op); });
  const i64 num_pairs = op.x.rows * op.num_chosen;
  const View gathered{gathered_.as<char>(), num_pairs, hidden_, hidden_, type_};
  const View both{both_.as<char>(), num_pairs, 2 * inner_, 2 * inner_, type_};
  const View active{active_.as<char>(), num_pairs, inner_, inner_, type_};
  const View parts{parts_.as<char>(), num_pairs, hidden_, hidden_, Type::f32};
  auto multiply_by_expert = [&](const View& x, const std::vector<const PackedWeight*>& weights, const View& y) {
    for (std::size_t e = 0; e < weights.size(); e++)
      if (const i64 count = starts_[e + 1] - starts_[e])
        kernels.linear({x.part(starts_[e], count), weights[e], nullptr, y.part(starts_[e], count)}, team);
  };
  kernels.gather({op.x, tokens_.data(), gathered}, team);
  multiply_by_expert(gathered, *op.gate_up, both);
  kernels.glu({both, active, op.activation}, team);
  multiply_by_expert(active, *op.down, parts);
  kernels.combine({parts, places_.data(), op.weights, op.num_chosen, op.out}, team);
}

}  // namespace headrace
