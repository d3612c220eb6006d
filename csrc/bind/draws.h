// What is drawn of logits, as Python says it; every index that a kernel follows is checked here.
#pragma once
#include "bind/arrays.h"

namespace headrace {

template <class T>
using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Seeds = nb::ndarray<const u64, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline void require_logits(const View& logits) {
  require(logits.type == Type::f32 && logits.cols > 0, "logits are float32");
  require(logits.cols <= kMaxVocab, "vocabularies of up to 262,144 tokens are supported");
}

template <class Values>
void require_count(const Values& values, i64 count) {
  require(static_cast<i64>(values.shape(0)) == count, "one value per row is expected");
}

inline void require_below(const Ints& values, i64 limit, const char* what) {
  for (std::size_t i = 0; i < values.shape(0); i++) require(values.data()[i] >= 0 && values.data()[i] < limit, what);
}

// headrace.ops.base.SamplingInputs, N of each.
struct CutArrays {
  Floats temperature, top_p;
  Ints top_k;
  Floats min_p;
  Seeds seeds;
  Ints choices, positions;

  i64 count() const { return static_cast<i64>(temperature.shape(0)); }
  void check() const {
    require_count(top_p, count());
    require_count(top_k, count());
    require_count(min_p, count());
    require_count(seeds, count());
    require_count(choices, count());
    require_count(positions, count());
  }
  Sample sample(const View& logits, const i32* rows, i32* token_ids, bool* is_finite) const {
    return {logits, count(), rows, temperature.data(), top_p.data(), top_k.data(), min_p.data(), seeds.data(),
            choices.data(), positions.data(), token_ids, is_finite};
  }
};

// headrace.ops.base.Logprobs, M of each.
struct ScoreArrays {
  Out<float> token_logprobs;
  Out<i32> ranks;
  Out<float> sum_smaller_probs;
  Out<i32> top_ids;
  Out<float> top_logprobs;

  i64 count() const { return static_cast<i64>(token_logprobs.shape(0)); }
  void check(i64 vocab) const {
    require(top_ids.ndim() == 2 && top_logprobs.ndim() == 2 && top_ids.shape(1) == top_logprobs.shape(1) &&
                token_logprobs.ndim() == 1, "logprobs: shapes do not fit");
    require_count(ranks, count());
    require_count(sum_smaller_probs, count());
    require_count(top_ids, count());
    require_count(top_logprobs, count());
    require(static_cast<i64>(top_ids.shape(1)) <= vocab, "logprobs: more alternatives than tokens");
  }
  Score score(const View& logits, const i32* rows, const i32* token_ids) const {
    return {logits, count(), rows, token_ids, static_cast<i64>(top_ids.shape(1)), token_logprobs.data(), ranks.data(),
            sum_smaller_probs.data(), top_ids.data(), top_logprobs.data()};
  }
};

// headrace.ops.base.Wanted, and where what is drawn goes.
struct DrawArrays {
  Ints tokens;  // [R]
  Ints drawn;   // [N]
  CutArrays cuts;
  Out<i32> token_ids;   // [N]
  Out<bool> is_finite;  // [N]
  Ints scored;          // [M]
  ScoreArrays found;

  i64 rows() const { return static_cast<i64>(tokens.shape(0)); }
  void check(i64 num_tokens, i64 vocab) const {
    require_below(tokens, num_tokens, "draws: no such token");
    for (i64 r = 1; r < rows(); r++) require(tokens.data()[r - 1] < tokens.data()[r], "draws: tokens rise");
    require_below(drawn, rows(), "draws: no such row");
    require_count(drawn, cuts.count());
    require_count(token_ids, cuts.count());
    require_count(is_finite, cuts.count());
    require_below(scored, cuts.count(), "draws: no such draw");
    require_count(scored, found.count());
    found.check(vocab);
  }
};

}  // namespace headrace
