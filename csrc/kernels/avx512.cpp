// All kernels for AVX-512.
#include "core/ops.h"

#define HEADRACE_NS avx512
#define HEADRACE_ROWS 4
#define HEADRACE_HALVES 2
#include "kernels/simd_avx512.h"
// clang-format off
#include "kernels/tiles.h"
#include "kernels/dot_fma.h"
#include "kernels/table.h"
// clang-format on

namespace headrace {
HEADRACE_TABLE(kernels_avx512, FmaDot)
}
