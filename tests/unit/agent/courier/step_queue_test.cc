#include "agent/courier/step_queue.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "agent/courier/limits.h"
#include "tests/unit/agent/courier/test_trainer.h"

namespace trimtab::courier {
namespace {

class StepQueueTest : public ::testing::Test {
 protected:
  void Start(uint64_t max_bytes = uint64_t{1} << 30) {
    queue_.reset();
    spool_ = std::make_unique<Spool>(Spool::Options{folder_ / "spool", max_bytes, "here:1"});
    std::vector<std::unique_ptr<SpoolLog>> found = spool_->Adopt(false, kMaxChannels);
    ASSERT_LE(found.size(), 1u);
    v1::Hello hello;
    hello.mutable_rank()->set_run("r");
    hello.mutable_rank()->set_incarnation(7);
    queue_ = std::make_unique<StepQueue>(found.empty() ? spool_->Create(hello) : std::move(found[0]));
  }
  static std::string Encoded(uint64_t sequence, size_t floats) {
    v1::Step step;
    step.set_sequence(sequence);
    step.set_step(sequence * 10);
    for (size_t i = 0; i < floats; ++i) {
      if (i == 0) step.add_blocks();
      step.mutable_blocks(0)->add_float32(1);
    }
    return step.SerializeAsString();
  }
  void Push(uint64_t first, uint64_t last, size_t floats = 100) {
    for (uint64_t i = first; i <= last; ++i) queue_->Push(i, Encoded(i, floats));
  }
  // Sequences of everything that can be sent now.
  std::vector<uint64_t> Send() {
    std::vector<uint64_t> sent;
    v1::StepBatch batch;
    while (queue_->FillBatch(&batch)) {
      for (const v1::Step& step : batch.steps()) {
        EXPECT_EQ(step.step(), step.sequence() * 10);
        sent.push_back(step.sequence());
      }
      batch.Clear();
    }
    return sent;
  }
  static std::vector<uint64_t> Range(uint64_t first, uint64_t last) {
    std::vector<uint64_t> range;
    for (uint64_t i = first; i <= last; ++i) range.push_back(i);
    return range;
  }

  TempFolder folder_;
  std::unique_ptr<Spool> spool_;
  std::unique_ptr<StepQueue> queue_;
};

TEST_F(StepQueueTest, SendsInOrderFromMemoryAndThenIsDelivered) {
  Start();
  Push(1, 10);
  queue_->Resume(0);
  EXPECT_EQ(Send(), Range(1, 10));
  EXPECT_FALSE(queue_->Delivered());
  queue_->Ack(4);
  queue_->Ack(3);    // late
  queue_->Ack(999);  // never sent
  EXPECT_EQ(queue_->acked(), 4u);
  queue_->Ack(10);
  EXPECT_TRUE(queue_->Delivered());
  EXPECT_EQ(queue_->memory_bytes(), 0u);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "spool"));
}

TEST_F(StepQueueTest, SpoolComesBeforeMemoryAndBothAfterAReconnect) {
  Start();
  Push(1, 10);
  ASSERT_TRUE(queue_->Spill().ok());
  Push(11, 15);
  queue_->Resume(0);
  EXPECT_EQ(Send(), Range(1, 15));
  queue_->Ack(5);
  Push(16, 17);
  EXPECT_EQ(Send(), Range(16, 17));
  queue_->Resume(7);  // the stream broke; the server has up to 7
  EXPECT_EQ(Send(), Range(8, 17));
  queue_->Ack(17);
  EXPECT_TRUE(queue_->Delivered());
  EXPECT_TRUE(FilesBelow(folder_.path(), "").empty());
}

TEST_F(StepQueueTest, SpillWhileInFlightKeepsTheOrder) {
  Start();
  Push(1, 6);
  queue_->Resume(0);
  EXPECT_EQ(Send(), Range(1, 6));
  Push(7, 9);
  ASSERT_TRUE(queue_->Spill().ok());
  EXPECT_EQ(queue_->memory_bytes(), 0u);
  EXPECT_EQ(Send(), Range(7, 9));
  queue_->Ack(9);
  EXPECT_TRUE(queue_->Delivered());
}

TEST_F(StepQueueTest, SurvivesTheProcess) {
  Start();
  Push(1, 50);
  ASSERT_TRUE(queue_->Spill().ok());
  Start();  // as after kill -9: nothing was closed in order
  EXPECT_EQ(queue_->last(), 50u);
  EXPECT_EQ(queue_->log().meta().hello().rank().incarnation(), 7u);
  Push(51, 52);
  queue_->Resume(30);
  EXPECT_EQ(Send(), Range(31, 52));
  queue_->Ack(52);
  EXPECT_TRUE(queue_->Delivered());
  EXPECT_TRUE(FilesBelow(folder_.path(), "").empty());
}

TEST_F(StepQueueTest, BatchAndWindowAreBounded) {
  Start();
  const size_t floats = 20'000;  // 80 kB a step
  Push(1, 200, floats);
  queue_->Resume(0);
  v1::StepBatch batch;
  ASSERT_TRUE(queue_->FillBatch(&batch));
  EXPECT_LE(batch.ByteSizeLong(), kMaxBatchBytes + 1000);
  EXPECT_GT(batch.steps_size(), 10);
  const size_t sent = Send().size() + static_cast<size_t>(batch.steps_size());
  EXPECT_LE(sent * floats * 4, kMaxInFlightBytes);
  EXPECT_LT(sent, 200u);
  queue_->Ack(10);  // part of a batch frees nothing
  EXPECT_TRUE(Send().empty());
  queue_->Ack(sent);
  EXPECT_FALSE(Send().empty());
  // Small steps: the number of batches and of steps in one.
  Start();
  Push(1, 20 * kMaxBatchSteps, 1);
  queue_->Resume(0);
  EXPECT_EQ(Send().size(), kMaxInFlightBatches * kMaxBatchSteps);
  // One step above the batch bound goes alone.
  Start();
  Push(1, 2, kMaxBatchBytes / 4 + 10);
  queue_->Resume(0);
  batch.Clear();
  ASSERT_TRUE(queue_->FillBatch(&batch));
  EXPECT_EQ(batch.steps_size(), 1);
}

TEST_F(StepQueueTest, BoundDropsTheOldestAndCountsExactly) {
  Start(kMinSpoolBytes);
  Push(1, 500);
  ASSERT_TRUE(queue_->Spill().ok());
  EXPECT_LE(spool_->bytes(), kMinSpoolBytes);
  EXPECT_EQ(queue_->dropped(), 0u) << "not sure before the server has said what it has";
  queue_->Resume(0);
  const uint64_t dropped = queue_->dropped();
  EXPECT_GT(dropped, 200u);
  EXPECT_EQ(Send(), Range(dropped + 1, 500));
  queue_->Ack(500);
  EXPECT_TRUE(queue_->Delivered());
  EXPECT_EQ(queue_->dropped(), dropped);
}

TEST_F(StepQueueTest, DroppedStepsThatTheServerHadAreNotCounted) {
  Start(kMinSpoolBytes);
  Push(1, 500);
  queue_->Resume(0);
  EXPECT_EQ(Send(), Range(1, 500));
  ASSERT_TRUE(queue_->Spill().ok());  // the stream is broken; acknowledgements were lost
  queue_->Resume(100);
  const std::vector<uint64_t> rest = Send();
  ASSERT_FALSE(rest.empty());
  EXPECT_EQ(queue_->dropped(), rest.front() - 101);
  queue_->Resume(500);
  EXPECT_EQ(queue_->dropped(), rest.front() - 101);
  EXPECT_TRUE(queue_->Delivered());
}

TEST_F(StepQueueTest, DropCountSurvivesTheProcess) {
  Start(kMinSpoolBytes);
  queue_->Resume(0);
  Push(1, 500);
  ASSERT_TRUE(queue_->Spill().ok());
  const uint64_t dropped = queue_->dropped();
  EXPECT_GT(dropped, 200u);
  Start(kMinSpoolBytes);
  EXPECT_EQ(queue_->dropped(), dropped);
  Push(501, 600);
  ASSERT_TRUE(queue_->Spill().ok());
  Start(kMinSpoolBytes);
  queue_->Resume(0);
  EXPECT_EQ(Send(), Range(queue_->dropped() + 1, 600));
}

TEST_F(StepQueueTest, StepAboveTheBoundIsDroppedItself) {
  Start(kMinSpoolBytes);
  queue_->Resume(0);
  Push(1, 1, 1);
  Push(2, 2, kMinSpoolBytes);
  Push(3, 3, 1);
  ASSERT_TRUE(queue_->Spill().ok());
  EXPECT_EQ(queue_->dropped(), 1u);
  EXPECT_EQ(Send(), (std::vector<uint64_t>{1, 3}));
}

TEST_F(StepQueueTest, DamageInTheMiddleIsCountedOnceAndTheRestGoesOn) {
  Start();
  Push(1, 100);
  ASSERT_TRUE(queue_->Spill().ok());
  const std::string segment = FilesBelow(folder_.path(), ".seg").at(0);
  {
    std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(segment) / 2));
    file << std::string(1000, '\xee');
  }
  Start();
  queue_->Resume(0);
  const std::vector<uint64_t> sent = Send();
  EXPECT_LT(sent.size(), 100u);
  EXPECT_GT(sent.size(), 94u);
  EXPECT_EQ(sent.front(), 1u);
  EXPECT_EQ(sent.back(), 100u);
  EXPECT_EQ(queue_->dropped(), 100 - sent.size());
  queue_->Resume(0);
  EXPECT_EQ(Send(), sent);
  EXPECT_EQ(queue_->dropped(), 100 - sent.size()) << "counted once";
  queue_->Ack(100);
  EXPECT_TRUE(queue_->Delivered());
}

TEST_F(StepQueueTest, DamageAtTheEndDoesNotHoldUpTheEnd) {
  Start();
  Push(1, 10);
  ASSERT_TRUE(queue_->Spill().ok());
  const std::string segment = FilesBelow(folder_.path(), ".seg").at(0);
  {
    std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-20, std::ios::end);
    file.put('\xee');
  }
  Start();
  queue_->Resume(0);
  EXPECT_EQ(Send(), Range(1, 9));
  EXPECT_FALSE(queue_->Delivered());
  queue_->Ack(9);
  EXPECT_TRUE(queue_->Delivered());
  EXPECT_EQ(queue_->dropped(), 1u);
  EXPECT_TRUE(FilesBelow(folder_.path(), "").empty());
}

}  // namespace
}  // namespace trimtab::courier
