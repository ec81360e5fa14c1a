#include "agent/courier/step_encoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "agent/courier/limits.h"

namespace trimtab::courier {
namespace {

TEST(StepEncoderTest, SchemaIsTheAgents) {
  const std::vector<v1::MetricDescriptor> schema = MetricSchema();
  std::set<uint32_t> ids;
  for (const v1::MetricDescriptor& row : schema) {
    EXPECT_TRUE(ids.insert(row.id()).second);
    EXPECT_EQ(row.id(), trimtab_metric_id(row.name().c_str()));
    EXPECT_TRUE(v1::Aggregation_IsValid(row.aggregation()));
    if (row.name() == "attention_rows") {
      EXPECT_EQ(row.dtype(), v1::DTYPE_UINT64);
      EXPECT_EQ(row.axes_size(), 2);
      EXPECT_EQ(row.axes(1), v1::AXIS_HEAD);
    }
    if (row.name() == "spectral_norm_q") {
      EXPECT_EQ(row.axes_size(), 1);
    }
    if (row.name() == "loss") {
      EXPECT_EQ(row.axes_size(), 0);
    }
  }
  EXPECT_GT(schema.size(), 30u);
}

agent::RingBlock Block(const char* name, uint32_t dims, uint32_t d0, uint32_t d1, bool u64, const void* data) {
  agent::RingBlock block;
  block.metric = trimtab_metric_id(name);
  block.dims = dims;
  block.shape[0] = d0;
  block.shape[1] = d1;
  block.is_uint64 = u64;
  block.data = data;
  block.count = (dims > 0 ? d0 : 1) * static_cast<uint64_t>(dims > 1 ? d1 : 1);
  return block;
}

TEST(StepEncoderTest, ValuesGoOverBitForBit) {
  const float specials[] = {
      std::nanf(""), std::numeric_limits<float>::infinity(),   -std::numeric_limits<float>::infinity(),
      -0.0f,         std::numeric_limits<float>::denorm_min(), 1e38f};
  const uint64_t counts[] = {0, 1, UINT64_MAX};
  agent::RingStep step;
  step.sequence = 5;
  step.step = UINT64_MAX;
  step.time_unix_nanos = -7;
  step.blocks.push_back(Block("max_attention_logit", 2, 2, 3, false, specials));
  step.blocks.push_back(Block("activation_nonfinite", 1, 3, 0, true, counts));
  StepEncoder encoder;
  std::string bytes;
  ASSERT_TRUE(encoder.Encode(step, &bytes).ok());
  v1::Step out;
  ASSERT_TRUE(out.ParseFromString(bytes));
  EXPECT_EQ(out.sequence(), 5u);
  EXPECT_EQ(out.step(), UINT64_MAX);
  EXPECT_EQ(out.time_unix_nanos(), -7);
  ASSERT_EQ(out.blocks_size(), 2);
  ASSERT_EQ(out.blocks(0).float32_size(), 6);
  EXPECT_EQ(std::memcmp(out.blocks(0).float32().data(), specials, sizeof(specials)), 0);
  EXPECT_EQ(std::vector<uint64_t>(out.blocks(1).uint64().begin(), out.blocks(1).uint64().end()),
            std::vector<uint64_t>(std::begin(counts), std::end(counts)));
  EXPECT_EQ(encoder.bad_blocks(), 0u);
}

TEST(StepEncoderTest, BlocksThatContradictTheSchemaAreLeftOut) {
  const float f[4] = {1, 2, 3, 4};
  agent::RingStep step;
  step.blocks.push_back(Block("loss", 0, 0, 0, false, f));
  step.blocks.push_back(Block("loss", 0, 0, 0, true, f));             // type
  step.blocks.push_back(Block("loss", 1, 4, 0, false, f));            // axes
  step.blocks.push_back(Block("no such metric", 0, 0, 0, false, f));  // id 0
  step.blocks.push_back(Block("spectral_norm_q", 1, 0, 0, false, f));
  step.blocks.push_back(Block("spectral_norm_q", 1, TRIMTAB_MAX_LAYERS + 1, 0, false, f));
  step.blocks.push_back(Block("spectral_norm_q", 1, 4, 0, false, f));
  step.blocks.back().count = 3;  // not the shape's
  StepEncoder encoder;
  std::string bytes;
  ASSERT_TRUE(encoder.Encode(step, &bytes).ok());
  v1::Step out;
  ASSERT_TRUE(out.ParseFromString(bytes));
  EXPECT_EQ(out.blocks_size(), 1);
  EXPECT_EQ(encoder.bad_blocks(), 6u);
  EXPECT_NE(encoder.bad_block_reason(), "");
}

TEST(StepEncoderTest, StepsAboveTheBoundAreRefused) {
  const std::vector<float> values(1024 * 1024, 1.0f);
  agent::RingStep step;
  step.blocks.push_back(
      Block("max_attention_logit", 2, 1024, static_cast<uint32_t>(kMaxStepBytes / 4096) - 1, false, values.data()));
  StepEncoder encoder;
  std::string bytes;
  EXPECT_TRUE(encoder.Encode(step, &bytes).ok());
  EXPECT_LE(bytes.size(), kMaxStepBytes);
  step.blocks[0] =
      Block("max_attention_logit", 2, 1024, static_cast<uint32_t>(kMaxStepBytes / 4096), false, values.data());
  EXPECT_EQ(encoder.Encode(step, &bytes).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace trimtab::courier
