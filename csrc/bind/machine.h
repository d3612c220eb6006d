// The threads and the kernels that run on them.
#pragma once
#include <string>

#include "core/isa.h"
#include "core/ops.h"

namespace headrace {

inline const Kernels& kernels_of(Isa isa) {
#if defined(HEADRACE_X86)
  if (isa == Isa::avx2) return kernels_avx2;
  if (isa == Isa::avx512) return kernels_avx512;
#if defined(HEADRACE_AVX512_BF16)
  if (isa == Isa::avx512_bf16) return kernels_avx512_bf16;
#endif
#if defined(HEADRACE_AMX)
  if (isa == Isa::amx) return kernels_amx;
#endif
#endif
  return kernels_portable;
}

struct Machine {
  Machine(int num_threads, const std::string& wanted) : isa(choose_isa(wanted)), kernels(kernels_of(isa)), pool(num_threads) {}
  // Whether its weights and caches are chained; another machine's are not to be computed with.
  bool is_chained() const { return isa == Isa::avx512_bf16; }
  bool owns(const PackedWeight& weight) const { return weight.type == Type::f32 || weight.is_chained == is_chained(); }
  bool owns(const Cache& cache) const { return cache.type == Type::f32 || cache.is_chained == is_chained(); }
  Isa isa;
  const Kernels& kernels;
  Pool pool;
};

}  // namespace headrace
