// Storage formats round to nearest even, exactly, in the public function and in the vector code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/unit/kernels/problem.h"

namespace trimtab::testing {
namespace {

struct Format {
  trimtab_storage storage;
  int bits;
};
constexpr Format kFormats[] = {{TRIMTAB_STORE_FP32, 23},
                               {TRIMTAB_STORE_BF16, 7},
                               {TRIMTAB_STORE_FP16, 10},
                               {TRIMTAB_STORE_E4M3, 3},
                               {TRIMTAB_STORE_E5M2, 2}};

float FromBits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

uint32_t ToBits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  return u;
}

// Nearest even in units of the last kept mantissa bit; below the normal range that unit stays the one of 2^-126.
float Nearest(float x, int bits) {
  if (x == 0.0f || !std::isfinite(x)) return x;
  const int unit = std::max(std::ilogb(x), -126) - bits;
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -unit)), unit));
}

// Every sign, exponent and kept mantissa, with the dropped bits at, just below and just above the tie, and at the ends.
std::vector<float> PatternsNearTies(int bits) {
  const uint32_t dropped = 23u - static_cast<uint32_t>(bits);
  const uint32_t half = dropped == 0 ? 0 : 1u << (dropped - 1);
  const uint32_t last = dropped == 0 ? 0 : (1u << dropped) - 1;
  std::vector<float> patterns;
  for (uint32_t sign = 0; sign <= 1; ++sign) {
    for (uint32_t exponent = 0; exponent<255; exponent += bits> 7 ? 17 : 1) {
      for (uint32_t kept = 0; kept<(1u << bits); kept += bits> 10 ? 4099 : 1) {
        for (const uint32_t low : {0u, 1u, half - 1, half, half + 1, last}) {
          if (low > last) continue;
          patterns.push_back(FromBits(sign << 31 | exponent << 23 | kept << dropped | low));
        }
      }
    }
  }
  return patterns;
}

TEST(Round, IsNearestEvenForEveryPatternNearATie) {
  for (const Format& format : kFormats) {
    for (const float x : PatternsNearTies(format.bits)) {
      ASSERT_EQ(ToBits(trimtab_round(x, format.storage)), ToBits(Nearest(x, format.bits)))
          << "x = " << std::hexfloat << x << ", " << format.bits << " bits";
    }
  }
}

TEST(Round, VectorCodeAgreesBitForBit) {
  for (const Format& format : kFormats) {
    std::vector<float> patterns = PatternsNearTies(format.bits);
    constexpr int64_t kDim = 64;
    const auto keys = static_cast<int64_t>(patterns.size() / kDim);
    Problem p({1, keys, keys, 1, 1, 1, kDim}, TRIMTAB_F32);
    p.call.storage = format.storage;
    p.q.FillConstant(1.0);
    p.k.FillConstant(1.0);
    for (int64_t h = 0; h < keys; ++h) {
      for (int64_t i = 0; i < kDim; ++i) p.v.Set(0, h, 0, i, patterns[h * kDim + i]);
    }
    // With one key the weight is exactly 1, so that O is the rounded V.
    ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
    for (int64_t h = 0; h < keys; ++h) {
      for (int64_t i = 0; i < kDim; ++i) {
        const float expected = trimtab_round(patterns[h * kDim + i], format.storage);
        ASSERT_EQ(static_cast<float>(p.out.Get(0, h, 0, i)), expected) << std::hexfloat << patterns[h * kDim + i];
      }
    }
  }
}

TEST(Round, KeepsNanAndInf) {
  for (const Format& format : kFormats) {
    EXPECT_EQ(trimtab_round(INFINITY, format.storage), INFINITY);
    EXPECT_EQ(trimtab_round(-INFINITY, format.storage), -INFINITY);
    for (const uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7fc00000u, 0x7f800001u}) {
      EXPECT_TRUE(std::isnan(trimtab_round(FromBits(nan), format.storage)));
    }
  }
}

TEST(Round, OverflowsToInfLikeTheStandard) {
  EXPECT_EQ(trimtab_round(std::numeric_limits<float>::max(), TRIMTAB_STORE_E5M2), INFINITY);
  EXPECT_EQ(trimtab_round(std::numeric_limits<float>::max(), TRIMTAB_STORE_FP32), std::numeric_limits<float>::max());
}

// All 65,536 patterns of both 16-bit dtypes through load, forward and store.
TEST(Round, SixteenBitTensorsSurviveTheRoundTrip) {
  for (const trimtab_dtype dtype : {TRIMTAB_BF16, TRIMTAB_F16}) {
    Problem p({1, 1024, 1024, 1, 1, 1, 64}, dtype);
    p.q.FillConstant(1.0);
    p.k.FillConstant(1.0);
    std::vector<uint16_t> patterns(65536);
    for (int i = 0; i < 65536; ++i) patterns[i] = static_cast<uint16_t>(i);
    trimtab_attention a = p.call;
    a.q = p.q.view();
    a.k = p.k.view();
    a.v = {patterns.data(), {65536, 64, 64, 1}};
    std::vector<uint16_t> out(65536);
    a.out = {out.data(), {65536, 64, 64, 1}};
    ASSERT_EQ(trimtab_attention_forward(&a), TRIMTAB_KERNEL_OK);
    for (int i = 0; i < 65536; ++i) {
      const int exponent_mask = dtype == TRIMTAB_BF16 ? 0x7f80 : 0x7c00;
      const bool nan = (i & exponent_mask) == exponent_mask && (i & ~(exponent_mask | 0x8000)) != 0;
      if (nan) {
        EXPECT_EQ(out[i] & exponent_mask, exponent_mask);
        EXPECT_NE(out[i] & ~(exponent_mask | 0x8000), 0);
      } else if (i == 0x8000) {
        EXPECT_TRUE(out[i] == 0 || out[i] == 0x8000);  // -0 + 0 is 0
      } else {
        ASSERT_EQ(out[i], i) << std::hex << i;
      }
    }
  }
}

TEST(Round, SixteenBitOutputsAreNearestEven) {
  std::mt19937 random(7);
  for (const trimtab_dtype dtype : {TRIMTAB_BF16, TRIMTAB_F16}) {
    Problem exact({1, 1, 1, 64, 50, 16, 24}, TRIMTAB_F32), stored({1, 1, 1, 64, 50, 16, 24}, dtype);
    exact.call.storage = stored.call.storage = TRIMTAB_STORE_FP32;
    stored.Fill(random);
    stored.v.FillNormal(random, 0.0, dtype == TRIMTAB_F16 ? 1e-4 : 1.0);  // FP16: subnormal outputs too
    for (int64_t r = 0; r < 64; ++r) {
      for (int64_t i = 0; i < 16; ++i) exact.q.Set(0, 0, r, i, stored.q.Get(0, 0, r, i));
    }
    for (int64_t r = 0; r < 50; ++r) {
      for (int64_t i = 0; i < 16; ++i) exact.k.Set(0, 0, r, i, stored.k.Get(0, 0, r, i));
      for (int64_t i = 0; i < 24; ++i) exact.v.Set(0, 0, r, i, stored.v.Get(0, 0, r, i));
    }
    ASSERT_EQ(exact.Forward(), TRIMTAB_KERNEL_OK);
    ASSERT_EQ(stored.Forward(), TRIMTAB_KERNEL_OK);
    for (int64_t r = 0; r < 64; ++r) {
      for (int64_t i = 0; i < 24; ++i) {
        EXPECT_EQ(stored.out.Get(0, 0, r, i), NearestOf(dtype, exact.out.Get(0, 0, r, i)));
        EXPECT_EQ(stored.low.Get(0, 0, r, i),
                  static_cast<float>(exact.out.Get(0, 0, r, i) - stored.out.Get(0, 0, r, i)));
      }
    }
  }
}

}  // namespace
}  // namespace trimtab::testing
