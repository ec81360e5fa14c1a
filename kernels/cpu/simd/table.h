// The function table of one compiled copy.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_TABLE_H_
#define TRIMTAB_KERNELS_CPU_SIMD_TABLE_H_

#include "kernels/cpu/simd/activation.h"
#include "kernels/cpu/simd/backward.h"
#include "kernels/cpu/simd/delta_step.h"
#include "kernels/cpu/simd/forward.h"
#include "kernels/cpu/simd/probe.h"
#include "kernels/cpu/simd/spectral.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

constexpr Instance MakeInstance(const char* name) {
  return {name, Forward, Backward, Probe, DeltaStep, Spectral, Activation};
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
