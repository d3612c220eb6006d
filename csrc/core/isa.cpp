#include "core/isa.h"

#include "core/ops.h"

#include <stdexcept>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headrace {
namespace {

#if defined(HEADRACE_X86)
// AMX state must be asked for once per process: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
bool may_use_tiles() {
#if defined(__linux__)
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
  return false;
#endif
}

bool has_amx_bf16() {
#if defined(HEADRACE_EMULATE_AMX)
  return true;
#endif
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool bf16 = (d >> 22) & 1, tile = (d >> 24) & 1;
  return bf16 && tile && may_use_tiles();
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

#if defined(HEADRACE_AVX512_BF16)
bool tried_pairs() {
  static const bool are_chained = pairs_are_chained();
  return are_chained;
}
#endif

bool is_usable(Isa isa) {
#if defined(HEADRACE_X86)
  __builtin_cpu_init();
  if (isa == Isa::avx2) return has_avx2();
  if (isa == Isa::avx512) return has_avx512();
#if defined(HEADRACE_AVX512_BF16)
  if (isa == Isa::avx512_bf16) return has_avx512() && __builtin_cpu_supports("avx512bf16") && tried_pairs();
#endif
#if defined(HEADRACE_AMX)
  if (isa == Isa::amx) return has_avx512() && has_amx_bf16();
#endif
#endif
  return isa == Isa::portable;
}

}  // namespace

const char* isa_name(Isa isa) {
  static const char* const names[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
  return names[static_cast<int>(isa)];
}

std::vector<Isa> usable_isas() {
  std::vector<Isa> found;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx})
    if (is_usable(isa)) found.push_back(isa);
  return found;
}

Isa choose_isa(const std::string& forced) {
  const std::vector<Isa> usable = usable_isas();
  if (forced.empty()) return usable.back();
  std::string known;
  for (Isa isa : usable) {
    if (forced == isa_name(isa)) return isa;
    known += (known.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw std::invalid_argument("HEADRACE_ISA is '" + forced + "'; this machine runs " + known);
}

}  // namespace headrace
