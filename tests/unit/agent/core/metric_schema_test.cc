#include "agent/core/metric_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace trimtab::agent {
namespace {

TEST(MetricSchemaTest, EveryRowIsWellFormedAndFound) {
  std::set<uint32_t> ids;
  std::set<std::string> names;
  uint32_t count = 0;
  for (; const trimtab_metric* metric = trimtab_metric_info(count); ++count) {
    EXPECT_TRUE(ids.insert(metric->id).second) << metric->name;
    EXPECT_TRUE(names.insert(metric->name).second) << metric->name;
    const std::string name = metric->name;
    EXPECT_LE(name.size(), 64u);
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos) << name;
    EXPECT_TRUE(name[0] >= 'a' && name[0] <= 'z') << name;
    EXPECT_GT(metric->id, 0u);
    EXPECT_LT(metric->id, kMetricIdEnd);
    EXPECT_GE(metric->aggregation, kMax);
    EXPECT_LE(metric->aggregation, kLast);
    EXPECT_STRNE(metric->help, "");
    EXPECT_EQ(std::string(metric->help).find('\n'), std::string::npos);
    EXPECT_EQ(FindMetric(metric->id), metric);
    EXPECT_EQ(trimtab_metric_id(metric->name), metric->id);
  }
  EXPECT_EQ(count, 42u);
  EXPECT_EQ(trimtab_metric_info(count), nullptr);
  EXPECT_EQ(trimtab_metric_info(UINT32_MAX), nullptr);
}

// Ids are in ring files and stores: a change here is a format change.
TEST(MetricSchemaTest, IdsAreStable) {
  EXPECT_EQ(trimtab_metric_id("loss"), 1u);
  EXPECT_EQ(trimtab_metric_id("loss_scale"), 8u);
  EXPECT_EQ(trimtab_metric_id("max_attention_logit"), 32u);
  EXPECT_EQ(trimtab_metric_id("delta_residual_z"), 48u);
  EXPECT_EQ(trimtab_metric_id("spectral_norm_k_head"), 51u);
  EXPECT_EQ(trimtab_metric_id("spectral_norm_q"), 64u);
  EXPECT_EQ(trimtab_metric_id("attention_mode"), 77u);
}

TEST(MetricSchemaTest, UnknownIsNothing) {
  EXPECT_EQ(trimtab_metric_id("los"), 0u);
  EXPECT_EQ(trimtab_metric_id(""), 0u);
  EXPECT_EQ(trimtab_metric_id(nullptr), 0u);
  EXPECT_EQ(FindMetric(0), nullptr);
  EXPECT_EQ(FindMetric(9), nullptr);
  EXPECT_EQ(FindMetric(kMetricIdEnd), nullptr);
  EXPECT_EQ(FindMetric(UINT32_MAX), nullptr);
}

}  // namespace
}  // namespace trimtab::agent
