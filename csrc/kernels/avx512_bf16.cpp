// All kernels for AVX-512 with VDPBF16PS.
#include <concepts>
#include <cstring>
#include <type_traits>

#include "core/ops.h"

#define HEADRACE_NS avx512_bf16
#define HEADRACE_ROWS 4
#define HEADRACE_HALVES 2
#include "kernels/simd_avx512.h"
// clang-format off
#include "kernels/tiles.h"
#include "kernels/dot_fma.h"
#include "kernels/dot_bf16.h"
#include "kernels/table.h"
// clang-format on

namespace headrace {
HEADRACE_TABLE(kernels_avx512_bf16, ChainDot)

namespace {

// Numbers of all sizes, denormal and enormous ones too.
u32 next(u64& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<u32>(state >> 32);
}

float float_of(u32 bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

bool is_chained(const u32* sums, const u32* a, const u32* b) {
  float result[16];
  const __m512bh x = reinterpret_cast<__m512bh>(_mm512_loadu_si512(a)), y = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b));
  _mm512_storeu_ps(result, _mm512_dpbf16_ps(_mm512_loadu_ps(sums), x, y));
  for (int i = 0; i < 16; i++) {
    const float first = __builtin_fmaf(float_of(a[i] & 0xffff0000), float_of(b[i] & 0xffff0000), float_of(sums[i]));
    const float both = __builtin_fmaf(float_of(a[i] << 16), float_of(b[i] << 16), first);
    u32 got, wanted;
    std::memcpy(&got, result + i, 4);
    std::memcpy(&wanted, &both, 4);
    if (got != wanted && both == both) return false;
  }
  return true;
}

}  // namespace

bool pairs_are_chained() {
  avx512_bf16::FlushDenormals flush;
  u64 state = 1;
  for (int round = 0; round < 4096; round++) {
    u32 sums[16], a[16], b[16];
    for (int i = 0; i < 16; i++) {
      const u32 size = round % 2 ? 0x3f803f80 : 0;  // every other round of ordinary size, so that roundings show
      sums[i] = round % 2 ? 0x3f000000 + (next(state) & 0x81ffffff) : next(state);
      a[i] = size ? (next(state) & 0x81ff81ff) + 0x3f003f00 : next(state);
      b[i] = size ? (next(state) & 0x81ff81ff) + 0x3f003f00 : next(state);
    }
    if (!is_chained(sums, a, b)) return false;
  }
  return true;
}
}
