#include "server/ingest/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "server/model/limits.h"
#include "tests/unit/server/support/messages.h"

namespace trimtab::server {
namespace {

using ::testing::HasSubstr;

v1::Hello GoodHello() { return HelloMessage(1, Info("run", 3, 4)).hello(); }

void ExpectRejected(const std::optional<Rejection>& rejection, RefusalReason reason, const std::string& text) {
  ASSERT_TRUE(rejection) << text;
  EXPECT_EQ(rejection->reason, reason);
  EXPECT_THAT(rejection->message, HasSubstr(text));
}

void ExpectHelloRejected(const std::function<void(v1::Hello*)>& spoil, RefusalReason reason, const std::string& text) {
  v1::Hello hello = GoodHello();
  spoil(&hello);
  ExpectRejected(ValidateHello(hello), reason, text);
}

TEST(ValidateHelloTest, AcceptsAGoodOne) { EXPECT_FALSE(ValidateHello(GoodHello())); }

TEST(ValidateHelloTest, RefusesEachFault) {
  ExpectHelloRejected([](v1::Hello* h) { h->set_protocol_version(2); }, RefusalReason::kProtocolVersion,
                      "protocol 2, this server speaks 1; install matching versions");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_rank()->set_run(""); }, RefusalReason::kBadRunName, "--run");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_rank()->set_run(std::string(10240, 'n')); },
                      RefusalReason::kBadRunName, "10240 bytes, the limit is 255");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_rank()->set_run("a\nb"); }, RefusalReason::kBadRunName,
                      "control character at byte 1");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_rank()->set_rank(4); }, RefusalReason::kBadRank,
                      "rank 4 is not below the world size 4");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_rank()->set_world_size(0); }, RefusalReason::kBadRank,
                      "world size is 0");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_rank()->set_world_size(kMaxWorldSize + 1); },
                      RefusalReason::kBadRank, absl::StrCat("1 to ", kMaxWorldSize));
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_rank()->set_incarnation(0); }, RefusalReason::kBadRank,
                      "incarnation 0");
  ExpectHelloRejected(
      [](v1::Hello* h) { (*h->mutable_rank()->mutable_metadata())["x"] = std::string(kMaxRankInfoBytes, 'x'); },
      RefusalReason::kBadRankInfo, "send less metadata");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_rank()->add_layers()->set_heads(kMaxHeads + 1); },
                      RefusalReason::kBadRankInfo, "1025 heads");
  ExpectHelloRejected(
      [](v1::Hello* h) {
        for (uint32_t i = 0; i <= kMaxLayers; ++i) h->mutable_rank()->add_layers()->set_index(i);
      },
      RefusalReason::kBadRankInfo, "1025 layers");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_metrics(0)->set_name("Loss"); }, RefusalReason::kBadMetric,
                      "[a-z]");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_metrics(0)->set_name(std::string(65, 'a')); },
                      RefusalReason::kBadMetric, "at most 64 bytes");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_metrics(0)->set_id(0); }, RefusalReason::kBadMetric, "id above 0");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_metrics(0)->set_id(2); }, RefusalReason::kBadMetric,
                      "listed twice");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_metrics(0)->set_dtype(v1::DTYPE_UNSPECIFIED); },
                      RefusalReason::kBadMetric, "dtype");
  ExpectHelloRejected([](v1::Hello* h) { h->mutable_metrics(0)->add_axes(v1::AXIS_HEAD); }, RefusalReason::kBadMetric,
                      "axes");
}

TEST(ValidateHelloTest, TheLimitOfMetricsIsExact) {
  v1::Hello hello = GoodHello();
  hello.clear_metrics();
  for (uint32_t i = 1; i <= kMaxMetrics; ++i) {
    *hello.add_metrics() = Metric(i, absl::StrCat("m", i), v1::DTYPE_FLOAT32, 2, v1::AGGREGATION_MAX);
  }
  EXPECT_FALSE(ValidateHello(hello));
  *hello.add_metrics() = Metric(999, "m", v1::DTYPE_FLOAT32, 2, v1::AGGREGATION_MAX);
  ExpectRejected(ValidateHello(hello), RefusalReason::kBadMetric, "257 metrics, the limit is 256");
}

std::optional<Rejection> Check(const std::vector<v1::Step>& steps) {
  const auto hello = GoodHello();
  return ValidateSteps(StepsMessage(1, steps).steps(), MetricTable(hello.metrics()));
}

std::optional<Rejection> CheckBlock(const v1::Block& block) {
  v1::Step step = LossStep(1, 1, 1);
  *step.mutable_blocks(0) = block;
  return Check({step});
}

TEST(ValidateStepsTest, SequencesAscendWithinABatch) {
  EXPECT_FALSE(Check({LossStep(1, 9, 1), LossStep(5, 3, 1)})) << "gaps and steps that go back are fine";
  EXPECT_FALSE(Check({}));
  ExpectRejected(Check({LossStep(0, 1, 1)}), RefusalReason::kBadSequence, "start at 1");
  ExpectRejected(Check({LossStep(2, 1, 1), LossStep(2, 2, 1)}), RefusalReason::kBadSequence, "does not follow 2");
}

TEST(ValidateStepsTest, BlocksFitTheirMetric) {
  EXPECT_FALSE(CheckBlock(Floats(kMaxLogit, {2, 2}, {1, 2, 3, 4})));
  ExpectRejected(CheckBlock(Scalar(77, 1)), RefusalReason::kBadMetric, "metric id 77");
  ExpectRejected(CheckBlock(Floats(kMaxLogit, {4}, {1, 2, 3, 4})), RefusalReason::kBadShape,
                 "has 2 axes, the block has 1");
  ExpectRejected(CheckBlock(Floats(kMaxLogit, {2, 2}, {1, 2, 3})), RefusalReason::kBadShape, "needs 4 float32");
  ExpectRejected(CheckBlock(Counts(kLoss, {}, {1})), RefusalReason::kBadShape, "needs 1 float32");
  ExpectRejected(CheckBlock(Floats(kMaxLogit, {0, 2}, {})), RefusalReason::kBadShape, "0 layers");
  v1::Block both = Scalar(kLoss, 1);
  both.add_uint64(1);
  ExpectRejected(CheckBlock(both), RefusalReason::kBadShape, "1 uint64");
  // An extent product that would overflow 32 bits cannot arise below the limits; a huge one is named.
  ExpectRejected(CheckBlock(Floats(kMaxLogit, {0xFFFFFFFF, 0xFFFFFFFF}, {1})), RefusalReason::kBadShape, "1 to 1024");
}

TEST(ValidateStepsTest, TheLimitsOfLayersAndHeadsAreExact) {
  std::vector<float> values(1024);
  EXPECT_FALSE(CheckBlock(Floats(kMaxLogit, {kMaxLayers, 1}, values)));
  EXPECT_FALSE(CheckBlock(Floats(kMaxLogit, {1, kMaxHeads}, values)));
  values.push_back(0);
  ExpectRejected(CheckBlock(Floats(kMaxLogit, {kMaxLayers + 1, 1}, values)), RefusalReason::kBadShape, "1025 layers");
  ExpectRejected(CheckBlock(Floats(kMaxLogit, {1, kMaxHeads + 1}, values)), RefusalReason::kBadShape, "1025 heads");
}

TEST(ValidateStepsTest, TheLimitOfBlocksIsExact) {
  v1::Step step = LossStep(1, 1, 1);
  while (static_cast<size_t>(step.blocks_size()) < kMaxMetrics) *step.add_blocks() = Scalar(kLoss, 1);
  EXPECT_FALSE(Check({step}));
  *step.add_blocks() = Scalar(kLoss, 1);
  ExpectRejected(Check({step}), RefusalReason::kBadMetric, "257 blocks");
}

}  // namespace
}  // namespace trimtab::server
