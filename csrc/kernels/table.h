// The functions of one instruction set as a table. The file that includes this has chosen HEADRACE_NS, vectors and Dot.
#pragma once

// clang-format off
#include "kernels/math.h"
#include "kernels/rows.h"
#include "kernels/linear.h"
#include "kernels/elementwise.h"
#include "kernels/pages.h"
#include "kernels/attention.h"
#include "kernels/experts.h"
#include "kernels/sampling.h"
#include "kernels/peak.h"
// clang-format on

#define HEADRACE_TABLE(name, Dot)                                                                    \
  const Kernels name = {&HEADRACE_NS::linear<HEADRACE_NS::Dot>, &HEADRACE_NS::embed,                 \
                        &HEADRACE_NS::rms_norm, &HEADRACE_NS::layer_norm, &HEADRACE_NS::activate,    \
                        &HEADRACE_NS::glu, &HEADRACE_NS::add, &HEADRACE_NS::scale, &HEADRACE_NS::cap, \
                        &HEADRACE_NS::route, &HEADRACE_NS::combine, &HEADRACE_NS::gather, &HEADRACE_NS::rotate, \
                        &HEADRACE_NS::attend<HEADRACE_NS::Dot>, &HEADRACE_NS::sample,                 \
                        &HEADRACE_NS::score, &HEADRACE_NS::chains};
