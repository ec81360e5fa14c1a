// Standard headers and shared types of the vector code; comes before any change of the compiler's target. The headers
// of this folder are each compiled once a copy, by kernels/cpu/instance_*.cc only, and define everything in an unnamed
// namespace: nothing compiled for one instruction set can be linked into another.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_PRELUDE_H_
#define TRIMTAB_KERNELS_CPU_SIMD_PRELUDE_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/instance.h"
#include "kernels/cpu/job.h"
#include "kernels/cpu/scratch.h"
#include "kernels/include/trimtab/kernels.h"

#if defined(__GNUC__) && !defined(__clang__)
// Vectors are only passed to functions that are always inlined, so their calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define TRIMTAB_INLINE inline __attribute__((always_inline))

#endif
