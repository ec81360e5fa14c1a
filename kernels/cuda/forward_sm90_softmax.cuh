// Online softmax of the sm_90a forward: a thread's share of two query rows of a tile of scores.
#ifndef TRIMTAB_KERNELS_CUDA_FORWARD_SM90_SOFTMAX_CUH_
#define TRIMTAB_KERNELS_CUDA_FORWARD_SM90_SOFTMAX_CUH_

#include "kernels/cuda/forward_rows.cuh"

namespace trimtab::cuda {

// How scores become weights, the same for all rows of a launch.
struct SoftmaxRule {
  __device__ SoftmaxRule(const trimtab_cuda_attention& a, int kind)
      : scale_log2(a.scale * kLog2E),
        log2_shift(kind == TRIMTAB_ATTENTION_STABILIZED ? kLog2Shift : 0.0f),
        ceiling(kind == TRIMTAB_ATTENTION_PAPER ? -INFINITY : INFINITY),
        paper(kind == TRIMTAB_ATTENTION_PAPER),
        stabilized(kind == TRIMTAB_ATTENTION_STABILIZED) {}

  float scale_log2, log2_shift;
  float ceiling;  // of what a tile may raise a row's maximum to, in log2 units
  bool paper;     // the maximum of a row is given beforehand
  bool stabilized;
};

// Scores and accumulators have the layout of wgmma.cuh: rows r and r + 8 of a thread are its halves 0 and 1.
template <typename T, int kKeys>
struct OnlineSoftmax {
  float top[2];      // running maximum of the scores, in log2 units
  float bias[2];     // what makes a score in these units the logarithm of its weight
  float plain[2];    // this thread's part of the sum of the weights
  float rescale[2];  // what the last tile's maximum makes of earlier sums and of O

  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = -INFINITY;
      plain[half] = 0.0f;
    }
  }

  // Hides the keys of a tile from `visible` on, counted from the tile's first.
  __device__ __forceinline__ static void Mask(float (&s)[kKeys / 2], const int (&visible)[2]) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int end = visible[half] - column;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (n * 8 + i >= end) s[n * 4 + half * 2 + i] = -INFINITY;
        }
    }
  }

  // Maxima of a tile's two rows.
  __device__ __forceinline__ static void TileMax(const float (&s)[kKeys / 2], float (&max)[2]) {
    float even[2] = {s[0], s[2]}, odd[2] = {s[1], s[3]};
#pragma unroll
    for (int n = 1; n < kKeys / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        even[half] = fmaxf(even[half], s[n * 4 + half * 2]);
        odd[half] = fmaxf(odd[half], s[n * 4 + half * 2 + 1]);
      }
    max[0] = QuadMax(fmaxf(even[0], odd[0]));
    max[1] = QuadMax(fmaxf(even[1], odd[1]));
  }

  // Takes the tile's maxima in.
  __device__ __forceinline__ void Advance(const float (&s)[kKeys / 2], const SoftmaxRule& rule) {
    float max[2];
    TileMax(s, max);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float next = fmaxf(top[half], fminf(max[half] * rule.scale_log2, rule.ceiling));
      const float shift = next == -INFINITY ? 0.0f : next;
      rescale[half] = Exp2(top[half] - shift);
      top[half] = next;
      bias[half] = rule.log2_shift - shift;
      plain[half] *= rescale[half];
    }
  }

  // Scores to weights, in place.
  __device__ __forceinline__ void Weigh(float (&s)[kKeys / 2], const SoftmaxRule& rule) {
    float even[2] = {0.0f, 0.0f}, odd[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& x = s[n * 4 + half * 2];
        float& y = s[n * 4 + half * 2 + 1];
        x = Exp2(fmaf(x, rule.scale_log2, bias[half]));
        y = Exp2(fmaf(y, rule.scale_log2, bias[half]));
        even[half] += x;
        odd[half] += y;
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) plain[half] += even[half] + odd[half];
  }

  // Weights to operands of the second product.
  __device__ __forceinline__ static void Round(uint32_t (&p)[kKeys / 4], const float (&s)[kKeys / 2]) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i] = T::Pack(s[2 * i], s[2 * i + 1]);
  }
};

}  // namespace trimtab::cuda
#endif
