// A writer that does nothing but commit, killed at random moments: most kills land inside a commit.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <random>
#include <thread>

#include "agent/core/ring_format.h"
#include "tests/unit/agent/core/ring_fixture.h"

namespace trimtab::agent {
namespace {

// Value of cell `cell` of the step's block: any torn or stale word is another number.
uint64_t Cell(uint64_t step, uint64_t cell) { return (step * 0x9E3779B97F4A7C15u) ^ (cell * 0xC2B2AE3D27D4EB4Fu); }

struct Progress {
  std::atomic<bool> open;
  std::atomic<uint64_t> committed;
  char path[kPageBytes];
};

class RingKillTest : public RingTest {
 protected:
  RingKillTest() {
    void* page = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    progress_ = new (page) Progress();
  }
  ~RingKillTest() override { munmap(progress_, sizeof(Progress)); }

  [[noreturn]] void WriteForEver(uint64_t ring_bytes) {
    trimtab_options options = Options();
    options.ring_bytes = ring_bytes;
    if (trimtab_open(&options, &agent_) != TRIMTAB_OK) _exit(1);
    strcpy(progress_->path, trimtab_ring_path(agent_));
    progress_->open.store(true);
    const uint32_t metric = trimtab_metric_id("attention_rows");
    std::vector<uint64_t> cells(64 * 16);
    for (uint64_t step = 1;; ++step) {
      const uint32_t layers = static_cast<uint32_t>(1 + step % 64);
      for (uint64_t i = 0; i < layers * 16; ++i) cells[i] = Cell(step, i);
      trimtab_step_begin(agent_, step, 0);
      trimtab_step_put_u64(agent_, metric, cells.data(), layers, 16);
      if (trimtab_step_commit(agent_) != TRIMTAB_OK) _exit(2);
      progress_->committed.store(step, std::memory_order_release);
    }
  }

  Progress* progress_;
};

TEST_F(RingKillTest, WhatWasCommittedIsReadableInOrderAndWhole) {
  std::mt19937 random(11);
  for (int kill_number = 0; kill_number < 40; ++kill_number) {
    progress_->open.store(false);
    progress_->committed.store(0);
    const pid_t pid = fork();
    if (pid == 0) WriteForEver(kMinRingBytes);
    while (!progress_->open.load()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    kill(pid, SIGKILL);
    int status = 0;
    waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    const uint64_t committed = progress_->committed.load(std::memory_order_acquire);

    path_ = progress_->path;
    const auto reader = Reader();
    EXPECT_FALSE(reader->writer_alive());
    EXPECT_FALSE(reader->closed());
    RingStep step;
    uint64_t first = 0;
    uint64_t last = 0;
    for (ReadResult result; (result = reader->Next(&step)) != ReadResult::kEmpty;) {
      ASSERT_NE(result, ReadResult::kCorrupt) << reader->error();
      if (result == ReadResult::kSkipped) {
        ASSERT_EQ(first, 0u) << "a hole after step " << last;
        continue;
      }
      if (first == 0) first = step.sequence;
      ASSERT_EQ(step.sequence, last == 0 ? first : last + 1);
      ASSERT_EQ(step.step, step.sequence);
      ASSERT_EQ(step.blocks.size(), 1u);
      const auto* cells = static_cast<const uint64_t*>(step.blocks[0].data);
      for (uint64_t i = 0; i < step.blocks[0].count; ++i) ASSERT_EQ(cells[i], Cell(step.step, i));
      last = step.sequence;
    }
    EXPECT_GE(last, committed);
    EXPECT_LE(last, committed + 1);
    // A mean record has 4.2 KB; the ring keeps all but what the next record and its padding needed.
    if (committed > 100) {
      EXPECT_GE(last - first, 4u);
    }
    std::filesystem::remove(path_);
  }
}

}  // namespace
}  // namespace trimtab::agent
