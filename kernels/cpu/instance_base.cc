// The vector code for the compiler's default target: SSE2 on x86-64, NEON on AArch64.
#define TRIMTAB_INSTANCE base
#if defined(__aarch64__)
#define TRIMTAB_MICRO_ROWS 6
#else
#define TRIMTAB_MICRO_ROWS 2
#endif
#include "kernels/cpu/simd/prelude.h"
#include "kernels/cpu/simd/table.h"

namespace trimtab::cpu {
const Instance kBaseInstance = base::MakeInstance("base");
}  // namespace trimtab::cpu
