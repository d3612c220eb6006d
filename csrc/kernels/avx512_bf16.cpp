// All kernels for AVX-512 with VDPBF16PS, in its own order of summation.
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
HEADRACE_TABLE(kernels_avx512_bf16, PairDot)
}
