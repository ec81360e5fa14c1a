// The whole courier against a real gRPC server, in one process.
#include "agent/courier/courier.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tests/unit/agent/courier/courier_runner.h"
#include "tests/unit/agent/courier/test_server.h"
#include "tests/unit/agent/courier/test_trainer.h"

namespace trimtab::courier {
namespace {

class CourierTest : public ::testing::Test {
 protected:
  // Every sequence from 1 to `count` is stored, with the content that was written (step == sequence).
  void ExpectAll(uint32_t rank, uint64_t count) {
    std::lock_guard<std::mutex> lock(store_.mutex);
    ServerStore::Rank* found = store_.Find(rank);
    ASSERT_NE(found, nullptr);
    ASSERT_EQ(found->steps.size(), count);
    EXPECT_EQ(found->steps.begin()->first, 1u);
    EXPECT_EQ(found->steps.rbegin()->first, count);
    for (const auto& [sequence, step] : found->steps) {
      EXPECT_EQ(step.step(), sequence);
      ExpectStep(step);
    }
  }
  bool WaitSteps(uint32_t rank, uint64_t count) {
    return store_.WaitFor([&] { return store_.Steps(rank) >= count; });
  }
  Options MakeOptions() { return TestOptions(server_.address(), rings_.path(), spool_ / "spool"); }

  TempFolder rings_;
  TempFolder spool_;
  ServerStore store_;
  TestServer server_{&store_, 0};
};

TEST_F(CourierTest, DeliversARingAndRemovesIt) {
  TestTrainer trainer(rings_.path(), 3, 1 << 20, R"({"versions": {"torch": "2.13"}, "rank": 9, "future": [1]})");
  CourierRunner courier(MakeOptions());
  for (uint64_t step = 1; step <= 500; ++step) trainer.Step(step);
  ASSERT_TRUE(WaitSteps(3, 500));
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ExpectAll(3, 500);
  ServerStore::Rank* rank = store_.Find(3);
  EXPECT_EQ(rank->info.run(), "run \"one\"");
  EXPECT_EQ(rank->info.rank(), 3u) << "the header wins over the info text";
  EXPECT_EQ(rank->info.world_size(), 16u);
  EXPECT_TRUE(rank->info.act());
  EXPECT_EQ(rank->info.versions().at("torch"), "2.13");
  EXPECT_GT(rank->metrics.size(), 20u);
  ASSERT_TRUE(rank->goodbye.has_value());
  EXPECT_TRUE(rank->goodbye->clean());
  EXPECT_EQ(rank->repeated_steps, 0u);
  EXPECT_TRUE(FilesBelow(rings_.path(), ".ring").empty());
  EXPECT_FALSE(std::filesystem::exists(spool_ / "spool")) << "nothing is spooled while all is well";
}

TEST_F(CourierTest, CarriesCommandsDownAndAnswersUp) {
  TestTrainer trainer(rings_.path(), 0);
  CourierRunner courier(MakeOptions());
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(0, 1));
  v1::Command command;
  command.set_plan(77);
  command.set_phase(v1::COMMAND_PHASE_PREPARE);
  command.set_mode(v1::KERNEL_MODE_STABILIZED);
  command.add_layers(0);
  command.add_layers(9);
  command.set_deadline_unix_nanos(INT64_MAX);
  ASSERT_TRUE(server_.Command(0, command));
  trimtab_command got = {};
  for (int i = 0; i < 5000 && trimtab_poll_command(trainer.agent(), &got) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(got.plan, 77u);
  EXPECT_EQ(got.phase, TRIMTAB_PHASE_PREPARE);
  EXPECT_EQ(got.mode, TRIMTAB_MODE_STABILIZED);
  EXPECT_EQ(got.layer_count, 2u);
  EXPECT_EQ(got.layers[0], 1);
  EXPECT_EQ(got.layers[1], 2);
  ASSERT_EQ(trimtab_ack(trainer.agent(), 77, TRIMTAB_ACK_REFUSED, 12, "not today"), TRIMTAB_OK);
  ASSERT_TRUE(store_.WaitFor([&] { return !store_.Find(0)->answers.empty(); }));
  const v1::CommandAck answer = store_.Find(0)->answers[0];
  EXPECT_EQ(answer.plan(), 77u);
  EXPECT_EQ(answer.state(), v1::ACK_STATE_REFUSED);
  EXPECT_EQ(answer.step(), 12u);
  EXPECT_EQ(answer.reason(), "not today");
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
}

}  // namespace
}  // namespace trimtab::courier
