// A ring folder, a spool folder, a store and a server, for tests of the whole courier.
#ifndef TRIMTAB_TESTS_UNIT_AGENT_COURIER_COURIER_FIXTURE_H_
#define TRIMTAB_TESTS_UNIT_AGENT_COURIER_COURIER_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "agent/courier/spool_segment.h"
#include "tests/unit/agent/courier/courier_runner.h"
#include "tests/unit/agent/courier/test_server.h"
#include "tests/unit/agent/courier/test_trainer.h"

namespace trimtab::courier {

class CourierFixture : public ::testing::Test {
 protected:
  CourierFixture() : server_(std::make_unique<TestServer>(&store_, 0)), port_(server_->port()) {}

  Options MakeOptions() { return TestOptions("127.0.0.1:" + std::to_string(port_), rings_.path(), spool_dir()); }
  std::string spool_dir() const { return folder_ / "spool"; }

  void StopServer() { server_.reset(); }
  void StartServer() {
    server_ = std::make_unique<TestServer>(&store_, port_);
    ASSERT_EQ(server_->port(), port_) << "the port was taken meanwhile";
  }

  // Every sequence from 1 to `count` is stored, with the content that was written (step == sequence).
  void ExpectAll(uint32_t rank, uint64_t count) {
    std::lock_guard<std::mutex> lock(store_.mutex);
    ServerStore::Rank* found = store_.Find(rank);
    ASSERT_NE(found, nullptr);
    ASSERT_EQ(found->steps.size(), count);
    EXPECT_EQ(found->steps.begin()->first, 1u);
    EXPECT_EQ(found->steps.rbegin()->first, count);
    ExpectContent(*found);
    EXPECT_EQ(found->ring_dropped, 0u);
  }
  static void ExpectContent(const ServerStore::Rank& rank) {
    for (const auto& [sequence, step] : rank.steps) {
      EXPECT_EQ(step.step(), sequence);
      ExpectStep(step);
    }
  }
  bool WaitSteps(uint32_t rank, uint64_t count) {
    return store_.WaitFor([&] { return store_.Steps(rank) >= count; });
  }
  static bool WaitUntil(const std::function<bool()>& ready) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!ready()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  // The newest sequence in the spool's files; 0 without one.
  uint64_t NewestSpooled() const {
    uint64_t newest = 0;
    std::vector<std::string> files = FilesBelow(spool_dir(), ".seg");
    std::sort(files.begin(), files.end());
    for (const std::string& path : files) {
      auto reader = SegmentReader::Open(path);
      uint64_t sequence = 0;
      while (reader.ok() && reader->Next(&sequence, nullptr) == SegmentReader::Result::kRecord) {
        newest = std::max(newest, sequence);
      }
    }
    return newest;
  }
  // Writes steps first..last, never further ahead of the spool than `slack` and a burst.
  void WriteSpooled(TestTrainer* trainer, uint64_t first, uint64_t last, uint64_t burst = 100, uint64_t slack = 0) {
    for (uint64_t step = first; step <= last; ++step) {
      trainer->Step(step);
      if (step % burst == 0 || step == last) {
        ASSERT_TRUE(WaitUntil([&] { return NewestSpooled() + slack >= step; })) << "step " << step;
      }
    }
  }

  TempFolder rings_;
  TempFolder folder_;
  ServerStore store_;
  std::unique_ptr<TestServer> server_;
  int port_;
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_TESTS_UNIT_AGENT_COURIER_COURIER_FIXTURE_H_
