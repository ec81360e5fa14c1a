// The whole courier against a real gRPC server, in one process: delivery, identity, the end of rings.
#include "agent/courier/courier.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "agent/courier/limits.h"
#include "tests/unit/agent/courier/courier_fixture.h"

namespace trimtab::courier {
namespace {

using CourierTest = CourierFixture;

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
  EXPECT_EQ(rank->info.world_size(), 4096u);
  EXPECT_TRUE(rank->info.act());
  EXPECT_EQ(rank->info.versions().at("torch"), "2.13");
  EXPECT_GT(rank->metrics.size(), 20u);
  ASSERT_TRUE(rank->goodbye.has_value());
  EXPECT_TRUE(rank->goodbye->clean());
  EXPECT_EQ(rank->repeated_steps, 0u);
  EXPECT_TRUE(FilesBelow(rings_.path(), ".ring").empty());
  EXPECT_FALSE(std::filesystem::exists(spool_dir())) << "nothing is spooled while all is well";
}

TEST_F(CourierTest, ServesManyRingsOverOneStream) {
  std::vector<std::unique_ptr<TestTrainer>> trainers;
  for (uint32_t rank = 0; rank < 16; ++rank) trainers.push_back(std::make_unique<TestTrainer>(rings_.path(), rank));
  CourierRunner courier(MakeOptions());
  for (uint64_t step = 1; step <= 100; ++step) {
    for (auto& trainer : trainers) trainer->Step(step);
  }
  for (uint32_t rank = 0; rank < 16; ++rank) ASSERT_TRUE(WaitSteps(rank, 100));
  EXPECT_EQ(server_->streams(), 1);
  trainers.clear();
  EXPECT_EQ(courier.Join(), kExitOk);
  for (uint32_t rank = 0; rank < 16; ++rank) ExpectAll(rank, 100);
  EXPECT_EQ(server_->streams(), 0);
}

TEST_F(CourierTest, TwoRingsOfTheSameRankAreBothSent) {
  TestTrainer first(rings_.path(), 5), second(rings_.path(), 5);
  CourierRunner courier(MakeOptions());
  for (uint64_t step = 1; step <= 50; ++step) {
    first.Step(step);
    second.Step(step);
  }
  ASSERT_TRUE(WaitSteps(5, 100));
  first.Close();
  second.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  const std::lock_guard lock(store_.mutex);
  ASSERT_EQ(store_.ranks.size(), 2u);
  for (const auto& [key, rank] : store_.ranks) {
    EXPECT_EQ(rank.steps.size(), 50u);
    EXPECT_TRUE(rank.goodbye.has_value());
  }
}

TEST_F(CourierTest, RingRemovedUnderUsIsStillDelivered) {
  TestTrainer trainer(rings_.path(), 1);
  CourierRunner courier(MakeOptions());
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(1, 1));
  std::filesystem::remove(FilesBelow(rings_.path(), ".ring").at(0));
  for (uint64_t step = 2; step <= 100; ++step) trainer.Step(step);
  ASSERT_TRUE(WaitSteps(1, 100));
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ExpectAll(1, 100);
}

TEST_F(CourierTest, LargeStepsPassTheDefaultMessageLimit) {
  TestTrainer trainer(rings_.path(), 1, 64 << 20);
  CourierRunner courier(MakeOptions());
  for (uint64_t step = 1; step <= 5; ++step) trainer.Step(step, 1000, 700);  // 2.8 MB
  trainer.Step(6, 1024, 1024);                                               // 4.2 MB: too large to send
  trainer.Step(7, 1, 1);
  ASSERT_TRUE(WaitSteps(1, 6));
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ServerStore::Rank* rank = store_.Find(1);
  EXPECT_EQ(rank->steps.size(), 6u);
  EXPECT_EQ(rank->steps.count(6), 0u);
  EXPECT_EQ(rank->ring_dropped, 1u) << "counted with what the ring lost";
}

TEST_F(CourierTest, CorruptAndForeignFilesAreSetAsideOrLeftAlone) {
  std::ofstream(rings_ / "bad.ring") << std::string(1 << 20, 'x');
  std::ofstream(rings_ / "empty.ring").close();
  std::ofstream(rings_ / "notes.txt") << "not ours";
  TestTrainer trainer(rings_.path(), 2);
  Options options = MakeOptions();
  options.exit_when_idle = false;
  CourierRunner courier(options);
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(2, 1));
  ASSERT_TRUE(WaitUntil([&] { return std::filesystem::exists(rings_ / "bad.ring.corrupt"); }));
  EXPECT_TRUE(std::filesystem::exists(rings_ / "notes.txt"));
  EXPECT_EQ(courier.Stop(), kExitOk);
}

TEST_F(CourierTest, RingThatTurnsCorruptEndsButOthersGoOn) {
  TestTrainer good(rings_.path(), 1);
  TestTrainer bad(rings_.path(), 2);
  CourierRunner courier(MakeOptions());
  good.Step(1);
  bad.Step(1);
  ASSERT_TRUE(WaitSteps(1, 1));
  ASSERT_TRUE(WaitSteps(2, 1));
  const std::vector<std::string> rings = FilesBelow(rings_.path(), "-2.ring");
  ASSERT_EQ(rings.size(), 1u);
  std::filesystem::resize_file(rings[0], 512);  // the writer may not touch its mapping from here on
  ASSERT_TRUE(store_.WaitFor([&] { return store_.Find(2)->goodbye.has_value(); }));
  EXPECT_FALSE(store_.Find(2)->goodbye->clean());
  EXPECT_NE(store_.Find(2)->goodbye->reason().find("corrupt"), std::string::npos);
  EXPECT_TRUE(WaitUntil([&] { return std::filesystem::exists(rings[0] + ".corrupt"); }));
  std::filesystem::resize_file(rings[0] + ".corrupt", 1 << 24);
  good.Step(2);
  ASSERT_TRUE(WaitSteps(1, 2));
  good.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ExpectAll(1, 2);
}

TEST_F(CourierTest, KilledTrainersLastStepsArrive) {
  const std::string count = "200";
  const char* args[] = {COURIER_TEST_TRAINER, rings_.path().c_str(), "4", count.c_str(), "0", "die", nullptr};
  pid_t pid = 0;
  ASSERT_EQ(posix_spawn(&pid, COURIER_TEST_TRAINER, nullptr, nullptr, const_cast<char**>(args), environ), 0);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  CourierRunner courier(MakeOptions());
  EXPECT_EQ(courier.Join(), kExitOk);
  ExpectAll(4, 200);
  ASSERT_TRUE(store_.Find(4)->goodbye.has_value());
  EXPECT_FALSE(store_.Find(4)->goodbye->clean());
  EXPECT_NE(store_.Find(4)->goodbye->reason().find(std::to_string(pid)), std::string::npos);
  EXPECT_TRUE(FilesBelow(rings_.path(), ".ring").empty());
}

TEST_F(CourierTest, HostileInfoKeepsTheLastGood) {
  TestTrainer trainer(rings_.path(), 6, 1 << 20, R"({"metadata": {"seed": "1"}})");
  CourierRunner courier(MakeOptions());
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(6, 1));
  std::string many = "{\"layers\":[{}";
  for (int i = 0; i < kMaxInfoEntries; ++i) many += ",{}";
  many += "]}";
  for (const std::string& text : {std::string("{\"metadata\": 3}"), std::string("{\"layers\": 7}"), many}) {
    ASSERT_EQ(trimtab_set_info(trainer.agent(), text.data(), text.size()), TRIMTAB_OK) << trimtab_last_error();
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
  }
  EXPECT_EQ(store_.Find(6)->updates, 0u);
  EXPECT_EQ(store_.Find(6)->info.metadata().at("seed"), "1");
  const std::string good = R"({"metadata": {"seed": "2"}, "layers": [{"index": 0, "heads": 4}]})";
  ASSERT_EQ(trimtab_set_info(trainer.agent(), good.data(), good.size()), TRIMTAB_OK);
  ASSERT_TRUE(store_.WaitFor([&] { return store_.Find(6)->updates == 1; }));
  EXPECT_EQ(store_.Find(6)->info.metadata().at("seed"), "2");
  EXPECT_EQ(store_.Find(6)->info.rank(), 6u);
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
}

TEST_F(CourierTest, LastInfoBeforeTheEndIsSent) {
  TestTrainer trainer(rings_.path(), 6);
  Options options = MakeOptions();
  options.timings.update_min = std::chrono::hours(1);
  CourierRunner courier(options);
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(6, 1));
  const std::string last = R"({"coverage": {"callsHooked": "9"}})";
  ASSERT_EQ(trimtab_set_info(trainer.agent(), last.data(), last.size()), TRIMTAB_OK);
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  EXPECT_EQ(store_.Find(6)->info.coverage().calls_hooked(), 9u);
}

TEST_F(CourierTest, RefusedChannelEndsAloneAndItsRingGoesWithItsTrainer) {
  server_->behaviour().refuse_rank = 8;
  server_->behaviour().refuse_code = static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT);
  TestTrainer refused(rings_.path(), 8), good(rings_.path(), 9);
  CourierRunner courier(MakeOptions());
  refused.Step(1);
  good.Step(1);
  ASSERT_TRUE(WaitSteps(9, 1));
  good.Close();
  ASSERT_TRUE(WaitUntil([&] { return FilesBelow(rings_.path(), ".ring").size() == 1; }));
  refused.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  EXPECT_EQ(store_.Steps(8), 0u);
  EXPECT_EQ(store_.refusals, 1u);
  EXPECT_TRUE(FilesBelow(rings_.path(), ".ring").empty());
  EXPECT_TRUE(FilesBelow(spool_dir(), "").empty());
}

TEST_F(CourierTest, RefusalThatMayPassIsAskedAgain) {
  for (const grpc::StatusCode code : {grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::ALREADY_EXISTS}) {
    const uint32_t rank = static_cast<uint32_t>(code);
    const uint64_t before = store_.refusals;
    server_->behaviour().refuse_code = static_cast<int>(code);
    TestTrainer trainer(rings_.path(), rank);
    CourierRunner courier(MakeOptions());
    for (uint64_t step = 1; step <= 20; ++step) trainer.Step(step);
    ASSERT_TRUE(store_.WaitFor([&] { return store_.refusals >= before + 3; }));
    server_->behaviour().refuse_code = 0;
    ASSERT_TRUE(WaitSteps(rank, 20));
    trainer.Close();
    EXPECT_EQ(courier.Join(), kExitOk);
    ExpectAll(rank, 20);
  }
}

TEST_F(CourierTest, ARestartedRankWaitsForTheGoodbyeOfItsLifeBefore) {
  server_->behaviour().one_life = true;
  server_->behaviour().ack_delay_ms = 20;
  Options options = MakeOptions();
  options.timings.refused_retry = std::chrono::hours(1);
  CourierRunner courier(options);
  for (int life = 1; life <= 5; ++life) {
    TestTrainer trainer(rings_.path(), 2);
    for (uint64_t step = 1; step <= 10; ++step) trainer.Step(step);
    ASSERT_TRUE(store_.WaitFor([&] { return store_.ranks.size() == static_cast<size_t>(life); }));
  }
  EXPECT_EQ(courier.Join(), kExitOk);
  EXPECT_EQ(store_.refusals, 0u);
  ASSERT_EQ(store_.ranks.size(), 5u);
  for (const auto& [key, rank] : store_.ranks) EXPECT_EQ(rank.steps.size(), 10u);
}

TEST_F(CourierTest, ChannelNumbersAreUsedAgain) {
  Options options = MakeOptions();
  options.exit_when_idle = false;
  options.timings.depart_linger = std::chrono::milliseconds(0);
  options.timings.scan = std::chrono::milliseconds(2);
  CourierRunner courier(options);
  const size_t lives = kMaxChannels + 20;
  for (size_t life = 1; life <= lives;) {
    std::vector<std::unique_ptr<TestTrainer>> trainers;
    for (uint32_t rank = 0; rank < 100 && life <= lives; ++rank, ++life) {
      trainers.push_back(std::make_unique<TestTrainer>(rings_.path(), rank, 64 << 10));
    }
    trainers.clear();
    ASSERT_TRUE(WaitUntil([&] { return FilesBelow(rings_.path(), ".ring").empty(); }));
  }
  EXPECT_EQ(courier.Stop(), kExitOk);
  const std::lock_guard lock(store_.mutex);
  EXPECT_EQ(store_.ranks.size(), lives);
  for (const auto& [key, rank] : store_.ranks) EXPECT_TRUE(rank.goodbye.has_value());
  EXPECT_LE(store_.highest_channel, kMaxChannels);
}

TEST_F(CourierTest, FatalRefusalEndsWithThree) {
  server_->behaviour().refuse_code = static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION);
  server_->behaviour().refuse_fatal = true;
  TestTrainer trainer(rings_.path(), 8);
  trainer.Step(1);
  CourierRunner courier(MakeOptions());
  EXPECT_EQ(courier.Join(), kExitRefused);
  EXPECT_EQ(FilesBelow(rings_.path(), ".ring").size(), 1u) << "the ring is the next courier's";
}

TEST_F(CourierTest, OneCourierARingFolder) {
  TestTrainer trainer(rings_.path(), 1);
  trainer.Step(1);
  auto first = std::make_unique<CourierRunner>(MakeOptions());
  ASSERT_TRUE(WaitSteps(1, 1));
  EXPECT_EQ(CourierRunner(MakeOptions()).Join(), kExitOk) << "the second one ends at once";
  Options waiting = MakeOptions();
  waiting.wait_lock = true;
  CourierRunner second(waiting);
  trainer.Step(2);
  ASSERT_TRUE(WaitSteps(1, 2));
  first.reset();
  trainer.Step(3);
  ASSERT_TRUE(WaitSteps(1, 3));
  trainer.Close();
  EXPECT_EQ(second.Join(), kExitOk);
  ExpectAll(1, 3);
  EXPECT_EQ(store_.Find(1)->hellos, 2u);
}

TEST_F(CourierTest, ParentsEndIsTheCouriersWhenIdle) {
  const char* args[] = {"sleep", "0.3", nullptr};
  pid_t pid = 0;
  ASSERT_EQ(posix_spawnp(&pid, "sleep", nullptr, nullptr, const_cast<char**>(args), environ), 0);
  TestTrainer trainer(rings_.path(), 1);
  Options options = MakeOptions();
  options.exit_when_idle = false;
  options.parent_pid = static_cast<uint32_t>(pid);
  CourierRunner courier(options);
  trainer.Step(1);
  ASSERT_TRUE(WaitSteps(1, 1));
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  trainer.Step(2);
  ASSERT_TRUE(WaitSteps(1, 2)) << "a live trainer is served on";
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
}

TEST_F(CourierTest, ParentsEndIsTheEndWhenThereNeverWasARing) {
  const char* args[] = {"true", nullptr};
  pid_t pid = 0;
  ASSERT_EQ(posix_spawnp(&pid, "true", nullptr, nullptr, const_cast<char**>(args), environ), 0);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  Options options = MakeOptions();  // with --exit-when-idle, which alone waits for a first ring
  options.parent_pid = static_cast<uint32_t>(pid);
  CourierRunner courier(options);
  EXPECT_EQ(courier.Join(), kExitOk);
}

TEST_F(CourierTest, ASpoolFolderThatIsAFileIsAWrongFlag) {
  Options options = MakeOptions();
  options.spool_dir = "/proc/self/cmdline";
  EXPECT_EQ(CourierRunner(options).Join(), kExitUsage);
  options.spool_dir = "/proc/self/cmdline/spool";
  EXPECT_EQ(CourierRunner(options).Join(), kExitUsage);
}

}  // namespace
}  // namespace trimtab::courier
