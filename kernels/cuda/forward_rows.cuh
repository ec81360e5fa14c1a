// What both forwards do with a query row whose scores four neighbouring lanes share.
#ifndef TRIMTAB_KERNELS_CUDA_FORWARD_ROWS_CUH_
#define TRIMTAB_KERNELS_CUDA_FORWARD_ROWS_CUH_

#include "kernels/cuda/job.h"
#include "kernels/cuda/mma.cuh"

namespace trimtab::cuda {

inline constexpr float kLog2Shift = -0.356143810225275f;  // log2(25/32)
inline constexpr float kPaperTolerance = 1e-3f;           // nat; scores this near the maximum count as tied

__device__ inline float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float QuadSum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// What the published rule subtracts for a row with maximum `max`, reached `count` times; the shift is capped at 16
// nats, so that no row empties. `unit`: one nat in the scores' unit.
__device__ inline float PaperMaximum(float max, float count, float beta, float unit) {
  if (count > 1.0f && max > 0.0f) return max + fminf((beta - 1.0f) * max, 16.0f * unit);
  if (count > 1.0f && max < 0.0f && max > -INFINITY) return max + fminf(-max, 16.0f * unit);
  return max;
}

// Natural log-sum-exp of a row from the sum `plain` of its unrounded weights exp2(score + log2_shift - top); scores and
// `top` in log2 units.
__device__ inline float LogSumExp(float top, float plain, float log2_shift, float empty) {
  return plain == 0.0f ? empty : (top - log2_shift) * kLn2 + logf(plain);
}

}  // namespace trimtab::cuda
#endif
