// Sampling over numpy logits, and what a program is told of its draws.
#include <nanobind/nanobind.h>

#include "bind/draws.h"
#include "bind/machine.h"

namespace headrace {
namespace {

void sample(Machine& machine, const Input& logits, const Floats& temperature, const Floats& top_p, const Ints& top_k,
            const Floats& min_p, const Seeds& seeds, const Ints& choices, const Ints& positions, const Out<i32>& token_ids) {
  const View rows = view_of(logits);
  const CutArrays cuts{temperature, top_p, top_k, min_p, seeds, choices, positions};
  require_logits(rows);
  require_count(temperature, rows.rows);
  require_count(token_ids, rows.rows);
  cuts.check();
  const Sample op = cuts.sample(rows, nullptr, token_ids.data(), nullptr);
  nb::gil_scoped_release release;
  machine.pool.run([&](Team& team) { machine.kernels.sample(op, team); });
}

void score(Machine& machine, const Input& logits, const Ints& token_ids, const Out<float>& token_logprobs,
           const Out<i32>& ranks, const Out<float>& sum_smaller_probs, const Out<i32>& top_ids, const Out<float>& top_logprobs) {
  const View rows = view_of(logits);
  const ScoreArrays found{token_logprobs, ranks, sum_smaller_probs, top_ids, top_logprobs};
  require_logits(rows);
  require_count(token_ids, rows.rows);
  require_count(token_logprobs, rows.rows);
  found.check(rows.cols);
  require_below(token_ids, rows.cols, "logprobs: no such token id");
  const Score op = found.score(rows, nullptr, token_ids.data());
  nb::gil_scoped_release release;
  machine.pool.run([&](Team& team) { machine.kernels.score(op, team); });
}

DrawArrays make_draws(const Ints& tokens, const Ints& drawn, const Floats& temperature, const Floats& top_p, const Ints& top_k,
                      const Floats& min_p, const Seeds& seeds, const Ints& choices, const Ints& positions,
                      const Out<i32>& token_ids, const Out<bool>& is_finite, const Ints& scored,
                      const Out<float>& token_logprobs, const Out<i32>& ranks, const Out<float>& sum_smaller_probs,
                      const Out<i32>& top_ids, const Out<float>& top_logprobs) {
  const CutArrays cuts{temperature, top_p, top_k, min_p, seeds, choices, positions};
  cuts.check();
  return {tokens, drawn, cuts, token_ids, is_finite, scored,
          {token_logprobs, ranks, sum_smaller_probs, top_ids, top_logprobs}};
}

}  // namespace

void bind_sampling(nb::module_& module, nb::class_<Machine>& machine) {
  nb::class_<DrawArrays>(module, "Draws").def(nb::new_(&make_draws));
  machine.def("sample", &sample).def("score", &score);
}

}  // namespace headrace
