// Bad input over a real stream: what is refused, what that leaves alone, and what is written down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/model/limits.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/test_courier.h"
#include "tests/unit/server/support/test_server.h"

namespace trimtab::server {
namespace {

using ::testing::HasSubstr;

class RefusalTest : public testing::Test {
 protected:
  uint64_t Rows(const std::string& run) { return *server_.store->CountRows(run, "loss", 0, 0, 0); }

  TempDir folder_;
  TestServer server_{folder_.path(), {.refusal_event_gap_seconds = 1000}};
  TestCourier courier_{server_.address()};
};

TEST_F(RefusalTest, ARefusedChannelLeavesTheOthersOpen) {
  courier_.Send(HelloMessage(1, Info("good")));
  courier_.Send(HelloMessage(2, Info("bad", 2, 2)));
  const auto refusal = courier_.WaitRefusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->channel(), 2);
  EXPECT_EQ(refusal->code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(refusal->message(), HasSubstr("RANK and WORLD_SIZE"));
  courier_.Send(StepsMessage(2, {LossStep(1, 1, 1)}));
  courier_.Send(StepsMessage(1, {LossStep(1, 1, 1)}));
  EXPECT_TRUE(courier_.WaitDurable(1, 1));
  EXPECT_EQ(server_.Refusals(RefusalReason::kBadRank), 1);
  EXPECT_EQ(server_.ingest->statistics().orphan_messages, 1);
  EXPECT_EQ(server_.registry->Summaries().size(), 1);
  const auto event = server_.WaitEvent("refused");
  ASSERT_TRUE(event);
  EXPECT_EQ(event->detector(), "bad_rank");
  EXPECT_EQ(event->message(), refusal->message());
}

TEST_F(RefusalTest, BadRunNames) {
  // Names that are not UTF-8 cannot be sent at all: Protobuf's strings are.
  for (const std::string& name :
       {std::string(), std::string("new\nline"), std::string(10240, 'x'), std::string(256, 'y')}) {
    courier_.Send(HelloMessage(1, Info(name)));
    const auto refusal = courier_.WaitRefusal();
    ASSERT_TRUE(refusal);
    EXPECT_LT(refusal->message().size(), 300) << "the message does not repeat 10 kB";
  }
  EXPECT_EQ(server_.Refusals(RefusalReason::kBadRunName), 4);
  EXPECT_THAT(*server_.store->ListRuns(), testing::IsEmpty());
  for (const std::string& name :
       std::vector<std::string>{"a/b/../c", "\"quoted\" 'name'", "größe", std::string(255, 'z')}) {
    courier_.Send(HelloMessage(1, Info(name)));
    ASSERT_TRUE(courier_.WaitWelcome(1)) << name;
    courier_.Send(StepsMessage(1, {LossStep(1, 1, 1)}));
    courier_.Send(GoodbyeMessage(1, true));
    ASSERT_TRUE(Eventually([&] { return server_.registry->State(name).ok() && Rows(name) == 1; })) << name;
  }
}

TEST_F(RefusalTest, AMessageOverTheLimit) {
  courier_.Send(HelloMessage(1, Info("run")));
  std::vector<v1::Step> steps;
  const std::vector<float> values(1024 * 1024, 1.5F);
  v1::Step step = LossStep(1, 1, 1);
  *step.add_blocks() = Floats(kMaxLogit, {1024, 1024}, values);  // 4 MiB and a header
  ASSERT_GT(step.ByteSizeLong(), kMaxMessageBytes);
  courier_.Send(StepsMessage(1, {step}));
  const auto refusal = courier_.WaitRefusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->code(), static_cast<int>(absl::StatusCode::kInvalidArgument)) << "to try again would not help";
  EXPECT_THAT(refusal->message(), HasSubstr("the limit is 4194304; send fewer steps a message"));
  EXPECT_EQ(server_.Refusals(RefusalReason::kMessageTooLarge), 1);
  // The stream lives, and the channel can be opened again: nothing was lost that was acknowledged.
  courier_.Send(HelloMessage(1, Info("run")));
  ASSERT_TRUE(courier_.WaitWelcome(1));
  courier_.Send(StepsMessage(1, {LossStep(1, 1, 1)}));
  EXPECT_TRUE(courier_.WaitDurable(1, 1));
}

TEST_F(RefusalTest, AMessageJustBelowTheLimitIsTaken) {
  courier_.Send(HelloMessage(1, Info("run")));
  const std::vector<float> values(1024 * 1023, 1.5F);
  v1::Step step = LossStep(1, 1, 1);
  *step.add_blocks() = Floats(kMaxLogit, {1023, 1024}, values);
  const auto message = StepsMessage(1, {step});
  ASSERT_LE(message.ByteSizeLong(), kMaxMessageBytes);
  courier_.Send(message);
  EXPECT_TRUE(courier_.WaitDurable(1, 1));
}

TEST_F(RefusalTest, AMessageOverTheTransportsLimitEndsTheStream) {
  courier_.Send(HelloMessage(1, Info("run")));
  ASSERT_TRUE(courier_.WaitWelcome(1));
  v1::AgentMessage huge;
  huge.mutable_goodbye()->set_reason(std::string(kMaxTransportMessageBytes + 1, 'x'));
  courier_.Send(huge);
  EXPECT_EQ(courier_.WaitEnd().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(server_.witness.WaitFor("left 0/1 disconnected"));
}

TEST_F(RefusalTest, ABadBatchClosesItsChannelAndStoresNothingOfIt) {
  courier_.Send(HelloMessage(1, Info("run")));
  v1::Step bad = LossStep(2, 2, 2);
  *bad.add_blocks() = Floats(kMaxLogit, {2, 2}, {1});
  courier_.Send(StepsMessage(1, {LossStep(1, 1, 1), bad}));
  const auto refusal = courier_.WaitRefusal();
  ASSERT_TRUE(refusal);
  EXPECT_THAT(refusal->message(), HasSubstr("max_attention_logit needs 4 float32"));
  EXPECT_TRUE(server_.witness.WaitFor("left 0/1 disconnected"));
  EXPECT_EQ(Rows("run"), 0);
  EXPECT_EQ(server_.WaitEvent("refused")->run(), "run");
}

TEST_F(RefusalTest, AnUnknownChannelAndAChannelOpenedTwice) {
  courier_.Send(StepsMessage(9, {LossStep(1, 1, 1)}));
  EXPECT_THAT(courier_.WaitRefusal()->message(), HasSubstr("channel 9 has no Hello"));
  courier_.Send(HelloMessage(1, Info("run")));
  ASSERT_TRUE(courier_.WaitWelcome(1));
  courier_.Send(HelloMessage(1, Info("other")));
  EXPECT_THAT(courier_.WaitRefusal()->message(), HasSubstr("channel 1 is open already"));
  EXPECT_EQ(server_.Refusals(RefusalReason::kBadMessage), 2);
}

TEST_F(RefusalTest, AMessageWithoutABodyEndsTheStream) {
  courier_.Send(v1::AgentMessage());
  const auto refusal = courier_.WaitRefusal();
  ASSERT_TRUE(refusal);
  EXPECT_TRUE(refusal->fatal());
  EXPECT_EQ(courier_.WaitEnd().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RefusalTest, TheLimitOfChannelsIsExact) {
  for (uint32_t channel = 0; channel < kMaxChannelsPerStream; ++channel) {
    courier_.Send(HelloMessage(channel, Info("run", channel, kMaxChannelsPerStream)));
  }
  ASSERT_TRUE(courier_.WaitWelcome(kMaxChannelsPerStream - 1));
  courier_.Send(HelloMessage(kMaxChannelsPerStream, Info("more")));
  const auto refusal = courier_.WaitRefusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->channel(), kMaxChannelsPerStream);
  EXPECT_THAT(refusal->message(), HasSubstr("the limit is 1024"));
  // A closed channel's number may be used again.
  courier_.Send(GoodbyeMessage(5, true));
  courier_.Send(HelloMessage(5, Info("more")));
  EXPECT_TRUE(courier_.WaitWelcome(5));
}

TEST_F(RefusalTest, AMetricIdThatMeansTwoThingsInARun) {
  courier_.Send(HelloMessage(1, Info("run", 0, 2)));
  ASSERT_TRUE(courier_.WaitWelcome(1));
  auto other = HelloMessage(2, Info("run", 1, 2));
  other.mutable_hello()->mutable_metrics(0)->set_name("perplexity");
  courier_.Send(other);
  const auto refusal = courier_.WaitRefusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->channel(), 2);
  EXPECT_EQ(refusal->code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(refusal->message(), HasSubstr("one agent version a run"));
  EXPECT_EQ(server_.Refusals(RefusalReason::kStore), 1);
  // Once mended, the rank may come, on the same number too.
  courier_.Send(HelloMessage(2, Info("run", 1, 2)));
  EXPECT_TRUE(courier_.WaitWelcome(2));
}

TEST_F(RefusalTest, EventsAboutRefusalsAreRateLimitedAndCountersAreNot) {
  for (int i = 0; i < 50; ++i) courier_.Send(HelloMessage(1, Info("bad", 2, 2)));
  courier_.Send(HelloMessage(1, Info("bad\n")));
  courier_.Send(HelloMessage(2, Info("good")));
  ASSERT_TRUE(courier_.WaitWelcome(2));
  EXPECT_EQ(server_.Refusals(RefusalReason::kBadRank), 50);
  ASSERT_TRUE(server_.WaitEvent("rank_joined"));
  int refused = 0;
  const auto events = server_.store->ReadEvents("", 0, 1000, false);
  ASSERT_THAT(events, IsOk());
  for (const auto& event : *events) refused += event.kind() == "refused";
  EXPECT_EQ(refused, 2) << "one a kind of refusal";
}

TEST_F(RefusalTest, TotalsOfWhatCouriersDroppedAreNotCountedTwice) {
  courier_.Send(HelloMessage(1, Info("run")));
  for (const uint64_t dropped : {3, 3, 10}) {
    auto message = StepsMessage(1, {});
    message.mutable_steps()->set_ring_dropped_steps(dropped);
    courier_.Send(message);
    v1::AgentMessage heartbeat;
    heartbeat.mutable_heartbeat()->set_spool_dropped_steps(2 * dropped);
    courier_.Send(heartbeat);
  }
  courier_.Send(StepsMessage(1, {LossStep(1, 1, 1)}));
  ASSERT_TRUE(courier_.WaitDurable(1, 1));
  EXPECT_EQ(server_.ingest->statistics().ring_dropped_steps, 10);
  EXPECT_EQ(server_.ingest->statistics().spool_dropped_steps, 20);
}

}  // namespace
}  // namespace trimtab::server
