// The telemetry protocol against a real store over a real port.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "server/model/limits.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/test_courier.h"
#include "tests/unit/server/support/test_server.h"

namespace trimtab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SessionTest : public testing::Test {
 protected:
  std::vector<float> Losses(const std::string& run, uint32_t rank = 0) {
    std::vector<float> losses;
    EXPECT_THAT(server_.store->ReadRows(run, "loss", rank, 0, 0,
                                        [&](const Store::Row& row) {
                                          losses.push_back(row.block.float32(0));
                                          return true;
                                        }),
                IsOk());
    return losses;
  }

  TempDir folder_;
  TestServer server_{folder_.path()};
};

TEST_F(SessionTest, StoresAcknowledgesAndTells) {
  TestCourier courier(server_.address());
  ASSERT_TRUE(courier.Send(HelloMessage(1, Info("run"))));
  const auto welcome = courier.WaitWelcome(1);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->last_durable_sequence(), 0);
  ASSERT_TRUE(courier.Send(StepsMessage(1, {LossStep(1, 10, 2.5F), LossStep(2, 11, 2.25F)})));
  ASSERT_TRUE(courier.WaitDurable(1, 2));
  EXPECT_THAT(Losses("run"), ElementsAre(2.5F, 2.25F));
  ASSERT_TRUE(courier.Send(GoodbyeMessage(1, true)));
  EXPECT_TRUE(courier.Finish().ok());
  EXPECT_THAT(server_.witness.log(), ElementsAre("joined 0/1", "step 10", "step 11", "left 0/1 finished"));
  const IngestStatistics s = server_.ingest->statistics();
  EXPECT_EQ(s.steps, 2);
  EXPECT_EQ(s.values, 2);
  EXPECT_EQ(s.queue_bytes, 0);
  EXPECT_EQ(s.channels, 0);
}

TEST_F(SessionTest, KnownSequencesAreAcknowledgedAndNotStoredAgain) {
  {
    TestCourier courier(server_.address());
    courier.Send(HelloMessage(1, Info("run")));
    courier.Send(StepsMessage(1, {LossStep(1, 1, 1), LossStep(2, 2, 2)}));
    ASSERT_TRUE(courier.WaitDurable(1, 2));
  }
  ASSERT_TRUE(server_.witness.WaitFor("left 0/1 disconnected"));
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(7, Info("run")));
  const auto welcome = courier.WaitWelcome(7);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->last_durable_sequence(), 2);
  courier.Send(StepsMessage(7, {LossStep(1, 1, 99), LossStep(2, 2, 99), LossStep(3, 3, 3)}));
  ASSERT_TRUE(courier.WaitDurable(7, 3));
  courier.Send(StepsMessage(7, {LossStep(3, 3, 99)}));
  courier.Send(StepsMessage(7, {LossStep(4, 4, 4)}));
  ASSERT_TRUE(courier.WaitDurable(7, 4));
  EXPECT_THAT(Losses("run"), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(server_.ingest->statistics().duplicate_steps, 3);
}

TEST_F(SessionTest, NanAndInfinitiesAreKeptInEveryField) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(1, Info("run")));
  v1::Step step = LossStep(1, 1, nan);
  *step.add_blocks() = Scalar(kGradNorm, inf);
  *step.add_blocks() = Floats(kMaxLogit, {1, 3}, {-inf, nan, inf});
  *step.add_blocks() = Floats(kSpectralNormQ, {2}, {nan, -inf});
  courier.Send(StepsMessage(1, {step}));
  ASSERT_TRUE(courier.WaitDurable(1, 1));
  EXPECT_TRUE(std::isnan(Losses("run")[0]));
  std::vector<float> logits;
  ASSERT_THAT(server_.store->ReadRows("run", "max_attention_logit", 0, 0, 0,
                                      [&](const Store::Row& row) {
                                        logits.assign(row.block.float32().begin(), row.block.float32().end());
                                        return true;
                                      }),
              IsOk());
  ASSERT_EQ(logits.size(), 3);
  EXPECT_EQ(logits[0], -inf);
  EXPECT_TRUE(std::isnan(logits[1]));
  EXPECT_EQ(logits[2], inf);
}

TEST_F(SessionTest, StepsThatGoBackwardsInANewIncarnationAreKeptApart) {
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(1, Info("run", 0, 1, 100)));
  courier.Send(StepsMessage(1, {LossStep(1, 1, 1), LossStep(2, 2, 2), LossStep(3, 3, 3)}));
  courier.Send(GoodbyeMessage(1, false));
  courier.Send(HelloMessage(2, Info("run", 0, 1, 200)));
  courier.Send(StepsMessage(2, {LossStep(1, 2, 20), LossStep(2, 3, 30)}));
  ASSERT_TRUE(courier.WaitDurable(2, 2));
  std::vector<std::pair<uint64_t, float>> rows;
  ASSERT_THAT(server_.store->ReadRows("run", "loss", 0, 0, 0,
                                      [&](const Store::Row& row) {
                                        rows.emplace_back(row.incarnation, row.block.float32(0));
                                        return true;
                                      }),
              IsOk());
  EXPECT_THAT(rows, ElementsAre(std::pair(100, 1), std::pair(100, 2), std::pair(100, 3), std::pair(200, 20),
                                std::pair(200, 30)));
}

TEST_F(SessionTest, AStuckStepCounterKeepsTheLastValue) {
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(1, Info("run")));
  courier.Send(StepsMessage(1, {LossStep(1, 5, 1), LossStep(2, 5, 2)}));
  courier.Send(StepsMessage(1, {LossStep(3, 5, 3)}));
  ASSERT_TRUE(courier.WaitDurable(1, 3));
  EXPECT_THAT(Losses("run"), ElementsAre(3));
}

TEST_F(SessionTest, TwoProcessesWithTheSameRank) {
  TestCourier first(server_.address()), second(server_.address());
  first.Send(HelloMessage(1, Info("run", 0, 1, 100)));
  ASSERT_TRUE(first.WaitWelcome(1));
  second.Send(HelloMessage(4, Info("run", 0, 1, 200)));
  const auto refusal = second.WaitRefusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->channel(), 4);
  EXPECT_EQ(refusal->code(), static_cast<int>(absl::StatusCode::kAlreadyExists));
  EXPECT_FALSE(refusal->fatal());
  EXPECT_THAT(refusal->message(), HasSubstr("another run name or rank"));
  const auto event = server_.WaitEvent("rank_duplicate");
  ASSERT_TRUE(event);
  EXPECT_EQ(event->run(), "run");
  EXPECT_EQ(server_.Refusals(RefusalReason::kDuplicateRank), 1);
  // The first goes on; the refused channel's steps go nowhere.
  second.Send(StepsMessage(4, {LossStep(1, 1, 99)}));
  first.Send(StepsMessage(1, {LossStep(1, 1, 1)}));
  ASSERT_TRUE(first.WaitDurable(1, 1));
  EXPECT_THAT(Losses("run"), ElementsAre(1));
  // Once the first is gone, the second may come.
  first.Send(GoodbyeMessage(1, false));
  ASSERT_TRUE(first.Finish().ok());
  second.Send(HelloMessage(4, Info("run", 0, 1, 200)));
  EXPECT_TRUE(second.WaitWelcome(4));
}

TEST(SessionAliveWindowTest, ASilentHolderIsReplaced) {
  TempDir folder;
  TestServer server(folder.path(), {.alive_window_seconds = 0});
  TestCourier first(server.address()), second(server.address());
  first.Send(HelloMessage(1, Info("run", 0, 1, 100)));
  ASSERT_TRUE(first.WaitWelcome(1));
  second.Send(HelloMessage(1, Info("run", 0, 1, 200)));
  ASSERT_TRUE(second.WaitWelcome(1));
  EXPECT_TRUE(server.witness.WaitFor("left 0/100 replaced"));
  const auto refusal = first.WaitRefusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->code(), static_cast<int>(absl::StatusCode::kAborted));
}

TEST_F(SessionTest, TheSameIncarnationOnANewStreamTakesOver) {
  TestCourier first(server_.address());
  first.Send(HelloMessage(1, Info("run")));
  first.Send(StepsMessage(1, {LossStep(1, 1, 1)}));
  ASSERT_TRUE(first.WaitDurable(1, 1));
  TestCourier second(server_.address());
  second.Send(HelloMessage(1, Info("run")));
  const auto welcome = second.WaitWelcome(1);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->last_durable_sequence(), 1);
  // The old stream's end is not the rank's end.
  EXPECT_TRUE(first.Finish().ok());
  second.Send(StepsMessage(1, {LossStep(2, 2, 2)}));
  ASSERT_TRUE(server_.witness.WaitFor("step 2"));
  EXPECT_THAT(server_.witness.log(), ElementsAre("joined 0/1", "step 1", "joined 0/1", "step 2"));
}

TEST_F(SessionTest, ShutdownMakesDurableWhatWasReadAndSaysUnavailable) {
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(1, Info("run")));
  ASSERT_TRUE(courier.WaitWelcome(1));
  for (uint64_t s = 1; s <= 50; ++s) courier.Send(StepsMessage(1, {LossStep(s, s, static_cast<float>(s))}));
  ASSERT_TRUE(courier.WaitDurable(1, 1));
  server_.Stop();
  EXPECT_EQ(courier.WaitEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_GE(Losses("run").size(), courier.durable(1));
  EXPECT_THAT(server_.witness.log(), testing::Not(testing::Contains(HasSubstr("left"))));
}

}  // namespace
}  // namespace trimtab::server
