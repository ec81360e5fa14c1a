// The published beta rule: what it does as published, where that fails, and what the guarded kind does instead.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/unit/kernels/problem.h"

namespace trimtab::testing {
namespace {

// The published rule for one row in FP32, without a guard. `clamp` is the floor of the row sum in the authors' code.
float Published(const std::vector<float>& scores, const std::vector<float>& values, float beta, float clamp) {
  const float r = *std::max_element(scores.begin(), scores.end());
  const auto ties = std::count_if(scores.begin(), scores.end(), [&](float s) { return s >= r - 1e-3f; });
  float m = r;
  if (ties > 1 && r > 0.0f) m = beta * r;
  if (ties > 1 && r < 0.0f) m = 0.0f;
  float sum = 0.0f, weighted = 0.0f;
  for (size_t i = 0; i < scores.size(); ++i) {
    const float p = std::exp(scores[i] - m);
    sum += p;
    weighted += p * values[i];
  }
  return weighted / (clamp > 0.0f ? std::max(sum, clamp) : sum);
}

// One row with the given scores: head size 1, q = 1, scale 1.
Problem RowOf(const std::vector<float>& scores, const std::vector<float>& values, trimtab_attention_kind kind) {
  Problem p({1, 1, 1, 1, static_cast<int64_t>(scores.size()), 1, 1}, TRIMTAB_F32);
  p.call.kind = kind;
  p.call.scale = 1.0f;
  p.q.FillConstant(1.0);
  for (size_t j = 0; j < scores.size(); ++j) {
    p.k.Set(0, 0, static_cast<int64_t>(j), 0, scores[j]);
    p.v.Set(0, 0, static_cast<int64_t>(j), 0, values[j]);
  }
  return p;
}

struct Case {
  float m;
  float published_without_clamp;  // NaN where the row sum vanishes
  float published_with_clamp;
};

TEST(Paper, GuardKeepsTheRowsThatThePublishedRuleLoses) {
  constexpr float kTrue = -2.297f;
  const std::vector<float> values = {kTrue, kTrue, 1.0f};
  for (const Case& c : {Case{24.0f, kTrue, -1.73f}, Case{30.0f, kTrue, -0.0043f}, Case{105.0f, NAN, 0.0f},
                        Case{-105.0f, NAN, 0.0f}, Case{-24.0f, kTrue, -1.73f}}) {
    const std::vector<float> scores = {c.m, c.m, c.m - 60.0f};
    const float unguarded = Published(scores, values, 2.0f, 0.0f);
    const float clamped = Published(scores, values, 2.0f, 1e-10f);
    if (std::isnan(c.published_without_clamp)) {
      EXPECT_TRUE(std::isnan(unguarded)) << c.m;
    } else {
      EXPECT_NEAR(unguarded, c.published_without_clamp, 1e-4) << c.m;
    }
    EXPECT_NEAR(clamped, c.published_with_clamp, 5e-3) << c.m;
    Problem p = RowOf(scores, values, TRIMTAB_ATTENTION_PAPER);
    ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
    EXPECT_NEAR(p.out.Get(0, 0, 0, 0), kTrue, 1e-6) << c.m;
    EXPECT_NEAR(p.lse.Get(0, 0, 0, 0), c.m + std::log(2.0), 1e-5 * (1 + std::fabs(c.m))) << c.m;
  }
}

TEST(Paper, NoRowEmptiesForAnyMaximumAndBeta) {
  for (const float beta : {1.0f, 2.0f, 7.0f, 100.0f}) {
    for (const float m : {-1e4f, -500.0f, -88.0f, -1e-3f, 0.0f, 1e-3f, 0.5f, 15.0f, 88.0f, 1e4f}) {
      Problem p = RowOf({m, m, m - 0.5f, m - 2.0f}, {1.0f, 2.0f, 3.0f, -4.0f}, TRIMTAB_ATTENTION_PAPER);
      p.call.beta = beta;
      ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
      const Reference reference = ComputeReference(p, false);
      EXPECT_LE(MaxError(p.out, reference.out), 1e-6) << "m " << m << " beta " << beta;
      EXPECT_LE(MaxError(p.lse, reference.lse), 1e-6) << "m " << m << " beta " << beta;
    }
  }
}

// In E5M2 storage the weights show which shift was applied.
double OutputInE5m2(float m, float second, trimtab_attention_kind kind) {
  Problem p = RowOf({m, second, m - 0.3f, m - 0.9f}, {1.0f, -1.5f, 2.5f, 0.75f}, kind);
  p.call.storage = TRIMTAB_STORE_E5M2;
  EXPECT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  return p.out.Get(0, 0, 0, 0) + p.low.Get(0, 0, 0, 0);
}

double RestatedInE5m2(float m, float second, float shift) {
  const float scores[] = {m, second, m - 0.3f, m - 0.9f}, values[] = {1.0f, -1.5f, 2.5f, 0.75f};
  double sum = 0.0, weighted = 0.0;
  for (int i = 0; i < 4; ++i) {
    const float p = std::exp(scores[i] - (m + shift));
    sum += p;
    weighted += static_cast<double>(trimtab_round(p, TRIMTAB_STORE_E5M2)) * values[i];
  }
  return weighted / sum;
}

TEST(Paper, AppliesThePublishedShiftWithinTheGuard) {
  EXPECT_NEAR(OutputInE5m2(3.0f, 3.0f, TRIMTAB_ATTENTION_PAPER), RestatedInE5m2(3.0f, 3.0f, 3.0f), 1e-5);
  EXPECT_NEAR(OutputInE5m2(-2.0f, -2.0f, TRIMTAB_ATTENTION_PAPER), RestatedInE5m2(-2.0f, -2.0f, 2.0f), 1e-5);
  EXPECT_NEAR(OutputInE5m2(40.0f, 40.0f, TRIMTAB_ATTENTION_PAPER), RestatedInE5m2(40.0f, 40.0f, 16.0f), 1e-4);
  // Within the code's 1e-3 of the maximum counts as tied, beyond it does not.
  EXPECT_NEAR(OutputInE5m2(3.0f, 2.9995f, TRIMTAB_ATTENTION_PAPER), RestatedInE5m2(3.0f, 2.9995f, 3.0f), 1e-5);
  EXPECT_NE(RestatedInE5m2(3.0f, 3.0f, 3.0f), RestatedInE5m2(3.0f, 3.0f, 0.0f));
}

TEST(Paper, WithoutATieItIsStandardBitForBit) {
  EXPECT_EQ(OutputInE5m2(3.0f, 2.5f, TRIMTAB_ATTENTION_PAPER), OutputInE5m2(3.0f, 2.5f, TRIMTAB_ATTENTION_STANDARD));
  EXPECT_EQ(OutputInE5m2(0.0f, 0.0f, TRIMTAB_ATTENTION_PAPER), OutputInE5m2(0.0f, 0.0f, TRIMTAB_ATTENTION_STANDARD));
}

// The published per-tile count misses a tie that lies in two tiles; the row-wide count here does not.
TEST(Paper, SeesTiesAcrossTiles) {
  const auto out_of = [](trimtab_attention_kind kind) {
    std::vector<float> scores(2000, -50.0f), values(2000, 0.0f);
    scores[3] = scores[1900] = 5.0f;
    scores[700] = 4.1f;
    values[3] = 1.0f;
    values[700] = 2.5f;
    Problem p = RowOf(scores, values, kind);
    p.call.storage = TRIMTAB_STORE_E5M2;
    EXPECT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
    return p.out.Get(0, 0, 0, 0) + p.low.Get(0, 0, 0, 0);
  };
  EXPECT_NE(out_of(TRIMTAB_ATTENTION_PAPER), out_of(TRIMTAB_ATTENTION_STANDARD));
}

}  // namespace
}  // namespace trimtab::testing
