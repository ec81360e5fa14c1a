// Reads of contiguous values of any dtype, eight at a time.
#ifndef TRIMTAB_KERNELS_CUDA_READ_CUH_
#define TRIMTAB_KERNELS_CUDA_READ_CUH_

#include "kernels/cuda/mma.cuh"

namespace trimtab::cuda {

struct Fp32 {
  using Type = float;
};

// `from` is 16-byte aligned.
template <typename T>
__device__ inline void ReadEight(const typename T::Type* from, float (&x)[8]) {
  if constexpr (sizeof(typename T::Type) == 4) {
    const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) x[2 * i] = T::Low(word[i]), x[2 * i + 1] = T::High(word[i]);
  }
}

template <typename Value>
__device__ inline Value WarpSum(Value x) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(~0u, x, i);
  return x;
}

}  // namespace trimtab::cuda
#endif
