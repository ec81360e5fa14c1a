// Commands down, answers up.
#include <gtest/gtest.h>

#include "agent/courier/limits.h"
#include "tests/unit/agent/courier/courier_fixture.h"

namespace trimtab::courier {
namespace {

class CourierCommandTest : public CourierFixture {
 protected:
  static v1::Command Make(uint64_t plan, v1::CommandPhase phase) {
    v1::Command command;
    command.set_plan(plan);
    command.set_phase(phase);
    command.set_mode(v1::KERNEL_MODE_STABILIZED);
    command.add_layers(0);
    command.add_layers(9);
    command.set_deadline_unix_nanos(INT64_MAX);
    return command;
  }
  static trimtab_command Take(TestTrainer* trainer) {
    trimtab_command command = {};
    EXPECT_TRUE(WaitUntil([&] { return trimtab_poll_command(trainer->agent(), &command) == 1; }));
    return command;
  }
  bool WaitAnswers(uint32_t rank, size_t count) {
    return store_.WaitFor([&] { return store_.Find(rank)->answers.size() >= count; });
  }
};

TEST_F(CourierCommandTest, PrepareCommitAppliedRoundTrip) {
  TestTrainer trainer(rings_.path(), 0);
  CourierRunner courier(MakeOptions());
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(0, 1));
  ASSERT_TRUE(server_->Command(0, Make(77, v1::COMMAND_PHASE_PREPARE)));
  trimtab_command got = Take(&trainer);
  EXPECT_EQ(got.plan, 77u);
  EXPECT_EQ(got.phase, TRIMTAB_PHASE_PREPARE);
  EXPECT_EQ(got.mode, TRIMTAB_MODE_STABILIZED);
  EXPECT_EQ(got.layer_count, 2u);
  EXPECT_EQ(got.layers[0], 1);
  EXPECT_EQ(got.layers[1], 2);
  ASSERT_EQ(trimtab_ack(trainer.agent(), 77, TRIMTAB_ACK_PREPARED, 12, nullptr), TRIMTAB_OK);
  ASSERT_TRUE(WaitAnswers(0, 1));
  v1::Command commit = Make(77, v1::COMMAND_PHASE_COMMIT);
  commit.set_effective_step(40);
  ASSERT_TRUE(server_->Command(0, commit));
  got = Take(&trainer);
  EXPECT_EQ(got.phase, TRIMTAB_PHASE_COMMIT);
  EXPECT_EQ(got.effective_step, 40u);
  ASSERT_EQ(trimtab_ack(trainer.agent(), 77, TRIMTAB_ACK_COMMITTED, 13, nullptr), TRIMTAB_OK);
  ASSERT_EQ(trimtab_ack(trainer.agent(), 77, TRIMTAB_ACK_APPLIED, 40, nullptr), TRIMTAB_OK);
  ASSERT_TRUE(WaitAnswers(0, 3));
  const std::vector<v1::CommandAck>& answers = store_.Find(0)->answers;
  EXPECT_EQ(answers[0].state(), v1::ACK_STATE_PREPARED);
  EXPECT_EQ(answers[1].state(), v1::ACK_STATE_COMMITTED);
  EXPECT_EQ(answers[2].state(), v1::ACK_STATE_APPLIED);
  EXPECT_EQ(answers[2].step(), 40u);
}

TEST_F(CourierCommandTest, ReasonOfARefusalArrives) {
  TestTrainer trainer(rings_.path(), 0);
  CourierRunner courier(MakeOptions());
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(0, 1));
  ASSERT_TRUE(server_->Command(0, Make(5, v1::COMMAND_PHASE_PREPARE)));
  Take(&trainer);
  ASSERT_EQ(trimtab_ack(trainer.agent(), 5, TRIMTAB_ACK_REFUSED, 12, "not today"), TRIMTAB_OK);
  ASSERT_TRUE(WaitAnswers(0, 1));
  EXPECT_EQ(store_.Find(0)->answers[0].state(), v1::ACK_STATE_REFUSED);
  EXPECT_EQ(store_.Find(0)->answers[0].reason(), "not today");
}

TEST_F(CourierCommandTest, CommandsReachTheirOwnRankOnly) {
  TestTrainer zero(rings_.path(), 0), one(rings_.path(), 1);
  CourierRunner courier(MakeOptions());
  zero.Step(1);
  one.Step(1);
  ASSERT_TRUE(WaitSteps(0, 1));
  ASSERT_TRUE(WaitSteps(1, 1));
  ASSERT_TRUE(server_->Command(1, Make(6, v1::COMMAND_PHASE_PREPARE)));
  EXPECT_EQ(Take(&one).plan, 6u);
  trimtab_command none = {};
  EXPECT_EQ(trimtab_poll_command(zero.agent(), &none), 0);
}

TEST_F(CourierCommandTest, AnswersAreGivenAgainAfterAReconnectAndRepetitionsAreNotDeliveredTwice) {
  TestTrainer trainer(rings_.path(), 0);
  CourierRunner courier(MakeOptions());
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(0, 1));
  ASSERT_TRUE(server_->Command(0, Make(7, v1::COMMAND_PHASE_PREPARE)));
  Take(&trainer);
  ASSERT_EQ(trimtab_ack(trainer.agent(), 7, TRIMTAB_ACK_PREPARED, 3, nullptr), TRIMTAB_OK);
  ASSERT_TRUE(WaitAnswers(0, 1));
  StopServer();
  store_.Find(0)->answers.clear();  // the server lost it
  StartServer();
  ASSERT_TRUE(WaitAnswers(0, 1));
  EXPECT_EQ(store_.Find(0)->answers[0].plan(), 7u);
  ASSERT_TRUE(server_->Command(0, Make(7, v1::COMMAND_PHASE_PREPARE)));  // redelivered
  ASSERT_TRUE(WaitAnswers(0, 2)) << "answered again";
  trimtab_command none = {};
  EXPECT_EQ(trimtab_poll_command(trainer.agent(), &none), 0);
}

TEST_F(CourierCommandTest, ARestartedCourierAnswersRepetitionsFromTheRing) {
  TestTrainer trainer(rings_.path(), 0);
  auto courier = std::make_unique<CourierRunner>(MakeOptions());
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(0, 1));
  ASSERT_TRUE(server_->Command(0, Make(8, v1::COMMAND_PHASE_PREPARE)));
  Take(&trainer);
  ASSERT_EQ(trimtab_ack(trainer.agent(), 8, TRIMTAB_ACK_PREPARED, 3, nullptr), TRIMTAB_OK);
  ASSERT_TRUE(WaitAnswers(0, 1));
  courier.reset();
  courier = std::make_unique<CourierRunner>(MakeOptions());
  ASSERT_TRUE(WaitAnswers(0, 2));
  ASSERT_TRUE(server_->Command(0, Make(8, v1::COMMAND_PHASE_PREPARE)));
  ASSERT_TRUE(WaitAnswers(0, 3));
  trimtab_command got = {};
  EXPECT_EQ(trimtab_poll_command(trainer.agent(), &got), 0);
  ASSERT_TRUE(server_->Command(0, Make(8, v1::COMMAND_PHASE_COMMIT)));
  EXPECT_EQ(Take(&trainer).phase, TRIMTAB_PHASE_COMMIT) << "PREPARED does not answer a COMMIT";
}

TEST_F(CourierCommandTest, NonsenseIsRefusedByTheCourier) {
  TestTrainer trainer(rings_.path(), 0);
  CourierRunner courier(MakeOptions());
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(0, 1));
  v1::Command command = Make(9, v1::COMMAND_PHASE_PREPARE);
  command.add_layers(4000);
  ASSERT_TRUE(server_->Command(0, command));
  ASSERT_TRUE(WaitAnswers(0, 1));
  EXPECT_EQ(store_.Find(0)->answers[0].state(), v1::ACK_STATE_REFUSED);
  EXPECT_NE(store_.Find(0)->answers[0].reason().find("4000"), std::string::npos);
}

TEST_F(CourierCommandTest, CommandsForAnEndedProcessAreRefused) {
  server_->behaviour().acks = false;  // keeps the channel open
  TestTrainer trainer(rings_.path(), 0);
  CourierRunner courier(MakeOptions());
  trainer.Step(1);
  ASSERT_TRUE(store_.WaitFor([&] { return store_.batches > 0; }));
  trainer.Close();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_TRUE(server_->Command(0, Make(10, v1::COMMAND_PHASE_PREPARE)));
  ASSERT_TRUE(WaitAnswers(0, 1));
  EXPECT_EQ(store_.Find(0)->answers[0].state(), v1::ACK_STATE_REFUSED);
}

TEST_F(CourierCommandTest, TooManyWaitingCommandsAreRefused) {
  TestTrainer trainer(rings_.path(), 0);
  CourierRunner courier(MakeOptions());
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(0, 1));
  const uint64_t fits = kMaxCommandsWaiting + 1;  // one in the slot
  for (uint64_t plan = 1; plan <= fits + 3; ++plan) {
    ASSERT_TRUE(server_->Command(0, Make(plan, v1::COMMAND_PHASE_PREPARE)));
  }
  ASSERT_TRUE(WaitAnswers(0, 3));
  for (uint64_t plan = 1; plan <= fits; ++plan) EXPECT_EQ(Take(&trainer).plan, plan);
  EXPECT_EQ(store_.Find(0)->answers.size(), 3u);
}

}  // namespace
}  // namespace trimtab::courier
