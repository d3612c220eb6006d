// All kernels for any processor.
#include "core/ops.h"

#define HEADRACE_NS portable
#define HEADRACE_ROWS 1
#define HEADRACE_HALVES 1
#include "kernels/simd_portable.h"
// clang-format off
#include "kernels/transpose.h"
#include "kernels/tiles.h"
#include "kernels/dot_fma.h"
#include "kernels/table.h"
// clang-format on

namespace headrace {
HEADRACE_TABLE(kernels_portable, FmaDot)
}
