// trimtabd is killed with SIGKILL at random moments while couriers stream. After each death the store is opened and
// must hold everything that was acknowledged, every step exactly once and with its own values, and no step that
// follows a hole. The next server resumes from there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "server/store/store.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/server_process.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"
#include "tests/unit/server/support/test_courier.h"

namespace trimtab::server {
namespace {

constexpr int kRounds = 25;
constexpr uint32_t kRanks = 3;
constexpr int kLongestLifeMillis = 400;

float Loss(uint32_t rank, uint64_t step) { return static_cast<float>(rank * 1000000 + step); }

v1::Step MakeStep(uint32_t rank, uint64_t sequence) {
  v1::Step step = LossStep(sequence, sequence, Loss(rank, sequence));
  std::vector<float> values(48);
  for (size_t i = 0; i < values.size(); ++i) values[i] = Loss(rank, sequence) + static_cast<float>(i);
  *step.add_blocks() = Floats(kMaxLogit, {4, 12}, std::move(values));
  return step;
}

// Streams from the last durable step on until the server is gone. Returns the last acknowledged sequence.
uint64_t StreamUntilDeath(const std::string& address, uint32_t rank, uint64_t expected_durable,
                          std::atomic<bool>* wrong_resume) {
  TestCourier courier(address);
  courier.Send(HelloMessage(1, Info("run", rank, kRanks)));
  const auto welcome = courier.WaitWelcome(1);
  if (!welcome) return 0;  // killed before
  if (welcome->last_durable_sequence() != expected_durable) *wrong_resume = true;
  for (uint64_t s = welcome->last_durable_sequence() + 1;; s += 2) {
    // Every second message repeats a step, as a courier does that resumes.
    if (!courier.Send(StepsMessage(1, {MakeStep(rank, s), MakeStep(rank, s + 1)}))) break;
    if (s % 8 == 1 && !courier.Send(StepsMessage(1, {MakeStep(rank, s)}))) break;
  }
  courier.WaitEnd();
  return courier.durable(1);
}

// The number of steps of `rank`, all of which were checked: 1, 2, …, n.
uint64_t CheckRank(Store* store, uint32_t rank) {
  uint64_t rows = 0;
  EXPECT_THAT(store->ReadRows("run", "loss", rank, 0, 0,
                              [&](const Store::Row& row) {
                                ++rows;
                                EXPECT_EQ(row.step, rows) << "a hole or a double";
                                EXPECT_EQ(row.block.float32(0), Loss(rank, row.step));
                                return true;
                              }),
              IsOk());
  uint64_t blocks = 0;
  EXPECT_THAT(store->ReadRows("run", "max_attention_logit", rank, 0, 0,
                              [&](const Store::Row& row) {
                                ++blocks;
                                EXPECT_EQ(row.block.float32(47), Loss(rank, row.step) + 47);
                                return true;
                              }),
              IsOk());
  EXPECT_EQ(blocks, rows) << "half a step";
  return rows;
}

TEST(ServerKillTest, NothingAcknowledgedIsLostAndNothingIsDouble) {
  TempDir folder;
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<uint64_t> stored(kRanks, 0);
  uint64_t acknowledged_in_all = 0;
  int died_with_acks = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::string ready = folder.File("ready");
    // A small memtable, so that kills hit flushes and compactions too.
    ServerProcess server(TRIMTABD,
                         {"--data-dir", folder.File("data"), "--listen", "127.0.0.1:0", "--http", "", "--ready-file",
                          ready, "--memtable-mib", "1"},
                         folder.File("out"));
    ASSERT_TRUE(server.WaitReady(ready)) << server.output();
    std::vector<uint64_t> acknowledged(kRanks, 0);
    std::vector<std::thread> couriers;
    std::atomic<bool> wrong_resume{false};
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      couriers.emplace_back([&, rank] {
        acknowledged[rank] = StreamUntilDeath(server.grpc_address(), rank, stored[rank], &wrong_resume);
      });
    }
    absl::SleepFor(absl::Milliseconds(random() % kLongestLifeMillis));
    server.Signal(SIGKILL);
    ASSERT_EQ(server.Wait(), -SIGKILL);
    for (std::thread& courier : couriers) courier.join();
    EXPECT_FALSE(wrong_resume) << "a Welcome did not name the last stored step";
    auto store = Store::Open({.path = folder.File("data")});
    ASSERT_THAT(store, IsOk());
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const auto run = (*store)->GetRun("run");
      const uint64_t rows = run.ok() ? CheckRank(store->get(), rank) : 0;
      EXPECT_GE(rows, acknowledged[rank]) << "lost what was acknowledged, rank " << rank;
      EXPECT_GE(rows, stored[rank]) << "lost what an earlier server had, rank " << rank;
      stored[rank] = rows;
      acknowledged_in_all += acknowledged[rank];
      died_with_acks += acknowledged[rank] > 0;
    }
    if (HasFailure()) return;
  }
  RecordProperty("acknowledged", std::to_string(acknowledged_in_all));
  EXPECT_GE(died_with_acks, kRounds / 4) << "the kills came too early to test anything";
}

}  // namespace
}  // namespace trimtab::server
