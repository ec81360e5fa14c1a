// The relay in front of a real ring.
#include "agent/courier/command_relay.h"

#include <gtest/gtest.h>

#include <memory>

#include "agent/courier/limits.h"
#include "tests/unit/agent/courier/test_trainer.h"

namespace trimtab::courier {
namespace {

using std::chrono::seconds;

class CommandRelayTest : public ::testing::Test {
 protected:
  CommandRelayTest() : trainer_(folder_.path(), 0) {
    agent::RingError error;
    std::string message;
    ring_ = agent::RingReader::Open(FilesBelow(folder_.path(), ".ring").at(0), &error, &message);
    EXPECT_NE(ring_, nullptr) << message;
  }
  static trimtab_command Make(uint64_t plan, trimtab_phase phase, int64_t deadline = 0) {
    trimtab_command command = {};
    command.plan = plan;
    command.phase = phase;
    command.mode = TRIMTAB_MODE_STABILIZED;
    command.deadline_unix_nanos = deadline;
    return command;
  }
  absl::Status Give(const trimtab_command& command) { return relay_.Give(command, ring_.get(), now_, nanos_); }
  void Poll() { relay_.Poll(ring_.get(), now_, nanos_); }
  // plan * 10 + phase of the command that the trainer takes; 0: none.
  uint64_t Take() {
    trimtab_command command = {};
    return trimtab_poll_command(trainer_.agent(), &command) == 1 ? command.plan * 10 + command.phase : 0;
  }

  TempFolder folder_;
  TestTrainer trainer_;
  std::unique_ptr<agent::RingReader> ring_;
  CommandRelay relay_{seconds(2), seconds(60)};
  TimePoint now_ = Clock::now();
  int64_t nanos_ = 1'000'000'000;
};

TEST_F(CommandRelayTest, AnotherPlanWaitsUntilTheFirstIsTaken) {
  ASSERT_TRUE(Give(Make(1, TRIMTAB_PHASE_PREPARE)).ok());
  ASSERT_TRUE(Give(Make(2, TRIMTAB_PHASE_PREPARE)).ok());
  ASSERT_TRUE(Give(Make(2, TRIMTAB_PHASE_PREPARE)).ok()) << "a repetition";
  Poll();
  EXPECT_EQ(Take(), 11u);
  EXPECT_EQ(Take(), 0u);
  Poll();
  EXPECT_EQ(Take(), 21u);
  Poll();
  EXPECT_EQ(Take(), 0u);
  EXPECT_EQ(relay_.waiting(), 0u);
}

TEST_F(CommandRelayTest, ALaterPhaseOfTheSamePlanReplacesAtOnce) {
  ASSERT_TRUE(Give(Make(1, TRIMTAB_PHASE_PREPARE)).ok());
  ASSERT_TRUE(Give(Make(1, TRIMTAB_PHASE_ABORT)).ok());
  EXPECT_EQ(Take(), 13u);
}

TEST_F(CommandRelayTest, RepetitionsAreNotWrittenAgain) {
  ASSERT_TRUE(Give(Make(1, TRIMTAB_PHASE_PREPARE)).ok());
  EXPECT_EQ(Take(), 11u);
  ASSERT_TRUE(Give(Make(1, TRIMTAB_PHASE_PREPARE)).ok());
  EXPECT_EQ(Take(), 0u);
}

TEST_F(CommandRelayTest, AnUntakenCommandGivesWayAfterItsDeadline) {
  ASSERT_TRUE(Give(Make(1, TRIMTAB_PHASE_PREPARE, nanos_ + 5'000'000'000)).ok());
  ASSERT_TRUE(Give(Make(2, TRIMTAB_PHASE_PREPARE)).ok());
  now_ += seconds(4);
  nanos_ += 4'000'000'000;
  Poll();
  EXPECT_EQ(relay_.waiting(), 1u);
  now_ += seconds(2);
  nanos_ += 2'000'000'000;
  Poll();
  EXPECT_EQ(Take(), 21u);
}

TEST_F(CommandRelayTest, WithoutADeadlineItGivesWayAfterTheLongestStay) {
  ASSERT_TRUE(Give(Make(1, TRIMTAB_PHASE_PREPARE)).ok());
  ASSERT_TRUE(Give(Make(2, TRIMTAB_PHASE_PREPARE)).ok());
  now_ += seconds(59);
  Poll();
  EXPECT_EQ(relay_.waiting(), 1u);
  now_ += seconds(1);
  Poll();
  EXPECT_EQ(Take(), 21u);
}

TEST_F(CommandRelayTest, WaitingCommandsAreBounded) {
  for (uint64_t plan = 1; plan <= kMaxCommandsWaiting + 1; ++plan) {
    ASSERT_TRUE(Give(Make(plan, TRIMTAB_PHASE_PREPARE)).ok());
  }
  EXPECT_EQ(Give(Make(99, TRIMTAB_PHASE_PREPARE)).code(), absl::StatusCode::kResourceExhausted);
}

TEST(CommandFromProtoTest, ChecksEveryField) {
  v1::Command command;
  command.set_plan(4);
  command.set_phase(v1::COMMAND_PHASE_COMMIT);
  command.set_mode(v1::KERNEL_MODE_PAPER);
  for (const uint32_t layer : {0u, 1023u, 1023u, 8u}) command.add_layers(layer);
  command.set_effective_step(17);
  const auto parsed = CommandFromProto(command);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->layer_count, 3u);
  EXPECT_EQ(parsed->layers[0], 1);
  EXPECT_EQ(parsed->layers[1], 1);
  EXPECT_EQ(parsed->layers[127], 128);
  EXPECT_EQ(parsed->effective_step, 17u);
  command.add_layers(1024);
  EXPECT_FALSE(CommandFromProto(command).ok());
  command.clear_layers();
  command.set_mode(static_cast<v1::KernelMode>(99));
  EXPECT_FALSE(CommandFromProto(command).ok());
  command.set_mode(v1::KERNEL_MODE_UNSPECIFIED);
  EXPECT_FALSE(CommandFromProto(command).ok());
  command.set_phase(v1::COMMAND_PHASE_ABORT);
  EXPECT_TRUE(CommandFromProto(command).ok()) << "an abort needs no mode";
  command.set_phase(static_cast<v1::CommandPhase>(4));
  EXPECT_FALSE(CommandFromProto(command).ok());
}

}  // namespace
}  // namespace trimtab::courier
