// All kernels for AVX2 and FMA.
#include "core/ops.h"

#define HEADRACE_NS avx2
#define HEADRACE_ROWS 3
#define HEADRACE_HALVES 1
#include "kernels/simd_avx2.h"
// clang-format off
#include "kernels/transpose.h"
#include "kernels/tiles.h"
#include "kernels/dot_fma.h"
#include "kernels/table.h"
// clang-format on

namespace headrace {
HEADRACE_TABLE(kernels_avx2, FmaDot)
}
