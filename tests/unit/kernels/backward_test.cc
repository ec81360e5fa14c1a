// The flash-style backward against FP64, and its defined results on rows without a choice.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/kernels/problem.h"

namespace trimtab::testing {
namespace {

int64_t Between(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

void ExpectGrads(const Problem& p, double tolerance) {
  const Reference reference = ComputeReference(p, true);
  EXPECT_LE(NormError(p.grad_q, reference.grad_q), tolerance);
  EXPECT_LE(NormError(p.grad_k, reference.grad_k), tolerance);
  EXPECT_LE(NormError(p.grad_v, reference.grad_v), tolerance);
}

TEST(Backward, RandomShapesStridesAndMasksAgreeWithFp64) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t kv_heads = Between(random, 1, 3), group = Between(random, 1, 3);
    Problem p({Between(random, 1, 2), kv_heads * group, kv_heads, Between(random, 1, 130), Between(random, 2, 130),
               Between(random, 1, 96), Between(random, 1, 96)},
              TRIMTAB_F32, &random);
    p.Fill(random);
    p.call.causal = static_cast<int32_t>(trial % 3);
    p.call.kind = trial % 2 == 0 ? TRIMTAB_ATTENTION_STANDARD : TRIMTAB_ATTENTION_STABILIZED;
    if (trial % 4 == 1) p.SetBoolMask(random, 0.6);
    if (trial % 4 == 2) p.SetAdditiveMask(random, TRIMTAB_F32, 0.2);
    if (trial % 5 == 4) p.call.scale = 0.4f;
    ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
    if (trial % 2 == 1) {
      ASSERT_EQ(p.DeltaStep(), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
    }
    ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
    const Reference reference = ComputeReference(p, true);
    SCOPED_TRACE(trial);
    EXPECT_LE(MaxError(p.grad_q, reference.grad_q), 1e-5);
    EXPECT_LE(MaxError(p.grad_k, reference.grad_k), 1e-5);
    EXPECT_LE(MaxError(p.grad_v, reference.grad_v), 1e-5);
  }
}

TEST(Backward, ManyTilesInBothDirections) {
  std::mt19937 random(12);
  for (const int32_t causal : {0, 1, 2}) {
    Problem p({1, 2, 1, 301, 700, 16, 24}, TRIMTAB_F32);
    p.Fill(random);
    p.call.causal = causal;
    ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
    ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
    ExpectGrads(p, 2e-6);
  }
}

TEST(Backward, SixteenBitTensors) {
  std::mt19937 random(13);
  for (const trimtab_dtype dtype : {TRIMTAB_BF16, TRIMTAB_F16}) {
    Problem p({1, 4, 2, 90, 90, 80, 80}, dtype, &random);  // A18: head size 80
    p.Fill(random);
    p.call.causal = 1;
    ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
    ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
    ExpectGrads(p, dtype == TRIMTAB_BF16 ? 8e-3 : 1e-3);
  }
}

// delta comes from the given output, not from a recomputed one: that is what the delta-preserving step relies on.
TEST(Backward, DeltaIsTakenFromTheGivenOutput) {
  std::mt19937 random(14);
  Problem p({1, 1, 1, 6, 9, 4, 4}, TRIMTAB_F32);
  p.Fill(random);
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  const Reference reference = ComputeReference(p, true);
  const double shift = 0.25;
  p.out.Set(0, 0, 2, 1, p.out.Get(0, 0, 2, 1) + shift);
  ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
  // dQ changes by -scale * g * (P K) with g = dO * shift.
  const double g = p.grad_out.Get(0, 0, 2, 1) * shift;
  for (int64_t i = 0; i < 4; ++i) {
    double pk = 0.0;
    for (int64_t j = 0; j < 9; ++j) pk += std::exp(p.Score(0, 0, 2, j) - reference.lse[2]) * p.k.Get(0, 0, j, i);
    EXPECT_NEAR(p.grad_q.Get(0, 0, 2, i), reference.grad_q[2 * 4 + i] - 0.5 * g * pk, 1e-5);
    EXPECT_NEAR(p.grad_q.Get(0, 0, 3, i), reference.grad_q[3 * 4 + i], 1e-5);
  }
}

// A11: one key. The softmax is constant, so dQ and dK are exactly 0, and dV is dO.
TEST(Backward, SingleKeyGivesFiniteZeroGradients) {
  for (const trimtab_dtype dtype : {TRIMTAB_F32, TRIMTAB_BF16, TRIMTAB_F16}) {
    for (const auto kind : {TRIMTAB_ATTENTION_STANDARD, TRIMTAB_ATTENTION_PAPER, TRIMTAB_ATTENTION_STABILIZED}) {
      std::mt19937 random(15);
      Problem p({1, 1, 1, 1, 1, 16, 16}, dtype);
      p.Fill(random, 30.0);
      p.call.kind = kind;
      ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
      ASSERT_EQ(p.DeltaStep(), TRIMTAB_KERNEL_OK);
      ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
      for (int64_t i = 0; i < 16; ++i) {
        EXPECT_EQ(p.grad_q.Get(0, 0, 0, i), 0.0);
        EXPECT_EQ(p.grad_k.Get(0, 0, 0, i), 0.0);
        EXPECT_NEAR(p.grad_v.Get(0, 0, 0, i), p.grad_out.Get(0, 0, 0, i), 1e-6);
      }
    }
  }
}

TEST(Backward, FirstCausalRowAndRowsWithOneUnmaskedKeyHaveZeroQueryGradient) {
  std::mt19937 random(16);
  Problem p({1, 1, 1, 40, 300, 8, 8}, TRIMTAB_F32);
  p.Fill(random);
  p.call.causal = 1;
  p.SetBoolMask(random, 1.0);
  for (int64_t j = 0; j < 300; ++j) p.bool_mask[33 * 300 + j] = j == 20;
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(p.grad_q.Get(0, 0, 0, i), 0.0);
    EXPECT_EQ(p.grad_q.Get(0, 0, 33, i), 0.0);
    EXPECT_NE(p.grad_q.Get(0, 0, 1, i), 0.0);
  }
}

TEST(Backward, EmptyRowsGiveZeroWithEitherLse) {
  for (const float empty : {-INFINITY, INFINITY}) {
    std::mt19937 random(17);
    Problem p({1, 1, 1, 20, 7, 8, 8}, TRIMTAB_F32);
    p.Fill(random);
    p.call.causal = 2;
    p.call.empty_lse = empty;
    ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
    ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
    const Reference reference = ComputeReference(p, true);
    EXPECT_LE(MaxError(p.grad_q, reference.grad_q), 1e-5);
    EXPECT_LE(MaxError(p.grad_k, reference.grad_k), 1e-5);
    for (int64_t r = 0; r < 13; ++r) EXPECT_EQ(p.grad_q.Get(0, 0, r, 0), 0.0);
  }
}

TEST(Backward, KeysThatNoRowSeesHaveZeroGradient) {
  std::mt19937 random(18);
  Problem p({1, 1, 1, 4, 30, 8, 8}, TRIMTAB_F32);
  p.Fill(random);
  p.call.causal = 1;
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
  for (int64_t j = 4; j < 30; ++j) {
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(p.grad_k.Get(0, 0, j, i), 0.0);
      EXPECT_EQ(p.grad_v.Get(0, 0, j, i), 0.0);
    }
  }
}

TEST(Backward, NoQueriesGiveZeroKeyGradients) {
  Problem p({1, 1, 1, 1, 6, 4, 4}, TRIMTAB_F32);
  p.call.queries = 0;
  ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
  for (int64_t j = 0; j < 6; ++j) {
    EXPECT_EQ(p.grad_k.Get(0, 0, j, 1), 0.0);
    EXPECT_EQ(p.grad_v.Get(0, 0, j, 1), 0.0);
  }
}

// A masked key holding NaN does not reach dQ through its score, and NaN stays inside its (batch, key/value head).
TEST(Backward, NanStaysInItsHead) {
  std::mt19937 random(19);
  Problem p({2, 2, 2, 20, 20, 8, 8}, TRIMTAB_F32);
  p.Fill(random);
  p.call.causal = 1;
  p.grad_out.Set(1, 0, 7, 3, NAN);
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      bool finite = true;
      for (int64_t r = 0; r < 20; ++r) {
        for (int64_t i = 0; i < 8; ++i) {
          finite = finite && std::isfinite(p.grad_q.Get(b, h, r, i)) && std::isfinite(p.grad_k.Get(b, h, r, i)) &&
                   std::isfinite(p.grad_v.Get(b, h, r, i));
        }
      }
      EXPECT_EQ(finite, !(b == 1 && h == 0));
    }
  }
  EXPECT_TRUE(std::isnan(p.grad_q.Get(1, 0, 7, 0)));
  EXPECT_TRUE(std::isfinite(p.grad_q.Get(1, 0, 8, 0)));
}

TEST(Backward, LargeMaximaOfEitherSign) {
  for (const double m : {-1e4, -300.0, 300.0, 1e4}) {
    std::mt19937 random(20);
    Problem p({1, 1, 1, 40, 40, 2, 8}, TRIMTAB_F32);
    p.Fill(random);
    p.call.scale = 1.0f;
    p.call.causal = 1;
    for (int64_t r = 0; r < 40; ++r) {
      p.q.Set(0, 0, r, 0, m);
      p.k.Set(0, 0, r, 0, 1.0);
    }
    ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
    ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
    const Reference reference = ComputeReference(p, true);
    // Scores and log-sum-exp of size m carry half an ulp of m each, in nats.
    const double tolerance = 4e-7 * std::fabs(m);
    EXPECT_LE(NormError(p.grad_q, reference.grad_q), tolerance) << m;
    EXPECT_LE(NormError(p.grad_v, reference.grad_v), tolerance) << m;
    for (int64_t r = 0; r < 40; ++r) EXPECT_TRUE(std::isfinite(p.grad_k.Get(0, 0, r, 0)));
  }
}

TEST(Backward, EmulatedStorageRoundsValuesInDp) {
  std::mt19937 random(21);
  Problem p({1, 1, 1, 30, 30, 8, 8}, TRIMTAB_F32);
  p.Fill(random);
  p.call.storage = TRIMTAB_STORE_FP32;
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  // Exact O of the rounded V, so that delta agrees with dP.
  p.call.storage = TRIMTAB_STORE_E5M2;
  const Reference reference = ComputeReference(p, true, true);
  for (int64_t r = 0; r < 30; ++r) {
    for (int64_t i = 0; i < 8; ++i) p.out.Set(0, 0, r, i, reference.out[r * 8 + i]);
  }
  ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
  EXPECT_LE(NormError(p.grad_q, reference.grad_q), 2e-6);
  EXPECT_LE(NormError(p.grad_k, reference.grad_k), 2e-6);
  EXPECT_LE(NormError(p.grad_v, reference.grad_v), 2e-6);
}

}  // namespace
}  // namespace trimtab::testing
