// The end of a block of query rows in the sm_90a forward: O, its low half and the log-sum-exp to memory.
#ifndef TRIMTAB_KERNELS_CUDA_FORWARD_SM90_STORE_CUH_
#define TRIMTAB_KERNELS_CUDA_FORWARD_SM90_STORE_CUH_

#include "kernels/cuda/forward_sm90.h"
#include "kernels/cuda/forward_sm90_softmax.cuh"

namespace trimtab::cuda {

// Of four neighbouring lanes, each with words of four columns: lane i gets the words of column i, in the lanes' order.
__device__ __forceinline__ void TransposeQuad(uint32_t (&word)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(~0u, odd ? word[i] : word[i + 1], 1);
    word[i] = odd ? other : word[i];
    word[i + 1] = odd ? word[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(~0u, upper ? word[i] : word[i + 2], 2);
    word[i] = upper ? other : word[i];
    word[i + 2] = upper ? word[i + 2] : other;
  }
}

// Columns [0, kDim) of one row, 32 at a time; this lane's part of each 32 is `words(group, word)`.
template <typename T, int kDim, typename Words>
__device__ __forceinline__ void StoreRow(typename T::Type* row, bool wide, bool valid, const Words& words) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int group = 0; group < kDim / 32; ++group) {
    uint32_t word[4];
    words(group, word);
    if (wide) {
      TransposeQuad(word);
      if (valid)
        *reinterpret_cast<uint4*>(row + group * 32 + lane * 8) = make_uint4(word[0], word[1], word[2], word[3]);
    } else if (valid) {
#pragma unroll
      for (int n = 0; n < 4; ++n) *reinterpret_cast<uint32_t*>(row + group * 32 + n * 8 + lane * 2) = word[n];
    }
  }
}

// Rows `row` and `row` + 8 of one head from the accumulators `o`.
template <typename T, int kDim, int kKeys>
__device__ __forceinline__ void StoreRows(const ForwardSm90Job& job, const SoftmaxRule& rule,
                                          const OnlineSoftmax<T, kKeys>& softmax,
                                          const float (&o)[ForwardSm90Shape<kDim>::kOutputs], int batch, int head,
                                          int first_row) {
  using Type = typename T::Type;
  const trimtab_cuda_attention& a = job.a;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_row + 8 * half;
    const bool valid = row < a.queries;
    const float plain = QuadSum(softmax.plain[half]), rounded = o[kDim / 2 + half * 2];
    const float total = rule.stabilized ? rounded : plain;
    const float inverse = 1.0f / total;
    const auto value = [&](int i) { return total == 0.0f ? 0.0f : o[i] * inverse; };
    if (a.lse.data != nullptr && valid && threadIdx.x % 4 == 0) {
      static_cast<float*>(a.lse.data)[Offset(a.lse, false, batch, head, row)] =
          LogSumExp(softmax.top[half], plain, rule.log2_shift, a.empty_lse);
    }
    StoreRow<T, kDim>(static_cast<Type*>(a.out.data) + Offset(a.out, false, batch, head, row), job.wide_out, valid,
                      [&](int group, uint32_t(&word)[4]) {
#pragma unroll
                        for (int n = 0; n < 4; ++n) {
                          const int at = (group * 4 + n) * 4 + half * 2;
                          word[n] = T::Pack(value(at), value(at + 1));
                        }
                      });
    if (a.out_low.data == nullptr) continue;
    StoreRow<T, kDim>(static_cast<Type*>(a.out_low.data) + Offset(a.out_low, false, batch, head, row), job.wide_low,
                      valid, [&](int group, uint32_t(&word)[4]) {
#pragma unroll
                        for (int n = 0; n < 4; ++n) {
                          const int at = (group * 4 + n) * 4 + half * 2;
                          const float x = value(at), y = value(at + 1);
                          const uint32_t pair = T::Pack(x, y);
                          word[n] = T::Pack(x - T::Low(pair), y - T::High(pair));
                        }
                      });
  }
}

}  // namespace trimtab::cuda
#endif
