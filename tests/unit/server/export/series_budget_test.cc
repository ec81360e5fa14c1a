#include "server/export/series_budget.h"

#include <gtest/gtest.h>

namespace trimtab::server {
namespace {

TEST(SeriesBudgetTest, TheBoundIsExact) {
  SeriesBudget budget(3);
  for (int i = 0; i < 5; ++i) budget.Gauge("a", "", {{"i", std::to_string(i)}}, i);
  EXPECT_EQ(budget.used(), 3);
  EXPECT_EQ(budget.left_out(), 2);
  const auto families = budget.Take();
  ASSERT_EQ(families.size(), 1);
  EXPECT_EQ(families[0].metric.size(), 3);
}

TEST(SeriesBudgetTest, AHistogramCountsAsAllItsSeriesOrNotAtAll) {
  const double bounds[] = {1, 2};
  const uint64_t counts[] = {3, 0, 4};
  SeriesBudget small(HistogramSeries(2) - 1), enough(HistogramSeries(2));
  small.Histogram("h", "", {}, bounds, counts, 2, 9);
  EXPECT_EQ(small.used(), 0);
  EXPECT_EQ(small.left_out(), 5);
  EXPECT_TRUE(small.Take().empty());
  enough.Histogram("h", "", {}, bounds, counts, 2, 9);
  EXPECT_EQ(enough.used(), 5);
  const auto families = enough.Take();
  const auto& histogram = families[0].metric[0].histogram;
  EXPECT_EQ(histogram.sample_count, 7);
  EXPECT_EQ(histogram.bucket[1].cumulative_count, 3);
  EXPECT_EQ(histogram.bucket[2].cumulative_count, 7);
}

}  // namespace
}  // namespace trimtab::server
