// Checks what the caller passed and fills in its defaults. Failures leave their cause for trimtab_kernel_error().
#ifndef TRIMTAB_KERNELS_CPU_VALIDATE_H_
#define TRIMTAB_KERNELS_CPU_VALIDATE_H_

#include <cstdint>

#include "kernels/cpu/job.h"

namespace trimtab::cpu {

// Upper bounds of every dimension, so that no product of sizes overflows.
inline constexpr int64_t kMaxBatch = int64_t{1} << 20;
inline constexpr int64_t kMaxHeads = int64_t{1} << 14;
inline constexpr int64_t kMaxSequence = int64_t{1} << 24;
inline constexpr int64_t kMaxHeadDim = int64_t{1} << 14;
inline constexpr int64_t kMaxWeightDim = int64_t{1} << 28;
inline constexpr int32_t kMaxPowerIterations = 10'000;

enum class Use { kForward, kBackward, kProbe };

trimtab_kernel_status Resolve(const trimtab_attention* a, Use use, AttentionJob* job);
trimtab_kernel_status Resolve(const trimtab_attention_grad* g, GradJob* job);
trimtab_kernel_status Resolve(const trimtab_probe* p, ProbeJob* job);
trimtab_kernel_status Resolve(const trimtab_delta_preserve* d, DeltaJob* job);
trimtab_kernel_status Resolve(const trimtab_spectral* s, trimtab_spectral* resolved);
trimtab_kernel_status CheckActivation(trimtab_dtype dtype, const void* data, int64_t n, float threshold,
                                      const trimtab_activation_stats* stats);

// Keeps the printf-style cause for this thread and returns `code`.
trimtab_kernel_status Fail(trimtab_kernel_status code, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace trimtab::cpu
#endif
