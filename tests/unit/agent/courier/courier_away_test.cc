// The server is away, slow, or comes back: nothing that was read is lost, and what is lost is counted.
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "agent/courier/limits.h"
#include "tests/unit/agent/courier/courier_fixture.h"

namespace trimtab::courier {
namespace {

using CourierAwayTest = CourierFixture;

TEST_F(CourierAwayTest, ServerRestartsAtRandomMoments) {
  TestTrainer trainer(rings_.path(), 1, 8 << 20);
  CourierRunner courier(MakeOptions());
  constexpr uint64_t kSteps = 4000;
  std::thread training([&] {
    for (uint64_t step = 1; step <= kSteps; ++step) {
      trainer.Step(step);
      if (step % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::mt19937 random(20);
  for (int round = 0; round < 20; ++round) {
    server_->behaviour().ack_delay_ms = round % 3 == 0 ? 3 : 0;
    if (round % 4 == 1) server_->behaviour().cut_after_batches = 1 + static_cast<int>(random() % 5);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 150));
    StopServer();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
    StartServer();
  }
  training.join();
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ExpectAll(1, kSteps);
  EXPECT_TRUE(store_.Find(1)->goodbye.has_value());
  EXPECT_TRUE(FilesBelow(spool_dir(), "").empty());
  EXPECT_TRUE(FilesBelow(rings_.path(), ".ring").empty());
}

TEST_F(CourierAwayTest, TheSpoolHoldsWhatTheRingOverwrites) {
  StopServer();
  TestTrainer trainer(rings_.path(), 1, 64 << 10);
  CourierRunner courier(MakeOptions());
  WriteSpooled(&trainer, 1, 3000, 50);  // many times the ring
  StartServer();
  ASSERT_TRUE(WaitSteps(1, 3000));
  for (uint64_t step = 3001; step <= 3020; ++step) trainer.Step(step);
  ASSERT_TRUE(WaitSteps(1, 3020));
  EXPECT_TRUE(WaitUntil([&] { return FilesBelow(spool_dir(), "").empty(); })) << "removed after the acknowledgement";
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ExpectAll(1, 3020);
}

TEST_F(CourierAwayTest, SpoolBoundDropsTheOldestAndTheServerHearsTheExactCount) {
  StopServer();
  Options options = MakeOptions();
  options.spool_bytes = kMinSpoolBytes;
  TestTrainer trainer(rings_.path(), 1, 64 << 10);
  CourierRunner courier(options);
  WriteSpooled(&trainer, 1, 2000, 50);
  StartServer();
  ASSERT_TRUE(store_.WaitFor([&] { return store_.Find(1) != nullptr && store_.Find(1)->last == 2000; }));
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ServerStore::Rank* rank = store_.Find(1);
  ExpectContent(*rank);
  const uint64_t stored = rank->steps.size();
  EXPECT_LT(stored, 1000u);
  EXPECT_GT(stored, 50u);
  EXPECT_EQ(rank->steps.begin()->first, 2000 - stored + 1) << "the newest are kept, without a hole";
  EXPECT_EQ(store_.spool_dropped, 2000 - stored);
  EXPECT_EQ(rank->ring_dropped, 0u);
}

TEST_F(CourierAwayTest, FullDiskLeavesStepsInTheRingAndCountsWhatItLoses) {
  StopServer();
  TestTrainer trainer(rings_.path(), 1, 256 << 10);
  Options options = MakeOptions();
  CourierRunner courier(options);
  {
    const FileSizeLimit limit(10'000);
    for (uint64_t step = 1; step <= 3000; ++step) {
      trainer.Step(step);
      if (step % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  StartServer();
  ASSERT_TRUE(store_.WaitFor([&] { return store_.Find(1) != nullptr && store_.Find(1)->last == 3000; }));
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ServerStore::Rank* rank = store_.Find(1);
  ExpectContent(*rank);
  EXPECT_EQ(rank->steps.size() + rank->ring_dropped + store_.spool_dropped, 3000u) << "stored or counted, all of them";
  EXPECT_GT(rank->steps.size(), 200u);
}

TEST_F(CourierAwayTest, ServerThatDoesNotAcknowledgeGetsABoundedWindow) {
  server_->behaviour().acks = false;
  Options options = MakeOptions();
  options.timings.stall = std::chrono::hours(1);
  TestTrainer trainer(rings_.path(), 1, 64 << 10);  // about 340 steps
  CourierRunner courier(options);
  // Connected, so at ease until half of the ring is at risk; from there on the spool takes it.
  WriteSpooled(&trainer, 1, 1500, 50, 220);
  {
    std::lock_guard<std::mutex> lock(store_.mutex);
    EXPECT_LE(store_.batches, kMaxInFlightBatches);
    EXPECT_LE(store_.largest_batch, kMaxBatchBytes + 4096);
  }
  StopServer();
  StartServer();
  ASSERT_TRUE(WaitSteps(1, 1500));
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ExpectAll(1, 1500);
}

TEST_F(CourierAwayTest, AServerThatStallsIsAServerAway) {
  server_->behaviour().acks = false;
  Options options = MakeOptions();
  options.timings.stall = std::chrono::milliseconds(200);
  {
    TestTrainer trainer(rings_.path(), 1);
    for (uint64_t step = 1; step <= 50; ++step) trainer.Step(step);
  }
  EXPECT_EQ(CourierRunner(options).Join(), kExitOk) << "does not wait for ever";
  EXPECT_EQ(NewestSpooled(), 50u);
  server_->behaviour().acks = true;
  options.drain = true;
  EXPECT_EQ(CourierRunner(options).Join(), kExitOk);
  ExpectAll(1, 50);
}

TEST_F(CourierAwayTest, EndsWithoutAServerAndTheNextCourierDeliversWithoutTheRing) {
  StopServer();
  {
    TestTrainer trainer(rings_.path(), 1, 1 << 20, R"({"versions": {"torch": "2.13"}})");
    for (uint64_t step = 1; step <= 300; ++step) trainer.Step(step);
  }
  EXPECT_EQ(CourierRunner(MakeOptions()).Join(), kExitOk);
  EXPECT_TRUE(FilesBelow(rings_.path(), ".ring").empty()) << "its memory is given back";
  EXPECT_EQ(NewestSpooled(), 300u);
  StartServer();
  const TempFolder other;
  Options options = TestOptions("127.0.0.1:" + std::to_string(port_), other.path(), spool_dir());
  options.drain = true;
  EXPECT_EQ(CourierRunner(options).Join(), kExitOk);
  ExpectAll(1, 300);
  ServerStore::Rank* rank = store_.Find(1);
  EXPECT_EQ(rank->info.versions().at("torch"), "2.13");
  EXPECT_GT(rank->metrics.size(), 20u);
  ASSERT_TRUE(rank->goodbye.has_value());
  EXPECT_TRUE(rank->goodbye->clean());
  EXPECT_TRUE(FilesBelow(spool_dir(), "").empty());
}

TEST_F(CourierAwayTest, GoodbyeAloneIsKeptToo) {
  TestTrainer trainer(rings_.path(), 1);
  {
    CourierRunner courier(MakeOptions());
    trainer.Step(1);
    ASSERT_TRUE(WaitSteps(1, 1));
    StopServer();
    trainer.Close();
    EXPECT_EQ(courier.Join(), kExitOk);
  }
  EXPECT_TRUE(FilesBelow(rings_.path(), ".ring").empty());
  StartServer();
  Options options = MakeOptions();
  options.drain = true;
  EXPECT_EQ(CourierRunner(options).Join(), kExitOk);
  ASSERT_TRUE(store_.Find(1)->goodbye.has_value());
  EXPECT_TRUE(store_.Find(1)->goodbye->clean());
  ExpectAll(1, 1);
}

TEST_F(CourierAwayTest, SpoolThatCannotTakeAllLeavesTheRing) {
  StopServer();
  {
    TestTrainer trainer(rings_.path(), 1);
    for (uint64_t step = 1; step <= 300; ++step) trainer.Step(step);
  }
  Options options = MakeOptions();
  options.spool_dir = "/proc/no/spool";
  EXPECT_EQ(CourierRunner(options).Join(), kExitLeftInRing);
  EXPECT_EQ(FilesBelow(rings_.path(), ".ring").size(), 1u);
  StartServer();
  EXPECT_EQ(CourierRunner(MakeOptions()).Join(), kExitOk);
  ExpectAll(1, 300);
}

TEST_F(CourierAwayTest, StoppedCourierSpoolsAndTheNextGoesOn) {
  TestTrainer trainer(rings_.path(), 1, 64 << 10);
  StopServer();
  {
    CourierRunner courier(MakeOptions());
    WriteSpooled(&trainer, 1, 900, 50);
    for (uint64_t step = 901; step <= 950; ++step) trainer.Step(step);
    Options options = MakeOptions();
    EXPECT_EQ(courier.Stop(), kExitOk);
  }
  StartServer();
  CourierRunner courier(MakeOptions());
  ASSERT_TRUE(WaitSteps(1, 950));
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ExpectAll(1, 950);
}

TEST_F(CourierAwayTest, AServerWithoutWelcomeIsAServerAway) {
  server_->behaviour().no_welcome = true;
  Options options = MakeOptions();
  options.timings.answer = std::chrono::milliseconds(200);
  TestTrainer trainer(rings_.path(), 1, 64 << 10);
  CourierRunner courier(options);
  WriteSpooled(&trainer, 1, 600, 50);
  server_->behaviour().no_welcome = false;
  ASSERT_TRUE(WaitSteps(1, 600));
  trainer.Close();
  EXPECT_EQ(courier.Join(), kExitOk);
  ExpectAll(1, 600);
}

}  // namespace
}  // namespace trimtab::courier
