#include "core/select.h"

#include <algorithm>
#include <functional>

namespace headrace {

float kth_largest(float* values, i64 n, i64 k) {
  std::nth_element(values, values + k - 1, values + n, std::greater<float>());
  return values[k - 1];
}

void sort_falling(Candidate* candidates, i64 n) {
  std::sort(candidates, candidates + n,
            [](const Candidate& a, const Candidate& b) { return a.gap != b.gap ? a.gap > b.gap : a.id < b.id; });
}

}  // namespace headrace
