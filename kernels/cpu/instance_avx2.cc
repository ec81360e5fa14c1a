// The vector code for x86-64 processors with AVX2 and FMA.
#if defined(__x86_64__)
#define TRIMTAB_INSTANCE avx2
#define TRIMTAB_MICRO_ROWS 6
#include "kernels/cpu/simd/prelude.h"
// Everything below is compiled for AVX2: no standard header may come after this line.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#include "kernels/cpu/simd/table.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace trimtab::cpu {
const Instance kAvx2Instance = avx2::MakeInstance("avx2");
}  // namespace trimtab::cpu
#endif
