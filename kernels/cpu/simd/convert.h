// Tensor rows to and from contiguous FP32, for every dtype and stride.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_CONVERT_H_
#define TRIMTAB_KERNELS_CPU_SIMD_CONVERT_H_

#include "kernels/cpu/simd/vec.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

TRIMTAB_INLINE float FromBits(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}
TRIMTAB_INLINE uint32_t ToBits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

TRIMTAB_INLINE float FromBf16(uint16_t h) { return FromBits(static_cast<uint32_t>(h) << 16); }

TRIMTAB_INLINE uint16_t ToBf16(float x) {
  const uint32_t u = ToBits(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(x == x ? rounded : (u >> 16) | 0x40u);
}

TRIMTAB_INLINE float FromF16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13;
  // Multiplying by 2^112 rebias the exponent and normalises subnormals exactly.
  const uint32_t finite = ToBits(FromBits(magnitude) * 0x1p112f);
  return FromBits(sign | ((h & 0x7c00u) == 0x7c00u ? magnitude | 0x7f800000u : finite));
}

TRIMTAB_INLINE uint16_t ToF16(float x) {
  const uint32_t u = ToBits(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t a = u & 0x7fffffffu;
  uint32_t h;
  if (a > 0x7f800000u) {
    h = 0x7e00u | ((a >> 13) & 0x3ffu);
  } else if (a >= 0x477ff000u) {  // 65520 and above round to Inf
    h = 0x7c00u;
  } else if (a < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the subnormal, rounded, in the low bits
    h = ToBits(FromBits(a) + 0.5f) - 0x3f000000u;
  } else {
    h = (a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13;
  }
  return static_cast<uint16_t>(sign | h);
}

// memcpy without its call: rows are often one vector long.
TRIMTAB_INLINE void CopyRow(const float* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(to + i, Load(from + i));
  for (; i < n; ++i) to[i] = from[i];
}

template <typename From>
inline void LoadRow16(const uint16_t* from, int64_t stride, int64_t n, float* to, From convert) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = convert(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = convert(from[i * stride]);
  }
}

// to[i] = data[offset + i * stride], i < n.
inline void LoadRow(trimtab_dtype dtype, const void* data, int64_t offset, int64_t stride, int64_t n, float* to) {
  if (dtype == TRIMTAB_F32) {
    const float* from = static_cast<const float*>(data) + offset;
    if (stride == 1) {
      CopyRow(from, n, to);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
    }
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(data) + offset;
  if (dtype == TRIMTAB_BF16) {
    LoadRow16(
        from, stride, n, to, [](uint16_t h) __attribute__((always_inline)) { return FromBf16(h); });
  } else {
    LoadRow16(
        from, stride, n, to, [](uint16_t h) __attribute__((always_inline)) { return FromF16(h); });
  }
}

// The value that x has once stored as dtype.
TRIMTAB_INLINE float AsStored(trimtab_dtype dtype, float x) {
  if (dtype == TRIMTAB_BF16) return FromBf16(ToBf16(x));
  if (dtype == TRIMTAB_F16) return FromF16(ToF16(x));
  return x;
}

inline void StoreRow(trimtab_dtype dtype, const float* from, int64_t n, void* data, int64_t offset, int64_t stride) {
  if (dtype == TRIMTAB_F32) {
    float* to = static_cast<float*>(data) + offset;
    if (stride == 1) {
      CopyRow(from, n, to);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i * stride] = from[i];
    }
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(data) + offset;
  if (dtype == TRIMTAB_BF16) {
    for (int64_t i = 0; i < n; ++i) to[i * stride] = ToBf16(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * stride] = ToF16(from[i]);
  }
}

inline int64_t RowOffset(const int64_t stride[4], int64_t batch, int64_t head, int64_t row) {
  return batch * stride[0] + head * stride[1] + row * stride[2];
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
