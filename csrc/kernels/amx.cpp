// All kernels for AVX-512 with AMX tiles.
#include <cstring>

#include "core/ops.h"

#define HEADRACE_NS amx
#define HEADRACE_ROWS 4
#define HEADRACE_HALVES 2
#include "kernels/simd_avx512.h"
// clang-format off
#if defined(HEADRACE_EMULATE_AMX)
#include "kernels/amx_emulated.h"
#endif
#include "kernels/tiles.h"
#include "kernels/dot_fma.h"
#include "kernels/dot_amx.h"
#include "kernels/table.h"
// clang-format on

namespace headrace {
HEADRACE_TABLE(kernels_amx, AmxDot)
}
