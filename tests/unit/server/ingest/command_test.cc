// Commands to ranks: delivery, redelivery after a reconnect, answers, deadlines, bounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/ingest/channel_table.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/test_courier.h"
#include "tests/unit/server/support/test_server.h"

namespace trimtab::server {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

v1::Command MakeCommand(uint64_t plan, v1::CommandPhase phase, absl::Duration life = absl::Seconds(600)) {
  v1::Command command;
  command.set_plan(plan);
  command.set_phase(phase);
  command.set_mode(v1::KERNEL_MODE_STABILIZED);
  command.set_deadline_unix_nanos(absl::ToUnixNanos(absl::Now() + life));
  return command;
}

class CommandTest : public testing::Test {
 protected:
  TempDir folder_;
  TestServer server_{folder_.path()};
  const RankKey rank_{"run", 0, 1};
};

TEST_F(CommandTest, IsDeliveredAndItsAnswerIsTold) {
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(3, Info("run")));
  ASSERT_TRUE(courier.WaitWelcome(3));
  ASSERT_THAT(server_.ingest->Send(rank_, MakeCommand(5, v1::COMMAND_PHASE_PREPARE)), IsOk());
  const auto command = courier.WaitCommand();
  ASSERT_TRUE(command);
  EXPECT_EQ(command->channel(), 3);
  EXPECT_EQ(command->plan(), 5);
  courier.Send(AckMessage(3, 5, v1::ACK_STATE_PREPARED));
  EXPECT_TRUE(server_.witness.WaitFor(absl::StrCat("ack 5 ", static_cast<int>(v1::ACK_STATE_PREPARED))));
}

TEST_F(CommandTest, ARankWithoutAChannelIsUnavailable) {
  EXPECT_THAT(server_.ingest->Send(rank_, MakeCommand(1, v1::COMMAND_PHASE_PREPARE)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no open channel")));
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(1, Info("run", 0, 1, 2)));
  ASSERT_TRUE(courier.WaitWelcome(1));
  EXPECT_THAT(server_.ingest->Send(rank_, MakeCommand(1, v1::COMMAND_PHASE_PREPARE)),
              StatusIs(absl::StatusCode::kUnavailable, _))
      << "another incarnation";
}

TEST_F(CommandTest, AnUnansweredCommandIsRedeliveredAfterAReconnectAndAnAnsweredOneIsNot) {
  {
    TestCourier courier(server_.address());
    courier.Send(HelloMessage(1, Info("run")));
    ASSERT_TRUE(courier.WaitWelcome(1));
    for (const uint64_t plan : {1, 2}) {
      ASSERT_THAT(server_.ingest->Send(rank_, MakeCommand(plan, v1::COMMAND_PHASE_PREPARE)), IsOk());
      ASSERT_TRUE(courier.WaitCommand());
    }
    courier.Send(AckMessage(1, 1, v1::ACK_STATE_PREPARED));
    // COMMIT takes the place of the PREPARE of its plan.
    ASSERT_THAT(server_.ingest->Send(rank_, MakeCommand(2, v1::COMMAND_PHASE_COMMIT)), IsOk());
    ASSERT_TRUE(courier.WaitCommand());
    ASSERT_TRUE(server_.witness.WaitFor(absl::StrCat("ack 1 ", static_cast<int>(v1::ACK_STATE_PREPARED))));
  }
  ASSERT_TRUE(server_.witness.WaitFor("left 0/1 disconnected"));
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(9, Info("run")));
  const auto command = courier.WaitCommand();
  ASSERT_TRUE(command);
  EXPECT_EQ(command->plan(), 2);
  EXPECT_EQ(command->phase(), v1::COMMAND_PHASE_COMMIT);
  EXPECT_EQ(command->channel(), 9);
  courier.Send(AckMessage(9, 2, v1::ACK_STATE_COMMITTED));
  courier.Send(StepsMessage(9, {LossStep(1, 1, 1)}));
  ASSERT_TRUE(courier.WaitDurable(9, 1));
  EXPECT_EQ(server_.ingest->statistics().commands_redelivered, 1);
  EXPECT_EQ(server_.ingest->statistics().commands_sent, 3);
}

TEST_F(CommandTest, ACommandPastItsDeadlineIsNotRedelivered) {
  {
    TestCourier courier(server_.address());
    courier.Send(HelloMessage(1, Info("run")));
    ASSERT_TRUE(courier.WaitWelcome(1));
    ASSERT_THAT(server_.ingest->Send(rank_, MakeCommand(1, v1::COMMAND_PHASE_PREPARE, absl::Milliseconds(1))), IsOk());
    ASSERT_TRUE(courier.WaitCommand());
  }
  ASSERT_TRUE(server_.witness.WaitFor("left 0/1 disconnected"));
  EXPECT_TRUE(Eventually([&] { return server_.ingest->statistics().commands_expired == 1; }));
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(1, Info("run")));
  courier.Send(StepsMessage(1, {LossStep(1, 1, 1)}));
  ASSERT_TRUE(courier.WaitDurable(1, 1));
  EXPECT_EQ(server_.ingest->statistics().commands_redelivered, 0);
}

TEST_F(CommandTest, ADeadIncarnationsCommandsDieWithIt) {
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(1, Info("run")));
  ASSERT_TRUE(courier.WaitWelcome(1));
  ASSERT_THAT(server_.ingest->Send(rank_, MakeCommand(1, v1::COMMAND_PHASE_PREPARE)), IsOk());
  ASSERT_TRUE(courier.WaitCommand());
  courier.Send(GoodbyeMessage(1, false));
  courier.Send(HelloMessage(2, Info("run")));
  ASSERT_TRUE(courier.WaitWelcome(2));
  EXPECT_EQ(server_.ingest->statistics().commands_redelivered, 0);
}

TEST_F(CommandTest, TheBoundOfUnansweredCommandsIsExact) {
  TestCourier courier(server_.address());
  courier.Send(HelloMessage(1, Info("run")));
  ASSERT_TRUE(courier.WaitWelcome(1));
  for (uint64_t plan = 1; plan <= kMaxPendingCommandsPerRank; ++plan) {
    ASSERT_THAT(server_.ingest->Send(rank_, MakeCommand(plan, v1::COMMAND_PHASE_PREPARE)), IsOk());
  }
  EXPECT_THAT(server_.ingest->Send(rank_, MakeCommand(100, v1::COMMAND_PHASE_PREPARE)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("16 unanswered")));
  EXPECT_THAT(server_.ingest->Send(rank_, MakeCommand(3, v1::COMMAND_PHASE_ABORT)), IsOk()) << "the same plan";
}

}  // namespace
}  // namespace trimtab::server
