#include "server/registry/metric_fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/server/support/messages.h"

namespace trimtab::server {
namespace {

using ::testing::ElementsAre;

MetricFold Fold(v1::Aggregation how, int axes, v1::DType dtype = v1::DTYPE_FLOAT32) {
  return MetricFold(Metric(1, "m", dtype, axes, how));
}

std::vector<float> Values(const MetricFold& fold) {
  return {fold.value().float32().begin(), fold.value().float32().end()};
}
std::vector<uint64_t> CountsOf(const MetricFold& fold) {
  return {fold.value().uint64().begin(), fold.value().uint64().end()};
}

TEST(MetricFoldTest, FoldsByAggregation) {
  const auto fold_two = [](v1::Aggregation how) {
    MetricFold fold = Fold(how, 1);
    fold.Add(1, Floats(1, {2}, {1, 8}), false);
    fold.Add(1, Floats(1, {2}, {3, 2}), false);
    return Values(fold);
  };
  EXPECT_THAT(fold_two(v1::AGGREGATION_MAX), ElementsAre(3, 8));
  EXPECT_THAT(fold_two(v1::AGGREGATION_MEAN), ElementsAre(2, 5));
  EXPECT_THAT(fold_two(v1::AGGREGATION_SUM), ElementsAre(4, 10));
  EXPECT_THAT(fold_two(v1::AGGREGATION_LAST), ElementsAre(3, 2));
}

TEST(MetricFoldTest, CountsSumExactly) {
  MetricFold fold = Fold(v1::AGGREGATION_SUM, 1, v1::DTYPE_UINT64);
  fold.Add(1, Counts(1, {1}, {(1ULL << 60) + 1}), false);
  fold.Add(1, Counts(1, {1}, {2}), false);
  EXPECT_THAT(CountsOf(fold), ElementsAre((1ULL << 60) + 3));
}

TEST(MetricFoldTest, MeanOverThreeRanks) {
  MetricFold fold = Fold(v1::AGGREGATION_MEAN, 0);
  for (const float loss : {1.0F, 2.0F, 6.0F}) fold.Add(1, Scalar(1, loss), false);
  EXPECT_THAT(Values(fold), ElementsAre(3));
}

TEST(MetricFoldTest, NanInABlockMeansNoSample) {
  MetricFold fold = Fold(v1::AGGREGATION_MEAN, 1);
  fold.Add(1, Floats(1, {3}, {NAN, 1, NAN}), false);
  fold.Add(1, Floats(1, {3}, {4, NAN, NAN}), false);
  fold.Add(1, Floats(1, {3}, {8, 3, NAN}), false);
  EXPECT_EQ(Values(fold)[0], 6);
  EXPECT_EQ(Values(fold)[1], 2);
  EXPECT_TRUE(std::isnan(Values(fold)[2]));
}

TEST(MetricFoldTest, NanInAScalarWins) {
  for (const v1::Aggregation how : {v1::AGGREGATION_MAX, v1::AGGREGATION_MEAN}) {
    MetricFold fold = Fold(how, 0);
    fold.Add(1, Scalar(1, 2), false);
    fold.Add(1, Scalar(1, NAN), false);
    fold.Add(1, Scalar(1, 3), false);
    EXPECT_TRUE(std::isnan(Values(fold)[0])) << how;
  }
}

TEST(MetricFoldTest, InfinityIsAValue) {
  MetricFold fold = Fold(v1::AGGREGATION_MAX, 1);
  fold.Add(1, Floats(1, {2}, {-INFINITY, 1}), false);
  fold.Add(1, Floats(1, {2}, {-INFINITY, INFINITY}), false);
  EXPECT_THAT(Values(fold), ElementsAre(-INFINITY, INFINITY));
}

TEST(MetricFoldTest, PipelineStagesWidenTheBlock) {
  MetricFold fold = Fold(v1::AGGREGATION_MAX, 2);
  fold.Add(1, Floats(1, {1, 2}, {1, 2}), false);
  fold.Add(1, Floats(1, {2, 3}, {NAN, NAN, 9, 4, 5, 6}), false);
  EXPECT_THAT(fold.value().shape(), ElementsAre(2, 3));
  EXPECT_THAT(Values(fold), ElementsAre(1, 2, 9, 4, 5, 6));
  // A smaller block goes to its own cells.
  fold.Add(1, Floats(1, {1, 1}, {7}), false);
  EXPECT_THAT(Values(fold), ElementsAre(7, 2, 9, 4, 5, 6));
}

TEST(MetricFoldTest, ShowsTheNewestStepOnceAsManyRanksReportedIt) {
  MetricFold fold = Fold(v1::AGGREGATION_SUM, 0);
  EXPECT_TRUE(fold.empty());
  fold.Add(1, Scalar(1, 1), false);
  fold.Add(1, Scalar(1, 1), false);
  fold.Add(2, Scalar(1, 10), false);
  EXPECT_EQ(fold.step(), 1);
  EXPECT_THAT(Values(fold), ElementsAre(2));
  fold.Add(2, Scalar(1, 10), false);
  EXPECT_EQ(fold.step(), 2);
  EXPECT_THAT(Values(fold), ElementsAre(20));
}

TEST(MetricFoldTest, AStragglerOfThePreviousStepCounts) {
  MetricFold fold = Fold(v1::AGGREGATION_SUM, 0);
  fold.Add(1, Scalar(1, 1), false);
  fold.Add(2, Scalar(1, 10), false);
  fold.Add(1, Scalar(1, 1), false);
  EXPECT_EQ(fold.step(), 1);
  EXPECT_THAT(Values(fold), ElementsAre(2));
  fold.Add(0, Scalar(1, 100), false);  // older still: too late
  EXPECT_THAT(Values(fold), ElementsAre(2));
}

TEST(MetricFoldTest, ARestartFromACheckpointStartsOver) {
  MetricFold fold = Fold(v1::AGGREGATION_SUM, 0);
  fold.Add(100, Scalar(1, 1), false);
  fold.Add(100, Scalar(1, 1), false);
  fold.Add(90, Scalar(1, 5), true);
  EXPECT_EQ(fold.step(), 90);
  EXPECT_THAT(Values(fold), ElementsAre(5));
}

}  // namespace
}  // namespace trimtab::server
