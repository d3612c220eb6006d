// Mixtures of experts: which experts a token goes to, and the sum of what they gave.
#pragma once

namespace headrace::HEADRACE_NS {

// The next highest logit behind the one given last: by falling value, ties by rising id.
inline i32 next_expert(const float* logits, i64 num_experts, float last, i32 last_id) {
  i32 best = -1;
  for (i32 e = 0; e < num_experts; e++) {
    const bool comes_later = logits[e] < last || (logits[e] == last && e > last_id);
    if (comes_later && (best < 0 || logits[e] > logits[best])) best = e;
  }
  return best;
}

inline float sum_of_exps(const float* logits, i64 count, float peak) {
  F16 lanes = set(0.0f);
  by_sixteen(count, [&](i64 i, i64 n) {
    lanes = add(lanes, keep(exp(sub(load_up_to(logits + i, n), set(peak))), 0, n, set(0.0f)));
  });
  return sum(lanes);
}

inline void route_row(const Route& op, i64 r) {
  const float* logits = op.logits.row<float>(r);
  const i64 num_experts = op.logits.cols;
  i32* ids = op.ids + r * op.num_chosen;
  float* weights = op.weights + r * op.num_chosen;
  float last = __builtin_inff();
  for (i64 k = 0; k < op.num_chosen; k++) {
    const i32 found = next_expert(logits, num_experts, last, k ? ids[k - 1] : -1);
    ids[k] = found < 0 ? static_cast<i32>(k) : found;  // only where logits are not numbers
    last = logits[ids[k]];
  }
  float total = op.renormalizes ? 0.0f : sum_of_exps(logits, num_experts, logits[ids[0]]);
  for (i64 k = 0; k < op.num_chosen; k++) {
    weights[k] = exp_of(logits[ids[k]] - logits[ids[0]]);
    if (op.renormalizes) total += weights[k];
  }
  for (i64 k = 0; k < op.num_chosen; k++) weights[k] /= total;
}

inline void route(const Route& op, Team& team) {
  FlushDenormals flush;
  for_rows(team, op.logits.rows, op.logits.cols * op.num_chosen, [&](i64 r) { route_row(op, r); });
}

template <class T>
void combine_as(const Combine& op, Team& team) {
  for_rows(team, op.out.rows, op.out.cols * op.num_chosen, [&](i64 r) {
    by_sixteen(op.out.cols, [&](i64 i, i64 n) {
      F16 total = set(0.0f);
      for (i64 k = r * op.num_chosen; k < (r + 1) * op.num_chosen; k++)
        total = add(total, mul(load_up_to(op.parts.row<float>(op.places[k]) + i, n), set(op.weights[k])));
      store_up_to(op.out.row<T>(r) + i, total, n);
    });
  });
}

inline void combine(const Combine& op, Team& team) {
  FlushDenormals flush;
  if (op.out.type == Type::f32) return combine_as<float>(op, team);
  combine_as<u16>(op, team);
}

}  // namespace headrace::HEADRACE_NS
