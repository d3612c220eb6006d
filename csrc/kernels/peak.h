// What fp32 arithmetic can reach: independent chains of fused multiply-adds, nothing read or written between.
#pragma once
#include "kernels/math.h"

namespace headrace::HEADRACE_NS {

inline float chains(i64 rounds, float factor) {
  const F16 x = set(factor), y = set(1.0f - factor);
  F16 sums[kChains];
  for (i64 c = 0; c < kChains; c++) sums[c] = set(static_cast<float>(c));
  for (i64 i = 0; i < rounds; i++)
    for (i64 c = 0; c < kChains; c++) sums[c] = fma(sums[c], x, y);
  F16 total = sums[0];
  for (i64 c = 1; c < kChains; c++) total = add(total, sums[c]);
  return largest(total);
}

}  // namespace headrace::HEADRACE_NS
