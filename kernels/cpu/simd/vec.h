// Eight floats at a time: loads, selection, reductions, rounding to a storage format, exponential.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_VEC_H_
#define TRIMTAB_KERNELS_CPU_SIMD_VEC_H_

#include "kernels/cpu/simd/prelude.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

inline constexpr int kLanes = 8;

typedef float Vec __attribute__((vector_size(32)));
typedef int32_t Int __attribute__((vector_size(32)));
typedef uint32_t Bits __attribute__((vector_size(32)));
typedef double Wide __attribute__((vector_size(32)));  // four doubles
typedef float NarrowVec __attribute__((vector_size(16), aligned(4), may_alias));
typedef float UnalignedVec __attribute__((vector_size(32), aligned(4), may_alias));

TRIMTAB_INLINE Vec Load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
TRIMTAB_INLINE void Store(float* p, Vec x) { *reinterpret_cast<UnalignedVec*>(p) = x; }
// Four floats as doubles.
TRIMTAB_INLINE Wide LoadWide(const float* p) {
  return __builtin_convertvector(*reinterpret_cast<const NarrowVec*>(p), Wide);
}
TRIMTAB_INLINE Vec Splat(float x) { return Vec{x, x, x, x, x, x, x, x}; }
TRIMTAB_INLINE Vec Max(Vec a, Vec b) { return a > b ? a : b; }  // b where either is NaN
TRIMTAB_INLINE Vec Abs(Vec x) { return (Vec)((Bits)x & 0x7fffffffu); }
// -1 in the lanes that hold neither NaN nor Inf.
TRIMTAB_INLINE Int Finite(Vec x) { return (x - x) == Splat(0.0f); }

TRIMTAB_INLINE float SumOf(Vec x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }
TRIMTAB_INLINE double SumOf(Wide x) { return (x[0] + x[2]) + (x[1] + x[3]); }
TRIMTAB_INLINE int64_t SumOf(Int x) {
  int64_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
}
TRIMTAB_INLINE float Larger(float a, float b) { return a > b ? a : b; }
TRIMTAB_INLINE float MaxOf(Vec x) {
  return Larger(Larger(Larger(x[0], x[4]), Larger(x[2], x[6])), Larger(Larger(x[1], x[5]), Larger(x[3], x[7])));
}

// Round to nearest even to `bits` explicit mantissa bits, FP32 exponent range; NaN and Inf unchanged.
struct Rounding {
  uint32_t shift;  // 0: nothing is rounded
  uint32_t half_minus_one;
  uint32_t keep;

  explicit Rounding(int bits)
      : shift(static_cast<uint32_t>(kFp32MantissaBits - bits)),
        half_minus_one(shift == 0 ? 0u : (1u << (shift - 1)) - 1u),
        keep(~((1u << shift) - 1u)) {}

  bool none() const { return shift == 0; }

  TRIMTAB_INLINE Vec operator()(Vec x) const {
    if (shift == 0) return x;
    const Bits u = (Bits)x;
    const Bits rounded = (u + half_minus_one + ((u >> shift) & 1u)) & keep;
    return x == x ? (Vec)rounded : x;
  }
  TRIMTAB_INLINE float operator()(float x) const {
    if (shift == 0 || x != x) return x;
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    u = (u + half_minus_one + ((u >> shift) & 1u)) & keep;
    std::memcpy(&x, &u, sizeof u);
    return x;
  }
};

// e^x with about one ulp of error for x in [-87.33, 88]; 0 below, Inf above, NaN for NaN. Exp(0) is exactly 1.
TRIMTAB_INLINE Vec Exp(Vec x) {
  constexpr float kLow = -87.336540f, kHigh = 88.0f, kRoundToInt = 12582912.0f;  // 1.5 * 2^23
  const Vec low = Splat(kLow), high = Splat(kHigh);
  Vec y = x < low ? low : x;
  y = y > high ? high : y;
  const Vec shifted = y * 1.44269504088896341f + kRoundToInt;
  const Vec n = shifted - kRoundToInt;
  Vec r = y - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Vec power = (Vec)(((Bits)shifted << 23) + 0x3f800000u);
  p = p * power;
  p = x < low ? Splat(0.0f) : p;
  return x > high ? Splat(__builtin_inff()) : p;
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
