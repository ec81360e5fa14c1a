// Exact statistics from the forward and from the passive probe.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/kernels/problem.h"

namespace trimtab::testing {
namespace {

void ExpectSameCounts(const trimtab_head_stats& a, const trimtab_head_stats& b) {
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.trivial_rows, b.trivial_rows);
  EXPECT_EQ(a.empty_rows, b.empty_rows);
  EXPECT_EQ(a.scores, b.scores);
  EXPECT_EQ(a.p_one_count, b.p_one_count);
  EXPECT_EQ(a.repeated_max_rows, b.repeated_max_rows);
}

// A10: a constant input ties everything.
TEST(Stats, ConstantInputCountsEveryScore) {
  for (const trimtab_dtype dtype : {TRIMTAB_F32, TRIMTAB_BF16}) {
    Problem p({2, 8, 8, 512, 512, 32, 32}, dtype);
    p.q.FillConstant(1000.0);
    p.k.FillConstant(1000.0);
    p.v.FillConstant(1000.0);
    ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
    for (const auto& s : p.stats) {
      EXPECT_EQ(s.rows, 2u * 512u);
      EXPECT_EQ(s.trivial_rows, 0u);
      EXPECT_EQ(s.repeated_max_rows, 2u * 512u);
      EXPECT_EQ(s.tie_rows, 2u * 512u);
      EXPECT_EQ(s.p_one_count, 2u * 512u * 512u);
      EXPECT_EQ(s.scores, 2u * 512u * 512u);
      EXPECT_EQ(s.nonfinite_scores, 0u);
      EXPECT_EQ(s.residual_mass_sum, 0.0);
      EXPECT_NEAR(s.entropy_sum / static_cast<double>(s.rows), std::log(512.0), 1e-5);
      EXPECT_NEAR(s.max_logit, 32e6 / std::sqrt(32.0), 1.0);
    }
    trimtab_head_stats_reset(p.stats.data(), 8);
    p.call.causal = 1;
    ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
    for (const auto& s : p.stats) {
      EXPECT_EQ(s.repeated_max_rows, 2u * 511u);
      EXPECT_EQ(s.trivial_rows, 2u);
      EXPECT_EQ(s.p_one_count, 2u * 131327u);
    }
  }
}

// A11: the first causal row is 1 by definition and stays out of the frequency.
TEST(Stats, TrivialRowsStayOutOfTheFrequency) {
  std::mt19937 random(31);
  Problem p({1, 1, 1, 1024, 1024, 16, 16}, TRIMTAB_F32);
  p.Fill(random);
  p.call.storage = TRIMTAB_STORE_BF16;
  p.call.causal = 1;
  ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
  const auto reference = ReferenceStats(p);
  ExpectSameCounts(p.stats[0], reference[0]);
  EXPECT_EQ(p.stats[0].trivial_rows, 1u);
  EXPECT_EQ(p.stats[0].rows, 1023u);
  EXPECT_EQ(p.stats[0].scores, 1024u * 1025u / 2 - 1);
  EXPECT_GE(p.stats[0].p_one_count, 1023u);  // each row's own maximum
}

TEST(Stats, SingleKeyIsTrivialOnly) {
  Problem p({1, 1, 1, 1, 1, 16, 16}, TRIMTAB_F16);
  p.q.FillConstant(2.0);
  p.k.FillConstant(2.0);
  p.v.FillConstant(2.0);
  ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(p.stats[0].trivial_rows, 1u);
  EXPECT_EQ(p.stats[0].rows + p.stats[0].p_one_count + p.stats[0].repeated_max_rows + p.stats[0].scores, 0u);
  EXPECT_EQ(p.stats[0].max_logit, 16.0f);
}

// A18 and everything else: random problems against FP64.
TEST(Stats, RandomProblemsAgreeWithFp64) {
  std::mt19937 random(32);
  for (int trial = 0; trial < 24; ++trial) {
    Problem p({2, 4, 2, 90, 110, trial % 2 == 0 ? 80 : 7, 8}, static_cast<trimtab_dtype>(trial % 3), &random);
    p.Fill(random);
    p.call.storage = static_cast<trimtab_storage>(trial % 6);
    p.call.kind = static_cast<trimtab_attention_kind>(trial / 2 % 3);
    p.call.causal = static_cast<int32_t>(trial / 3 % 3);
    if (trial % 4 == 1) p.SetBoolMask(random, 0.05);
    if (trial % 4 == 2) p.SetAdditiveMask(random, TRIMTAB_F32, 0.5);
    ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
    const auto reference = ReferenceStats(p);
    for (int64_t h = 0; h < 4; ++h) {
      SCOPED_TRACE(trial);
      ExpectSameCounts(p.stats[h], reference[h]);
      EXPECT_NEAR(p.stats[h].max_logit, reference[h].max_logit, 1e-5 * (1 + std::fabs(reference[h].max_logit)));
      EXPECT_NEAR(p.stats[h].entropy_sum, reference[h].entropy_sum, 2e-5 * (1 + reference[h].entropy_sum));
      EXPECT_NEAR(p.stats[h].sink_share_sum, reference[h].sink_share_sum, 1e-5 * (1 + reference[h].sink_share_sum));
      EXPECT_NEAR(p.stats[h].residual_mass_sum, reference[h].residual_mass_sum,
                  1e-5 * (1 + reference[h].residual_mass_sum));
    }
  }
}

TEST(Stats, KindDoesNotChangeTheStatistics) {
  std::mt19937 random(33);
  Problem p({1, 1, 1, 64, 64, 8, 8}, TRIMTAB_F32);
  p.Fill(random, 2.0);
  p.call.storage = TRIMTAB_STORE_E5M2;
  std::vector<trimtab_head_stats> results;
  for (const auto kind : {TRIMTAB_ATTENTION_STANDARD, TRIMTAB_ATTENTION_PAPER, TRIMTAB_ATTENTION_STABILIZED}) {
    p.call.kind = kind;
    trimtab_head_stats_reset(p.stats.data(), 1);
    ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
    results.push_back(p.stats[0]);
  }
  for (const auto& s : results) {
    ExpectSameCounts(s, results[0]);
    EXPECT_EQ(s.entropy_sum, results[0].entropy_sum);
    EXPECT_EQ(s.residual_mass_sum, results[0].residual_mass_sum);
  }
}

TEST(Stats, TiesAcrossDistantKeysAreBitEqual) {
  Problem p({1, 1, 1, 3, 4000, 2, 2}, TRIMTAB_F32);
  p.q.FillConstant(1.0);
  p.k.FillConstant(-1.0);
  p.v.FillConstant(0.0);
  p.call.storage = TRIMTAB_STORE_BF16;
  for (int64_t i = 0; i < 2; ++i) {
    p.k.Set(0, 0, 5, i, 3.0);
    p.k.Set(0, 0, 3999, i, 3.0);
    p.k.Set(0, 0, 1200, i, 2.9995);  // rounds to 1 in BF16, but is no tie
  }
  ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(p.stats[0].tie_rows, 3u);
  EXPECT_EQ(p.stats[0].p_one_count, 9u);
  p.k.Set(0, 0, 3999, 0, 2.9996);
  trimtab_head_stats_reset(p.stats.data(), 1);
  ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(p.stats[0].tie_rows, 0u);
  EXPECT_EQ(p.stats[0].repeated_max_rows, 3u);
}

TEST(Stats, MaxLogitIsNeverFlooredAndIgnoresHiddenKeys) {
  Problem p({1, 1, 1, 4, 4, 1, 1}, TRIMTAB_F32);
  p.q.FillConstant(1.0);
  p.k.FillConstant(-7.0);
  p.v.FillConstant(1.0);
  p.k.Set(0, 0, 3, 0, 50.0);
  std::mt19937 random(1);
  p.SetBoolMask(random, 1.0);
  for (int64_t r = 0; r < 4; ++r) p.bool_mask[r * 4 + 3] = 0;
  ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(p.stats[0].max_logit, -7.0f);
}

// Frameworks write finite numbers for "masked"; statistics take them as masked, the softmax adds them as they are.
TEST(Stats, FiniteMaskValuesCountAsMasked) {
  for (const double masked : {-1e4, -65504.0, -3.0e38}) {
    std::mt19937 random(34);
    Problem p({1, 1, 1, 3, 6, 4, 4}, TRIMTAB_F32);
    p.Fill(random);
    p.SetAdditiveMask(random, TRIMTAB_F32, 0.0);
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t j = r; j < 6; ++j) p.additive_mask.Set(0, 0, r, j, masked);
    }
    ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
    EXPECT_EQ(p.stats[0].empty_rows, 1u);
    EXPECT_EQ(p.stats[0].trivial_rows, 1u);
    EXPECT_EQ(p.stats[0].rows, 1u);
    EXPECT_EQ(p.stats[0].scores, 2u);
    const Reference reference = ComputeReference(p, false);
    EXPECT_LE(MaxError(p.out, reference.out), masked == -1e4 ? 1e-3 : INFINITY);
  }
}

TEST(Stats, CallsAdd) {
  std::mt19937 random(35);
  Problem p({1, 2, 2, 20, 20, 8, 8}, TRIMTAB_F32);
  p.Fill(random);
  ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
  const auto once = p.stats;
  ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
  for (int h = 0; h < 2; ++h) {
    EXPECT_EQ(p.stats[h].rows, 2 * once[h].rows);
    EXPECT_EQ(p.stats[h].entropy_sum, 2 * once[h].entropy_sum);
    EXPECT_EQ(p.stats[h].max_logit, once[h].max_logit);
  }
}

TEST(Probe, AgreesWithTheForwardOnAllRows) {
  std::mt19937 random(36);
  for (int trial = 0; trial < 6; ++trial) {
    Problem p({2, 4, 2, 77, 77, 24, 16}, TRIMTAB_BF16, &random);
    p.Fill(random);
    p.call.causal = trial % 3;
    if (trial >= 3) p.SetBoolMask(random, 0.3);
    ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
    const auto forward = p.stats;
    trimtab_head_stats_reset(p.stats.data(), 4);
    ASSERT_EQ(p.Probe(0, 1, false), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
    for (int h = 0; h < 4; ++h) {
      ExpectSameCounts(p.stats[h], forward[h]);
      EXPECT_EQ(p.stats[h].tie_rows, forward[h].tie_rows);
      EXPECT_EQ(p.stats[h].max_logit, forward[h].max_logit);
      EXPECT_NEAR(p.stats[h].entropy_sum, forward[h].entropy_sum, 1e-9 * (1 + forward[h].entropy_sum));
      EXPECT_EQ(p.stats[h].delta_rows, 0u);
    }
  }
}

TEST(Probe, SampledRowsAgreeWithFp64) {
  std::mt19937 random(37);
  Problem p({1, 3, 3, 200, 220, 80, 8}, TRIMTAB_F32, &random);
  p.Fill(random);
  p.call.storage = TRIMTAB_STORE_BF16;
  p.call.causal = 2;
  ASSERT_EQ(p.Probe(5, 13, false), TRIMTAB_KERNEL_OK);
  const auto reference = ReferenceStats(p, 5, 13);
  for (int h = 0; h < 3; ++h) {
    ExpectSameCounts(p.stats[h], reference[h]);
    EXPECT_EQ(p.stats[h].rows, 15u);
    EXPECT_NEAR(p.stats[h].max_logit, reference[h].max_logit, 1e-5);
  }
}

TEST(Probe, SamplesBatches) {
  std::mt19937 random(38);
  Problem p({5, 1, 1, 10, 10, 4, 4}, TRIMTAB_F32);
  p.Fill(random);
  trimtab_probe probe{};
  probe.attention = p.call;
  probe.attention.q = p.q.view();
  probe.attention.k = p.k.view();
  probe.attention.stats = p.stats.data();
  probe.row_step = 1;
  probe.batch_begin = 1;
  probe.batch_step = 2;
  ASSERT_EQ(trimtab_attention_probe(&probe), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
  EXPECT_EQ(p.stats[0].rows, 20u);
  probe.batch_begin = 5;
  probe.row_begin = 99;
  ASSERT_EQ(trimtab_attention_probe(&probe), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(p.stats[0].rows, 20u);
}

// g = rowsum(dO * (O_stored - O_fp32)) and the output error, from the probe and from the backward.
TEST(Probe, DeltaResidualAndOutputErrorAgreeWithFp64) {
  std::mt19937 random(39);
  Problem p({1, 2, 1, 60, 60, 16, 16}, TRIMTAB_F32);
  p.Fill(random, 1.0, -2.0, 0.2, -1.0, 0.3);
  p.call.storage = TRIMTAB_STORE_BF16;
  p.call.causal = 1;
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  ASSERT_EQ(p.Probe(0, 1, true), TRIMTAB_KERNEL_OK);
  const Reference reference = ComputeReference(p, false, true);
  std::vector<trimtab_head_stats> probe = p.stats;
  trimtab_head_stats_reset(p.stats.data(), 2);
  ASSERT_EQ(p.Backward(true), TRIMTAB_KERNEL_OK);
  for (int64_t h = 0; h < 2; ++h) {
    double sum = 0.0, squares = 0.0, error = 0.0, norm = 0.0;
    for (int64_t r = 1; r < 60; ++r) {
      double g = 0.0;
      for (int64_t i = 0; i < 16; ++i) {
        const double exact = reference.out[(h * 60 + r) * 16 + i], e = p.out.Get(0, h, r, i) - exact;
        g += p.grad_out.Get(0, h, r, i) * e;
        error += e * e;
        norm += exact * exact;
      }
      sum += g;
      squares += g * g;
    }
    for (const auto& s : {probe[h], p.stats[h]}) {
      EXPECT_EQ(s.delta_rows, 59u);
      EXPECT_NEAR(s.delta_residual_sum, sum, 1e-3 * std::sqrt(squares));
      EXPECT_NEAR(s.delta_residual_sum_squares, squares, 1e-3 * squares);
    }
    EXPECT_NEAR(probe[h].output_error_sum_squares, error, 1e-3 * error);
    EXPECT_NEAR(probe[h].output_sum_squares, norm, 1e-5 * norm);
  }
}

TEST(Probe, CountsNonFiniteScoresAndSurvivesThem) {
  std::mt19937 random(40);
  Problem p({1, 1, 1, 30, 30, 8, 8}, TRIMTAB_F32);
  p.Fill(random);
  p.call.causal = 1;
  p.q.Set(0, 0, 10, 0, NAN);
  p.k.Set(0, 0, 20, 0, INFINITY);
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  ASSERT_EQ(p.Probe(0, 1, true), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(p.stats[0].nonfinite_scores, 11u + 10u);
  EXPECT_EQ(p.stats[0].rows, 29u);
  EXPECT_TRUE(std::isfinite(p.stats[0].entropy_sum));
  EXPECT_TRUE(std::isfinite(p.stats[0].delta_residual_sum));
}

}  // namespace
}  // namespace trimtab::testing
