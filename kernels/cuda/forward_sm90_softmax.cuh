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
        paper(kind == TRIMTAB_ATTENTION_PAPER),
        stabilized(kind == TRIMTAB_ATTENTION_STABILIZED) {}

  float scale_log2, log2_shift;
  bool paper;  // the maximum of a row is given beforehand
  bool stabilized;
};

// Scores and accumulators have the layout of wgmma.cuh: rows r and r + 8 of a thread are its halves 0 and 1.
template <typename T, int kKeys>
struct OnlineSoftmax {
  float max[2];      // running maximum of the scores, unscaled
  float plain[2];    // this thread's part of the sum of the weights
  float rounded[2];  // ... of the rounded weights
  float rescale[2];  // what the last tile's maximum makes of earlier sums and of O

  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[half] = -INFINITY;
      plain[half] = rounded[half] = 0.0f;
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

  __device__ __forceinline__ static float TileMax(const float (&s)[kKeys / 2], int half) {
    float even = s[half * 2], odd = s[half * 2 + 1];
#pragma unroll
    for (int n = 1; n < kKeys / 8; ++n) {
      even = fmaxf(even, s[n * 4 + half * 2]);
      odd = fmaxf(odd, s[n * 4 + half * 2 + 1]);
    }
    return QuadMax(fmaxf(even, odd));
  }

  // Scores to weights, in place.
  __device__ __forceinline__ void Weigh(float (&s)[kKeys / 2], const SoftmaxRule& rule) {
    float bias[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float next = rule.paper ? max[half] : fmaxf(max[half], TileMax(s, half));
      const float shift = next == -INFINITY ? 0.0f : next * rule.scale_log2;
      rescale[half] = Exp2(max[half] * rule.scale_log2 - shift);
      max[half] = next;
      bias[half] = rule.log2_shift - shift;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float even = 0.0f, odd = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        float& x = s[n * 4 + half * 2];
        float& y = s[n * 4 + half * 2 + 1];
        x = Exp2(fmaf(x, rule.scale_log2, bias[half]));
        y = Exp2(fmaf(y, rule.scale_log2, bias[half]));
        even += x;
        odd += y;
      }
      plain[half] = plain[half] * rescale[half] + (even + odd);
    }
  }

  // Weights to operands of the second product.
  __device__ __forceinline__ void Round(uint32_t (&p)[kKeys / 4], const float (&s)[kKeys / 2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float even = 0.0f, odd = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        uint32_t& pair = p[n * 2 + half];
        pair = T::Pack(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]);
        even += T::Low(pair);
        odd += T::High(pair);
      }
      rounded[half] = rounded[half] * rescale[half] + (even + odd);
    }
  }
};

}  // namespace trimtab::cuda
#endif
