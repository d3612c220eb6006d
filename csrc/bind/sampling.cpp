// Sampling over numpy logits.
#include <nanobind/nanobind.h>

#include "bind/arrays.h"
#include "bind/machine.h"

namespace headrace {
namespace {

template <class T>
using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Keys = nb::ndarray<const u32, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
constexpr i64 kMaxVocab = i64{1} << 18;

View logits_of(const Input& logits) {
  const View view = view_of(logits);
  require(view.type == Type::f32 && view.cols > 0, "logits are float32");
  require(view.cols <= kMaxVocab, "vocabularies of up to 262,144 tokens are supported");
  return view;
}

template <class Rows>
void require_rows(const Rows& values, const View& logits) {
  require(static_cast<i64>(values.shape(0)) == logits.rows, "one value per row is expected");
}

void sample(Machine& machine, const Input& logits, const Floats& temperature, const Floats& top_p, const Ints& top_k,
            const Floats& min_p, const Keys& low, const Keys& high, const Out<i32>& token_ids) {
  const View rows = logits_of(logits);
  require_rows(temperature, rows);
  require_rows(top_p, rows);
  require_rows(top_k, rows);
  require_rows(min_p, rows);
  require_rows(low, rows);
  require_rows(high, rows);
  require_rows(token_ids, rows);
  const Sample op{rows, temperature.data(), top_p.data(), top_k.data(), min_p.data(), low.data(), high.data(), token_ids.data()};
  nb::gil_scoped_release release;
  machine.pool.run([&](Team& team) { machine.kernels.sample(op, team); });
}

void score(Machine& machine, const Input& logits, const Ints& token_ids, const Out<float>& token_logprobs,
           const Out<i32>& ranks, const Out<float>& sum_smaller_probs, const Out<i32>& top_ids, const Out<float>& top_logprobs) {
  const View rows = logits_of(logits);
  require_rows(token_ids, rows);
  require_rows(token_logprobs, rows);
  require_rows(ranks, rows);
  require_rows(sum_smaller_probs, rows);
  require(top_ids.ndim() == 2 && top_logprobs.ndim() == 2 && top_ids.shape(1) == top_logprobs.shape(1), "logprobs: shapes do not fit");
  require_rows(top_ids, rows);
  require_rows(top_logprobs, rows);
  const i64 num_top = static_cast<i64>(top_ids.shape(1));
  require(num_top <= rows.cols, "logprobs: more alternatives than tokens");
  for (i64 r = 0; r < rows.rows; r++)
    require(token_ids.data()[r] >= 0 && token_ids.data()[r] < rows.cols, "logprobs: no such token id");
  const Score op{rows, token_ids.data(), num_top, token_logprobs.data(), ranks.data(), sum_smaller_probs.data(),
                 top_ids.data(), top_logprobs.data()};
  nb::gil_scoped_release release;
  machine.pool.run([&](Team& team) { machine.kernels.score(op, team); });
}

}  // namespace

void bind_sampling(nb::class_<Machine>& machine) { machine.def("sample", &sample).def("score", &score); }

}  // namespace headrace
