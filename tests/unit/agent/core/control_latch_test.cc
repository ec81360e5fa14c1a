#include "agent/core/control_latch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/unit/agent/core/ring_fixture.h"

namespace trimtab::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint8_t kObserve = TRIMTAB_MODE_OBSERVE;
constexpr uint8_t kStabilized = TRIMTAB_MODE_STABILIZED;

trimtab_command Command(trimtab_phase phase, uint64_t plan, std::vector<uint32_t> layers = {}, uint64_t step = 0) {
  trimtab_command command = {};
  command.plan = plan;
  command.phase = phase;
  command.mode = TRIMTAB_MODE_STABILIZED;
  command.effective_step = step;
  command.layer_count = static_cast<uint32_t>(layers.size());
  for (const uint32_t layer : layers) command.layers[layer / 8] |= static_cast<uint8_t>(1 << layer % 8);
  return command;
}

// The latch behind the ABI, commanded through a reader as the courier does it.
class LatchTest : public RingTest {
 protected:
  void Start(bool act) {
    trimtab_options options = Options();
    options.act = act ? 1 : 0;
    Open(options);
    reader_ = Reader();
  }
  bool Boundary(uint64_t next_step) {
    return trimtab_latch_step(agent_, next_step, modes_.data(), static_cast<uint32_t>(modes_.size())) != 0;
  }
  // Writes the command, passes one boundary and returns the answers to it.
  std::vector<RingAck> Do(const trimtab_command& command, uint64_t next_step) {
    reader_->WriteCommand(command);
    Boundary(next_step);
    return NewAcks();
  }
  std::vector<RingAck> NewAcks() {
    std::vector<RingAck> acks = reader_->ReadAcks(seen_);
    if (!acks.empty()) seen_ = acks.back().index;
    return acks;
  }
  RingAck One(const std::vector<RingAck>& acks) {
    EXPECT_EQ(acks.size(), 1u);
    return acks.empty() ? RingAck() : acks.front();
  }

  std::unique_ptr<RingReader> reader_;
  std::vector<uint8_t> modes_ = std::vector<uint8_t>(4, kObserve);
  uint64_t seen_ = 0;
};

TEST_F(LatchTest, PrepareCommitApply) {
  Start(true);
  RingAck ack = One(Do(Command(TRIMTAB_PHASE_PREPARE, 7, {1, 3}), 10));
  EXPECT_EQ(ack.plan, 7u);
  EXPECT_EQ(ack.state, TRIMTAB_ACK_PREPARED);
  EXPECT_EQ(ack.step, 10u);
  ack = One(Do(Command(TRIMTAB_PHASE_COMMIT, 7, {1, 3}, 14), 12));
  EXPECT_EQ(ack.state, TRIMTAB_ACK_COMMITTED);
  EXPECT_EQ(ack.step, 12u);
  EXPECT_FALSE(Boundary(13));
  EXPECT_TRUE(NewAcks().empty());
  EXPECT_THAT(modes_, ElementsAre(kObserve, kObserve, kObserve, kObserve));
  EXPECT_TRUE(Boundary(14));
  EXPECT_THAT(modes_, ElementsAre(kObserve, kStabilized, kObserve, kStabilized));
  ack = One(NewAcks());
  EXPECT_EQ(ack.state, TRIMTAB_ACK_APPLIED);
  EXPECT_EQ(ack.step, 14u);
  EXPECT_FALSE(Boundary(15));
  EXPECT_TRUE(NewAcks().empty());
}

TEST_F(LatchTest, CommitAtTheVeryStepIsInTime) {
  Start(true);
  Do(Command(TRIMTAB_PHASE_PREPARE, 1), 5);
  const auto acks = Do(Command(TRIMTAB_PHASE_COMMIT, 1, {}, 6), 6);
  ASSERT_EQ(acks.size(), 2u);
  EXPECT_EQ(acks[0].state, TRIMTAB_ACK_COMMITTED);
  EXPECT_EQ(acks[1].state, TRIMTAB_ACK_APPLIED);
  EXPECT_THAT(modes_, testing::Each(kStabilized));
}

TEST_F(LatchTest, LateCommitIsRefusedAndNothingChanges) {
  Start(true);
  Do(Command(TRIMTAB_PHASE_PREPARE, 1), 5);
  const RingAck ack = One(Do(Command(TRIMTAB_PHASE_COMMIT, 1, {}, 6), 7));
  EXPECT_EQ(ack.state, TRIMTAB_ACK_REFUSED);
  EXPECT_THAT(ack.reason, testing::StartsWith("late"));
  for (uint64_t step = 8; step < 20; ++step) EXPECT_FALSE(Boundary(step));
  EXPECT_THAT(modes_, testing::Each(kObserve));
}

TEST_F(LatchTest, TrainerThatJumpsOverTheStepRefuses) {
  Start(true);
  Do(Command(TRIMTAB_PHASE_PREPARE, 1), 5);
  Do(Command(TRIMTAB_PHASE_COMMIT, 1, {}, 10), 6);
  EXPECT_FALSE(Boundary(11));
  const RingAck ack = One(NewAcks());
  EXPECT_EQ(ack.state, TRIMTAB_ACK_REFUSED);
  EXPECT_THAT(ack.reason, HasSubstr("went over step 10"));
  EXPECT_THAT(modes_, testing::Each(kObserve));
}

TEST_F(LatchTest, WithoutActOnlyRefusalsAndAborts) {
  Start(false);
  RingAck ack = One(Do(Command(TRIMTAB_PHASE_PREPARE, 1), 5));
  EXPECT_EQ(ack.state, TRIMTAB_ACK_REFUSED);
  EXPECT_THAT(ack.reason, HasSubstr("the job was not started with --act"));
  ack = One(Do(Command(TRIMTAB_PHASE_COMMIT, 1, {}, 50), 6));
  EXPECT_EQ(ack.state, TRIMTAB_ACK_REFUSED);
  ack = One(Do(Command(TRIMTAB_PHASE_ABORT, 1), 7));
  EXPECT_EQ(ack.state, TRIMTAB_ACK_ABORTED);
  for (uint64_t step = 8; step < 60; ++step) EXPECT_FALSE(Boundary(step));
}

TEST_F(LatchTest, AbortBeforeTheStepUndoesTheCommit) {
  Start(true);
  Do(Command(TRIMTAB_PHASE_PREPARE, 1), 5);
  Do(Command(TRIMTAB_PHASE_COMMIT, 1, {}, 10), 6);
  EXPECT_EQ(One(Do(Command(TRIMTAB_PHASE_ABORT, 1), 7)).state, TRIMTAB_ACK_ABORTED);
  for (uint64_t step = 8; step < 15; ++step) EXPECT_FALSE(Boundary(step));
  EXPECT_THAT(modes_, testing::Each(kObserve));
}

TEST_F(LatchTest, AbortAfterTheSwitchTellsTheTruth) {
  Start(true);
  Do(Command(TRIMTAB_PHASE_PREPARE, 1), 5);
  Do(Command(TRIMTAB_PHASE_COMMIT, 1, {}, 6), 6);
  const RingAck ack = One(Do(Command(TRIMTAB_PHASE_ABORT, 1), 7));
  EXPECT_EQ(ack.state, TRIMTAB_ACK_REFUSED);
  EXPECT_THAT(ack.reason, HasSubstr("applied at step 6"));
  EXPECT_THAT(modes_, testing::Each(kStabilized));
}

TEST_F(LatchTest, RepeatedMessagesGetTheSameAnswers) {
  Start(true);
  EXPECT_EQ(One(Do(Command(TRIMTAB_PHASE_PREPARE, 1), 5)).state, TRIMTAB_ACK_PREPARED);
  EXPECT_EQ(One(Do(Command(TRIMTAB_PHASE_PREPARE, 1), 6)).state, TRIMTAB_ACK_PREPARED);
  EXPECT_EQ(One(Do(Command(TRIMTAB_PHASE_COMMIT, 1, {}, 9), 7)).state, TRIMTAB_ACK_COMMITTED);
  EXPECT_EQ(One(Do(Command(TRIMTAB_PHASE_PREPARE, 1), 8)).state, TRIMTAB_ACK_PREPARED);
  EXPECT_TRUE(Boundary(9)) << "a repeated PREPARE undid the COMMIT";
  EXPECT_EQ(One(NewAcks()).state, TRIMTAB_ACK_APPLIED);
  const RingAck again = One(Do(Command(TRIMTAB_PHASE_COMMIT, 1, {}, 9), 12));
  EXPECT_EQ(again.state, TRIMTAB_ACK_APPLIED);
  EXPECT_EQ(again.step, 9u);
}

TEST_F(LatchTest, CommitOfWhatWasNotPreparedIsRefused) {
  Start(true);
  EXPECT_THAT(One(Do(Command(TRIMTAB_PHASE_COMMIT, 4, {}, 9), 5)).reason, HasSubstr("not prepared"));
  Do(Command(TRIMTAB_PHASE_PREPARE, 4, {1}), 6);
  EXPECT_THAT(One(Do(Command(TRIMTAB_PHASE_COMMIT, 4, {2}, 9), 7)).reason, HasSubstr("other layers"));
  Do(Command(TRIMTAB_PHASE_PREPARE, 4, {1}), 8);
  EXPECT_EQ(One(Do(Command(TRIMTAB_PHASE_COMMIT, 5, {1}, 90), 9)).state, TRIMTAB_ACK_REFUSED);
}

TEST_F(LatchTest, OneCommittedPlanAtATime) {
  Start(true);
  Do(Command(TRIMTAB_PHASE_PREPARE, 1), 5);
  Do(Command(TRIMTAB_PHASE_COMMIT, 1, {}, 9), 6);
  EXPECT_THAT(One(Do(Command(TRIMTAB_PHASE_PREPARE, 2), 7)).reason, HasSubstr("plan 1 is committed for step 9"));
  EXPECT_FALSE(Boundary(8));
  EXPECT_TRUE(Boundary(9));
  NewAcks();
  EXPECT_EQ(One(Do(Command(TRIMTAB_PHASE_PREPARE, 2), 10)).state, TRIMTAB_ACK_PREPARED);
}

TEST_F(LatchTest, LayerThatIsNotThereIsRefused) {
  Start(true);
  EXPECT_THAT(One(Do(Command(TRIMTAB_PHASE_PREPARE, 1, {3, 4}), 5)).reason, HasSubstr("no layer 4: the model has 4"));
  EXPECT_THAT(One(Do(Command(TRIMTAB_PHASE_PREPARE, 1, {TRIMTAB_MAX_LAYERS - 1}), 5)).reason,
              HasSubstr("no layer 1023"));
  EXPECT_EQ(One(Do(Command(TRIMTAB_PHASE_PREPARE, 1, {3}), 5)).state, TRIMTAB_ACK_PREPARED);
}

TEST_F(LatchTest, SwitchToTheSameModeIsAppliedWithoutChange) {
  Start(true);
  modes_.assign(4, kStabilized);
  Do(Command(TRIMTAB_PHASE_PREPARE, 1), 5);
  Do(Command(TRIMTAB_PHASE_COMMIT, 1, {}, 7), 6);
  EXPECT_FALSE(Boundary(7));
  EXPECT_EQ(One(NewAcks()).state, TRIMTAB_ACK_APPLIED);
}

TEST_F(LatchTest, SlotKeepsTheLastCommandAndTellsWhenItWasTaken) {
  Start(true);
  EXPECT_TRUE(reader_->command_taken());
  reader_->WriteCommand(Command(TRIMTAB_PHASE_PREPARE, 1));
  reader_->WriteCommand(Command(TRIMTAB_PHASE_PREPARE, 2));
  EXPECT_FALSE(reader_->command_taken());
  trimtab_command command;
  ASSERT_EQ(trimtab_poll_command(agent_, &command), 1);
  EXPECT_EQ(command.plan, 2u);
  EXPECT_EQ(trimtab_poll_command(agent_, &command), 0);
  EXPECT_TRUE(reader_->command_taken());
  // A courier that comes after another goes on where that one stopped.
  Reader()->WriteCommand(Command(TRIMTAB_PHASE_ABORT, 3));
  ASSERT_EQ(trimtab_poll_command(agent_, &command), 1);
  EXPECT_EQ(command.plan, 3u);
}

TEST_F(LatchTest, CommandArrivesWhole) {
  Start(true);
  trimtab_command sent = Command(TRIMTAB_PHASE_COMMIT, UINT64_MAX, {0, 9, 1023}, UINT64_MAX - 1);
  sent.deadline_unix_nanos = -5;
  reader_->WriteCommand(sent);
  trimtab_command got;
  ASSERT_EQ(trimtab_poll_command(agent_, &got), 1);
  EXPECT_EQ(got.plan, sent.plan);
  EXPECT_EQ(got.phase, sent.phase);
  EXPECT_EQ(got.mode, sent.mode);
  EXPECT_EQ(got.effective_step, sent.effective_step);
  EXPECT_EQ(got.deadline_unix_nanos, sent.deadline_unix_nanos);
  EXPECT_EQ(got.layer_count, 3u);
  EXPECT_TRUE(std::equal(std::begin(got.layers), std::end(got.layers), std::begin(sent.layers)));
}

TEST_F(LatchTest, MalformedCommandsAreAnsweredNotObeyed) {
  Start(true);
  trimtab_command bad = Command(TRIMTAB_PHASE_PREPARE, 1);
  bad.phase = 9;
  EXPECT_THAT(One(Do(bad, 1)).reason, HasSubstr("phase"));
  bad = Command(TRIMTAB_PHASE_PREPARE, 2);
  bad.mode = 0;
  EXPECT_THAT(One(Do(bad, 1)).reason, HasSubstr("mode"));
  bad = Command(TRIMTAB_PHASE_PREPARE, 3);
  bad.layer_count = TRIMTAB_MAX_LAYERS + 1;
  EXPECT_THAT(One(Do(bad, 1)).reason, HasSubstr("layers"));
}

TEST_F(LatchTest, KeepsTheLastSixteenAnswers) {
  Start(true);
  const std::string reason = "é" + std::string(254, 'x') + "tail";
  for (uint64_t plan = 1; plan <= 40; ++plan) {
    ASSERT_EQ(trimtab_ack(agent_, plan, TRIMTAB_ACK_REFUSED, plan * 2, reason.c_str()), TRIMTAB_OK);
  }
  const auto acks = reader_->ReadAcks(0);
  ASSERT_EQ(acks.size(), 16u);
  for (size_t i = 0; i < acks.size(); ++i) {
    EXPECT_EQ(acks[i].index, 25 + i);
    EXPECT_EQ(acks[i].plan, 25 + i);
    EXPECT_EQ(acks[i].step, 2 * (25 + i));
    EXPECT_EQ(acks[i].reason, reason.substr(0, 255));
  }
  EXPECT_EQ(reader_->ReadAcks(38).size(), 2u);
  EXPECT_TRUE(reader_->ReadAcks(40).empty());
}

TEST_F(LatchTest, NoModelAndTooLargeAModelAreHarmless) {
  Start(true);
  EXPECT_EQ(trimtab_latch_step(agent_, 1, nullptr, 4), 0);
  std::vector<uint8_t> many(TRIMTAB_MAX_LAYERS + 1, kObserve);
  EXPECT_EQ(trimtab_latch_step(agent_, 1, many.data(), static_cast<uint32_t>(many.size())), 0);
  reader_->WriteCommand(Command(TRIMTAB_PHASE_PREPARE, 1));
  EXPECT_EQ(trimtab_latch_step(agent_, 1, nullptr, 0), 0);
  EXPECT_EQ(One(NewAcks()).state, TRIMTAB_ACK_PREPARED);
}

}  // namespace
}  // namespace trimtab::agent
