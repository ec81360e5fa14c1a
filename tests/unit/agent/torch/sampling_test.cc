#include "agent/torch/sampling.h"

#include <gtest/gtest.h>

#include <vector>

namespace trimtab::agent {
namespace {

TEST(SamplingTest, SamplesEveryStrideSteps) {
  SamplingPlan plan;
  plan.Configure(3, 64, 0.01, true);
  std::vector<uint64_t> sampled;
  for (uint64_t step = 10; step < 20; ++step) {
    if (plan.Sample(step)) sampled.push_back(step);
  }
  EXPECT_EQ(sampled, (std::vector<uint64_t>{10, 13, 16, 19}));
}

TEST(SamplingTest, RowsGiveWayBeforeTheStride) {
  SamplingPlan plan;
  plan.Configure(1, 64, 0.01, true);
  std::vector<std::pair<uint32_t, uint32_t>> rungs;
  for (int i = 0; i < 2000; ++i) {
    if (plan.StepDone(0.5, 1)) rungs.emplace_back(plan.rows(), plan.stride());
  }
  ASSERT_GE(rungs.size(), 5U);
  EXPECT_EQ(rungs[0], (std::pair<uint32_t, uint32_t>{32, 1}));
  EXPECT_EQ(rungs[2], (std::pair<uint32_t, uint32_t>{8, 1}));
  EXPECT_EQ(rungs[3], (std::pair<uint32_t, uint32_t>{8, 2}));
  for (size_t i = 1; i < rungs.size(); ++i) {  // monotone while over budget
    EXPECT_LE(rungs[i].first, rungs[i - 1].first);
    EXPECT_GE(rungs[i].second, rungs[i - 1].second);
  }
}

TEST(SamplingTest, StopsAtItsBoundsAndComesBack) {
  SamplingPlan plan;
  plan.Configure(1, 64, 0.01, true);
  for (int i = 0; i < 200000; ++i) plan.StepDone(1, 1);
  EXPECT_EQ(plan.rows(), SamplingPlan::kMinRows);
  EXPECT_EQ(plan.stride(), SamplingPlan::kMaxStride);
  for (int i = 0; i < 200000; ++i) plan.StepDone(0, 1);
  EXPECT_EQ(plan.rows(), 64U);
  EXPECT_EQ(plan.stride(), 1U);
}

TEST(SamplingTest, StaysBetweenTheThresholds) {
  SamplingPlan plan;
  plan.Configure(1, 64, 0.01, true);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(plan.StepDone(0.007, 1));
  EXPECT_NEAR(plan.share(), 0.007, 1e-9);
}

TEST(SamplingTest, AFixedPlanIsNotThinned) {
  SamplingPlan plan;
  plan.Configure(1, 64, 0.01, false);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(plan.StepDone(1, 1));
  EXPECT_EQ(plan.stride(), 1U);
}

}  // namespace
}  // namespace trimtab::agent
