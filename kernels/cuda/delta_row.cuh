// Rows of the delta-preserving step: how a few lanes hold one, and its candidates as sortable keys.
#ifndef TRIMTAB_KERNELS_CUDA_DELTA_ROW_CUH_
#define TRIMTAB_KERNELS_CUDA_DELTA_ROW_CUH_

#include "kernels/cuda/mma.cuh"

namespace trimtab::cuda {

// Distance of stored neighbours in x's binade; 0 where x is 0. NaN and Inf give Inf, which no bound admits.
template <typename T>
__device__ float Ulp(float x) {
  const float power = __uint_as_float(__float_as_uint(x) & 0x7f800000u);
  const float ulp = power * __uint_as_float((127u - T::kMantissaBits) << 23);
  if constexpr (T::kMantissaBits == 10) return power > 0.0f ? fmaxf(ulp, 0x1p-24f) : 0.0f;
  return ulp;
}

// A step |dO| ulp(O) has the mantissa of dO, 8 or 11 bits, so the low byte of its FP32 bits is free for 255 - column.
// Of such keys the largest is the largest step, and among equal steps the first column. Kept is the complement.
constexpr uint32_t kColumnBits = 0xffu;
constexpr uint32_t kSmallestKey = 0x00800000u;  // of 2^-126: smaller steps are none
constexpr uint32_t kLargestKey = 0x7f7fffffu;   // of any finite step

__device__ inline uint32_t KeyComplement(float step, uint32_t column) {
  return ~(__float_as_uint(step) | (kColumnBits - column));
}
// Keys up to this one belong to steps <= bound |residual|.
__device__ inline uint32_t KeyLimit(float bound, float residual) {
  return min(__float_as_uint(bound * fabsf(residual)), kLargestKey) | kColumnBits;
}
__device__ inline float StepOf(uint32_t key) { return __uint_as_float(key & ~kColumnBits); }

// Begins to copy 16 bytes of a row from `column` on into shared memory, zeros behind its last column. kWide: the row is
// 16-byte aligned and a whole number of such chunks.
template <bool kWide>
__device__ void FetchChunk(uint16_t* shared, const uint16_t* row, int column, int columns) {
  if constexpr (kWide) {
    CopyAsync(static_cast<uint32_t>(__cvta_generic_to_shared(shared)), row + column, column < columns);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) shared[i] = column + i < columns ? row[column + i] : uint16_t{0};
  }
}

template <bool kWide>
__device__ void StoreChunk(uint16_t* row, int column, int columns, uint4 chunk) {
  if constexpr (kWide) {
    if (column < columns) *reinterpret_cast<uint4*>(row + column) = chunk;
  } else {
    const uint32_t word[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (column + i < columns) row[column + i] = static_cast<uint16_t>(word[i / 2] >> (i % 2 * 16));
    }
  }
}

}  // namespace trimtab::cuda
#endif
