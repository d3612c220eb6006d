// Exact selection among a row's candidates.
#pragma once
#include "core/types.h"

namespace headrace {

// The k-th largest of `values` [n], 1 ≤ k ≤ n; reorders them.
float kth_largest(float* values, i64 n, i64 k);

struct Candidate {
  float gap;
  i32 id;
};
// By falling gap, ties by lowest id.
void sort_falling(Candidate* candidates, i64 n);

}  // namespace headrace
