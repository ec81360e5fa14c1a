#include "agent/torch/head_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace trimtab::agent {
namespace {

std::vector<trimtab_head_stats> Heads(size_t n, float logit) {
  std::vector<trimtab_head_stats> heads(n);
  ClearHeadStats(heads);
  for (auto& head : heads) {
    head.rows = 10;
    head.max_logit = logit;
    head.entropy_sum = 5;
  }
  return heads;
}

TEST(StepStatsTest, AddsCallsOfALayer) {
  StepStats stats;
  EXPECT_TRUE(stats.empty());
  EXPECT_TRUE(stats.Add(1, Heads(2, 3)));
  EXPECT_TRUE(stats.Add(1, Heads(4, -7)));
  EXPECT_EQ(stats.layers(), 2U);
  EXPECT_EQ(stats.heads(), 4U);
  EXPECT_EQ(stats.Cell(0, 0), nullptr);
  EXPECT_EQ(stats.Cell(1, 0)->rows, 20U);
  EXPECT_EQ(stats.Cell(1, 0)->max_logit, 3);
  EXPECT_EQ(stats.Cell(1, 3)->max_logit, -7);  // never floored at 0
  stats.Clear();
  EXPECT_TRUE(stats.empty());
  EXPECT_EQ(stats.Cell(1, 0)->rows, 0U);
}

TEST(StepStatsTest, LayersAreBounded) {
  StepStats stats;
  EXPECT_TRUE(stats.Add(TRIMTAB_MAX_LAYERS - 1, Heads(1, 0)));
  EXPECT_FALSE(stats.Add(TRIMTAB_MAX_LAYERS, Heads(1, 0)));
  EXPECT_FALSE(stats.Add(-1, Heads(1, 0)));
}

TEST(HeadStatsTest, ANanMaximumStays) {
  auto heads = Heads(1, std::numeric_limits<float>::quiet_NaN());
  auto sum = Heads(1, 3);
  AddHeadStats(heads[0], &sum[0]);
  AddHeadStats(Heads(1, 9)[0], &sum[0]);
  EXPECT_TRUE(std::isnan(sum[0].max_logit));
}

TEST(HeadStatsTest, SummaryOfAnEmptyCellIsZero) {
  std::vector<trimtab_head_stats> empty(1);
  ClearHeadStats(empty);
  const CellMetrics m = Summarize(empty[0]);
  EXPECT_EQ(m.max_attention_logit, 0);
  EXPECT_EQ(m.attention_entropy, 0);
  EXPECT_EQ(m.delta_residual_z, 0);
}

TEST(HeadStatsTest, SummaryFollowsTheDefinitions) {
  trimtab_head_stats s = {};
  s.rows = 4;
  s.repeated_max_rows = 1;
  s.scores = 20;
  s.p_one_count = 5;
  s.entropy_sum = 6;
  s.sink_share_sum = 2;
  s.max_logit = -2;
  s.delta_rows = 4;  // g = 1, 2, 3, 4
  s.delta_residual_sum = 10;
  s.delta_residual_sum_squares = 30;
  s.output_error_sum_squares = 4;
  s.output_sum_squares = 100;
  const CellMetrics m = Summarize(s);
  EXPECT_EQ(m.max_attention_logit, -2);
  EXPECT_FLOAT_EQ(m.repeated_max_share, 0.25F);
  EXPECT_FLOAT_EQ(m.p_one_share, 0.25F);
  EXPECT_FLOAT_EQ(m.attention_entropy, 1.5F);
  EXPECT_FLOAT_EQ(m.sink_share, 0.5F);
  EXPECT_FLOAT_EQ(m.delta_residual_z, static_cast<float>(2.5 / std::sqrt(5.0 / 3 / 4)));
  EXPECT_FLOAT_EQ(m.attention_output_error, 0.2F);
}

}  // namespace
}  // namespace trimtab::agent
