// The C example against the real reader: what it reports, how it obeys, what is left of it after SIGKILL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "agent/core/ring_reader.h"
#include "tests/e2e/c_trainer/trainer_process.h"

namespace trimtab {
namespace {

using agent::ReadResult;
using agent::RingAck;
using agent::RingReader;
using agent::RingStep;
using testing::HasSubstr;

struct Row {
  uint64_t sequence, step;
  float loss, grad_norm, learning_rate;
  std::vector<uint64_t> modes;
};

float Scalar(const RingStep& step, const char* name) {
  for (const auto& block : step.blocks) {
    if (block.metric == trimtab_metric_id(name)) return *static_cast<const float*>(block.data);
  }
  ADD_FAILURE() << "no " << name << " in step " << step.step;
  return NAN;
}

Row RowOf(const RingStep& step) {
  Row row = {
      step.sequence, step.step, Scalar(step, "loss"), Scalar(step, "grad_norm"), Scalar(step, "learning_rate"), {}};
  for (const auto& block : step.blocks) {
    if (block.metric != trimtab_metric_id("attention_mode")) continue;
    const auto* modes = static_cast<const uint64_t*>(block.data);
    row.modes.assign(modes, modes + block.count);
  }
  return row;
}

class CTrainerTest : public testing::Test {
 protected:
  CTrainerTest() {
    std::string name = (std::filesystem::temp_directory_path() / "trimtab-c-XXXXXX").string();
    dir_ = mkdtemp(name.data());
  }
  ~CTrainerTest() override { std::filesystem::remove_all(dir_); }

  std::vector<std::string> Arguments(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"--ring-dir", dir_, "--run", "c-run"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  static std::unique_ptr<RingReader> Reader(const std::string& path) {
    agent::RingError error;
    std::string message;
    auto reader = RingReader::Open(path, &error, &message);
    EXPECT_NE(reader, nullptr) << path << " " << message;
    return reader;
  }

  static std::vector<Row> ReadAll(RingReader* reader) {
    std::vector<Row> rows;
    RingStep step;
    for (ReadResult result; (result = reader->Next(&step)) != ReadResult::kEmpty;) {
      if (result == ReadResult::kCorrupt) {
        ADD_FAILURE() << reader->error();
        break;
      }
      if (result == ReadResult::kStep) rows.push_back(RowOf(step));
    }
    return rows;
  }

  // The whole of an undisturbed run: what a killed one must agree with, bit for bit.
  std::vector<Row> Undisturbed(uint64_t steps) {
    TrainerProcess trainer(Arguments({"--steps", std::to_string(steps), "--ring-bytes", "67108864"}));
    std::string line;
    EXPECT_TRUE(trainer.ReadLine(&line));
    EXPECT_THAT(line, testing::StartsWith("ring "));
    trainer.ReadRest();
    EXPECT_EQ(trainer.Wait(), 0);
    return ReadAll(Reader(line.substr(5)).get());
  }

  std::string dir_;
};

TEST_F(CTrainerTest, ReportsEveryStepOfARealRun) {
  TrainerProcess trainer(Arguments({"--steps", "500", "--rank", "1", "--world-size", "2"}));
  std::string line;
  ASSERT_TRUE(trainer.ReadLine(&line));
  const std::string path = line.substr(5);
  EXPECT_THAT(trainer.ReadRest(), HasSubstr("final loss "));
  EXPECT_EQ(trainer.Wait(), 0);
  const auto reader = Reader(path);
  EXPECT_EQ(reader->identity().run, "c-run");
  EXPECT_EQ(reader->identity().rank, 1u);
  EXPECT_TRUE(reader->closed());
  EXPECT_FALSE(reader->writer_alive());
  std::string info;
  ASSERT_TRUE(reader->ReadInfo(&info));
  EXPECT_THAT(info, HasSubstr("least squares"));
  const std::vector<Row> rows = ReadAll(reader.get());
  ASSERT_EQ(rows.size(), 500u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].step, i + 1);
    EXPECT_EQ(rows[i].learning_rate, 0.2f);
    EXPECT_EQ(rows[i].modes, std::vector<uint64_t>(2, TRIMTAB_MODE_OBSERVE));
  }
  EXPECT_LT(rows.back().loss, rows.front().loss / 100) << "it does not learn";
  EXPECT_LT(rows.back().grad_norm, rows.front().grad_norm);
}

TEST_F(CTrainerTest, ObeysTheLatchAtTheCommittedStep) {
  TrainerProcess trainer(Arguments({"--steps", "100000", "--act", "--sleep-us", "1000"}));
  std::string line;
  ASSERT_TRUE(trainer.ReadLine(&line));
  const auto reader = Reader(line.substr(5));
  ASSERT_TRUE(reader->identity().act);
  uint64_t acks_seen = 0;
  const auto next_ack = [&]() -> RingAck {
    for (;;) {
      const auto acks = reader->ReadAcks(acks_seen);
      if (!acks.empty()) {
        acks_seen = acks.front().index;
        return acks.front();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  trimtab_command command = {};
  command.plan = 9;
  command.phase = TRIMTAB_PHASE_PREPARE;
  command.mode = TRIMTAB_MODE_STABILIZED;
  command.layer_count = 1;
  command.layers[0] = 1 << 1;
  reader->WriteCommand(command);
  const RingAck prepared = next_ack();
  EXPECT_EQ(prepared.plan, 9u);
  ASSERT_EQ(prepared.state, TRIMTAB_ACK_PREPARED) << prepared.reason;
  command.phase = TRIMTAB_PHASE_COMMIT;
  command.effective_step = prepared.step + 300;
  reader->WriteCommand(command);
  const RingAck committed = next_ack();
  ASSERT_EQ(committed.state, TRIMTAB_ACK_COMMITTED) << committed.reason;
  const RingAck applied = next_ack();
  ASSERT_EQ(applied.state, TRIMTAB_ACK_APPLIED) << applied.reason;
  EXPECT_EQ(applied.step, command.effective_step);
  ASSERT_TRUE(trainer.ReadLine(&line));
  EXPECT_EQ(line, "step " + std::to_string(command.effective_step) + ": layer 1 observe -> stabilized");

  uint64_t last = 0;
  while (last < command.effective_step) {
    for (const Row& row : ReadAll(reader.get())) {
      last = row.step;
      const uint64_t mode = row.step >= command.effective_step ? TRIMTAB_MODE_STABILIZED : TRIMTAB_MODE_OBSERVE;
      EXPECT_EQ(row.modes, (std::vector<uint64_t>{TRIMTAB_MODE_OBSERVE, mode})) << row.step;
    }
  }
}

TEST_F(CTrainerTest, RefusesASwitchThatItsOwnerDidNotAllow) {
  TrainerProcess trainer(Arguments({"--steps", "100000", "--sleep-us", "1000"}));
  std::string line;
  ASSERT_TRUE(trainer.ReadLine(&line));
  const auto reader = Reader(line.substr(5));
  trimtab_command command = {};
  command.plan = 1;
  command.phase = TRIMTAB_PHASE_PREPARE;
  command.mode = TRIMTAB_MODE_STABILIZED;
  reader->WriteCommand(command);
  std::vector<RingAck> acks;
  while (acks.empty()) acks = reader->ReadAcks(0);
  EXPECT_EQ(acks[0].state, TRIMTAB_ACK_REFUSED);
  EXPECT_THAT(acks[0].reason, HasSubstr("not started with --act"));
  EXPECT_TRUE(reader->command_taken());
}

// Kills at random moments, also before the ring is there. What the trainer said it committed must be read back whole,
// in order, without a gap, and equal to an undisturbed run.
TEST_F(CTrainerTest, EveryStepBeforeSigkillIsReadable) {
  constexpr int kEarlyKills = 6;  // timed from the start: before, during and after the making of the ring
  constexpr int kKillsWhileTraining = 24;
  constexpr int kMaxKills = 500;
  constexpr uint64_t kSteps = 40000;
  const std::vector<Row> reference = Undisturbed(kSteps);
  ASSERT_EQ(reference.size(), kSteps);
  std::mt19937 random(7);
  int with_steps = 0;
  for (int kill = 0; with_steps < kKillsWhileTraining; ++kill) {
    ASSERT_LT(kill, kMaxKills) << "the trainer never comes to train";
    const bool small = kill % 2 == 1;  // a ring that is overwritten many times
    const auto arguments =
        Arguments({"--steps", std::to_string(kSteps), "--report", "--ring-bytes", small ? "65536" : "67108864"});
    uint64_t committed = 0;
    std::string path;
    {
      TrainerProcess trainer(arguments);
      std::string line;
      if (kill >= kEarlyKills && trainer.ReadLine(&line)) path = line.substr(5);
      std::thread killer([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(kill < kEarlyKills ? 300 * kill : random() % 100000));
        trainer.Kill();
      });
      while (trainer.ReadLine(&line)) {
        if (line.rfind("ring ", 0) == 0) path = line.substr(5);
        if (line.rfind("committed ", 0) == 0) committed = std::stoull(line.substr(10));
      }
      killer.join();
      const int end = trainer.Wait();
      EXPECT_TRUE(end == -SIGKILL || (end == 0 && committed == kSteps)) << end;
    }
    if (path.empty()) {
      EXPECT_EQ(committed, 0u);
      continue;
    }
    const auto reader = Reader(path);
    ASSERT_NE(reader, nullptr);
    EXPECT_FALSE(reader->writer_alive());
    const std::vector<Row> rows = ReadAll(reader.get());
    if (committed == 0) continue;
    ++with_steps;
    ASSERT_FALSE(rows.empty());
    EXPECT_GE(rows.back().sequence, committed) << "a committed step is gone";
    EXPECT_LE(rows.back().sequence, committed + 1);
    EXPECT_EQ(rows.front().sequence, reader->dropped_steps() + 1);
    if (!small) {
      EXPECT_EQ(reader->dropped_steps(), 0u);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      ASSERT_EQ(row.sequence, rows.front().sequence + i) << "gap";
      ASSERT_EQ(row.step, row.sequence);
      const Row& same = reference[row.step - 1];
      ASSERT_EQ(std::memcmp(&row.loss, &same.loss, sizeof(float)), 0) << row.step;
      ASSERT_EQ(std::memcmp(&row.grad_norm, &same.grad_norm, sizeof(float)), 0) << row.step;
    }
  }
}

TEST_F(CTrainerTest, DisabledMeansNothingHappens) {
  TrainerProcess trainer(Arguments({"--steps", "10"}), {"TRIMTAB_DISABLE=1"});
  const std::string output = trainer.ReadRest();
  EXPECT_EQ(trainer.Wait(), 0);
  EXPECT_THAT(output, HasSubstr("TRIMTAB_DISABLE is set"));
  EXPECT_THAT(output, HasSubstr("final loss "));
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST_F(CTrainerTest, TrainsOnWhenTheRingCannotBeMade) {
  TrainerProcess trainer({"--steps", "10", "--run", "r", "--ring-dir", dir_ + "/missing/deep"});
  const std::string output = trainer.ReadRest();
  EXPECT_EQ(trainer.Wait(), 0);
  EXPECT_THAT(output, HasSubstr("cannot be made"));
  EXPECT_THAT(output, HasSubstr("final loss "));
}

TEST_F(CTrainerTest, BadFlagIsOneLineAndExitCodeTwo) {
  for (const std::vector<std::string>& bad :
       {std::vector<std::string>{"--steps", "many"}, {"--steps"}, {"--colour", "red"}, {"--rank", "-1"}}) {
    TrainerProcess trainer(bad);
    const std::string output = trainer.ReadRest();
    EXPECT_EQ(trainer.Wait(), 2);
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
    EXPECT_THAT(output, HasSubstr(bad[0]));
  }
}

}  // namespace
}  // namespace trimtab
