#include "server/policy/signals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "server/policy/policy_parser.h"

namespace trimtab::server {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

v1::MetricDescriptor Metric(uint32_t id, const std::string& name, v1::Aggregation aggregation, int axes) {
  v1::MetricDescriptor m;
  m.set_id(id);
  m.set_name(name);
  m.set_aggregation(aggregation);
  if (axes > 0) m.add_axes(v1::AXIS_LAYER);
  if (axes > 1) m.add_axes(v1::AXIS_HEAD);
  return m;
}

class SignalsTest : public ::testing::Test {
 protected:
  SignalsTest()
      : policy_(*ParsePolicy(DefaultPolicyYaml())),
        table_(policy_),
        map_(MapMetrics(table_, {Metric(1, "loss", v1::AGGREGATION_MEAN, 0),
                                 Metric(2, "max_attention_logit", v1::AGGREGATION_MAX, 2),
                                 Metric(3, "spectral_norm_q", v1::AGGREGATION_MAX, 1),
                                 Metric(4, "not_in_the_policy", v1::AGGREGATION_MAX, 1)})) {}

  v1::Step Step(uint32_t metric, std::vector<uint32_t> shape, std::vector<float> values) {
    v1::Step step;
    step.set_step(9);
    v1::Block* b = step.add_blocks();
    b->set_metric(metric);
    for (const uint32_t d : shape) b->add_shape(d);
    for (const float v : values) b->add_float32(v);
    return step;
  }
  const SignalCells& Of(const StepCells& cells, const char* name) { return cells.signals[*table_.Find(name)]; }

  Policy policy_;
  SignalTable table_;
  MetricMap map_;
};

TEST_F(SignalsTest, HeadsFoldByMaximum) {
  const StepCells c = ReduceStep(table_, map_, 3, Step(2, {2, 3}, {1, 7, 2, -5, -4, -6}));
  const SignalCells& s = Of(c, "max_attention_logit");
  ASSERT_TRUE(s.present && s.layered);
  ASSERT_EQ(s.cells.size(), 2u);
  EXPECT_EQ(s.cells[0].value, 7);
  EXPECT_EQ(s.cells[0].worst_head, 1u);
  EXPECT_EQ(s.cells[1].value, -4);
  EXPECT_EQ(s.cells[1].worst_rank, 3u);
  EXPECT_FALSE(Of(c, "loss").present);
}

TEST_F(SignalsTest, NonFiniteHeadsDoNotHideTheOthers) {
  const StepCells c = ReduceStep(table_, map_, 0, Step(2, {3, 2}, {kNan, 500, kNan, kNan, kInf, 1}));
  const SignalCells& s = Of(c, "max_attention_logit");
  EXPECT_EQ(s.cells[0].value, 500);
  EXPECT_EQ(s.cells[0].nonfinite, 1u);
  EXPECT_EQ(s.cells[1].values, 0u);
  EXPECT_EQ(s.cells[1].nonfinite, 2u);
  EXPECT_EQ(s.cells[2].value, kInf);  // above every threshold
}

TEST_F(SignalsTest, ShapesThatDoNotFitAreLeftOut) {
  EXPECT_FALSE(Of(ReduceStep(table_, map_, 0, Step(2, {2, 3}, {1, 2, 3})), "max_attention_logit").present);
  EXPECT_FALSE(Of(ReduceStep(table_, map_, 0, Step(2, {}, {1})), "max_attention_logit").present);
  EXPECT_FALSE(Of(ReduceStep(table_, map_, 0, Step(2, {0, 0}, {})), "max_attention_logit").present);
  EXPECT_FALSE(Of(ReduceStep(table_, map_, 0, Step(3, {4000000000, 2}, {1, 2})), "spectral_norm_q").present);
  EXPECT_FALSE(Of(ReduceStep(table_, map_, 0, Step(1, {}, {})), "loss").present);
}

TEST_F(SignalsTest, RanksFoldByTheMetricsRule) {
  StepCells loss = ReduceStep(table_, map_, 0, Step(1, {}, {2}));
  FoldRank(map_.aggregation, ReduceStep(table_, map_, 1, Step(1, {}, {4})), &loss);
  FoldRank(map_.aggregation, ReduceStep(table_, map_, 2, Step(1, {}, {6})), &loss);
  EXPECT_EQ(Of(loss, "loss").cells[0].value, 4);
  EXPECT_EQ(loss.ranks, 3u);
  StepCells sigma = ReduceStep(table_, map_, 0, Step(3, {2}, {1, 9}));
  FoldRank(map_.aggregation, ReduceStep(table_, map_, 5, Step(3, {2}, {8, 2})), &sigma);
  EXPECT_EQ(Of(sigma, "spectral_norm_q").cells[0].value, 8);
  EXPECT_EQ(Of(sigma, "spectral_norm_q").cells[0].worst_rank, 5u);
  EXPECT_EQ(Of(sigma, "spectral_norm_q").cells[1].value, 9);
}

// Cases B17 and E02: one bad rank is found, named, and hides nothing.
TEST_F(SignalsTest, OneNanRankIsNamed) {
  StepCells loss = ReduceStep(table_, map_, 0, Step(1, {}, {2}));
  for (uint32_t rank = 1; rank < 16; ++rank) {
    FoldRank(map_.aggregation, ReduceStep(table_, map_, rank, Step(1, {}, {rank == 14 ? kNan : 2})), &loss);
  }
  const Cell& c = Of(loss, "loss").cells[0];
  EXPECT_EQ(c.value, 2);
  EXPECT_EQ(c.nonfinite, 1u);
  EXPECT_EQ(c.nonfinite_rank, 14u);
  StepCells first_bad = ReduceStep(table_, map_, 14, Step(1, {}, {kNan}));
  FoldRank(map_.aggregation, ReduceStep(table_, map_, 15, Step(1, {}, {3})), &first_bad);
  EXPECT_EQ(Of(first_bad, "loss").cells[0].value, 3);
  EXPECT_EQ(Of(first_bad, "loss").cells[0].nonfinite_rank, 14u);
}

}  // namespace
}  // namespace trimtab::server
