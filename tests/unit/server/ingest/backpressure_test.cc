// A writer that is slower than the couriers: nothing is lost, memory stays bounded, reading stops and resumes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/test_courier.h"
#include "tests/unit/server/support/test_server.h"

namespace trimtab::server {
namespace {

constexpr size_t kQueueBytes = size_t{256} << 10;
constexpr uint32_t kCouriers = 4;
constexpr uint64_t kSteps = 60;

TEST(BackPressureTest, AFullQueueStopsReadingAndLosesNothing) {
  TempDir folder;
  TestServer server(folder.path(), {.queue_bytes = kQueueBytes, .max_commit_bytes = 64 << 10});
  const std::vector<float> values(64 * 256, 1.0F);  // 64 KiB a step
  std::atomic<bool> done{false};
  std::atomic<size_t> most{0};
  std::thread watcher([&] {
    while (!done) most = std::max<size_t>(most, server.ingest->statistics().queue_bytes);
  });
  std::vector<std::unique_ptr<TestCourier>> couriers(kCouriers);
  std::vector<std::thread> senders;
  for (uint32_t rank = 0; rank < kCouriers; ++rank) {
    couriers[rank] = std::make_unique<TestCourier>(server.address());
    senders.emplace_back([&, rank] {
      couriers[rank]->Send(HelloMessage(1, Info("run", rank, kCouriers)));
      for (uint64_t s = 1; s <= kSteps; ++s) {
        v1::Step step = LossStep(s, s, static_cast<float>(s));
        *step.add_blocks() = Floats(kMaxLogit, {64, 256}, values);
        ASSERT_TRUE(couriers[rank]->Send(StepsMessage(1, {step})));
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  for (uint32_t rank = 0; rank < kCouriers; ++rank) {
    EXPECT_TRUE(couriers[rank]->WaitDurable(1, kSteps));
    EXPECT_EQ(*server.store->CountRows("run", "max_attention_logit", rank, 0, 0), kSteps);
  }
  done = true;
  watcher.join();
  EXPECT_GT(server.ingest->statistics().pauses, 0);
  const size_t one_message = 66 << 10;
  EXPECT_LE(most, kQueueBytes + kCouriers * one_message);
  EXPECT_TRUE(Eventually([&] { return server.ingest->statistics().queue_bytes == 0; }));
}

TEST(BackPressureTest, ManyMessagesShareACommit) {
  TempDir folder;
  TestServer server(folder.path());
  TestCourier courier(server.address());
  courier.Send(HelloMessage(1, Info("run")));
  ASSERT_TRUE(courier.WaitWelcome(1));
  constexpr uint64_t kMany = 2000;
  for (uint64_t s = 1; s <= kMany; ++s) ASSERT_TRUE(courier.Send(StepsMessage(1, {LossStep(s, s, 1)})));
  ASSERT_TRUE(courier.WaitDurable(1, kMany));
  EXPECT_EQ(*server.store->CountRows("run", "loss", 0, 0, 0), kMany);
  EXPECT_LT(server.ingest->statistics().commits, kMany);
}

}  // namespace
}  // namespace trimtab::server
