#include "server/http/request_queue.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

namespace trimtab::server {
namespace {

TEST(RequestQueue, RunsEverythingBeforeItEnds) {
  std::atomic<uint64_t> delayed{0};
  std::atomic<int> done{0};
  RequestQueue queue(4, 8, &delayed);
  for (int i = 0; i < 1000; ++i) queue.enqueue([&] { ++done; });
  queue.shutdown();
  EXPECT_EQ(done, 1000);
}

TEST(RequestQueue, WaitsAtItsBoundAndCountsIt) {
  std::atomic<uint64_t> delayed{0};
  std::atomic<int> done{0};
  absl::Notification started, release;
  RequestQueue queue(1, 2, &delayed);
  queue.enqueue([&] {
    started.Notify();
    release.WaitForNotification();
    ++done;
  });
  started.WaitForNotification();
  queue.enqueue([&] { ++done; });
  queue.enqueue([&] { ++done; });  // full now
  EXPECT_EQ(delayed, 0U);
  std::thread producer([&] { queue.enqueue([&] { ++done; }); });
  while (delayed == 0) std::this_thread::yield();
  EXPECT_EQ(done, 0);
  release.Notify();
  producer.join();
  queue.shutdown();
  EXPECT_EQ(done, 4);
  EXPECT_EQ(delayed, 1U);
}

TEST(RequestQueue, ZeroMeansOne) {
  std::atomic<uint64_t> delayed{0};
  std::atomic<int> done{0};
  RequestQueue queue(0, 0, &delayed);
  queue.enqueue([&] { ++done; });
  queue.shutdown();
  queue.shutdown();
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace trimtab::server
