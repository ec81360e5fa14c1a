// Writer and reader at full speed on one file, also under the thread sanitizer.
#include <atomic>
#include <thread>

#include "agent/core/ring_format.h"
#include "tests/unit/agent/core/ring_fixture.h"

namespace trimtab::agent {
namespace {

class RingStressTest : public RingTest, public testing::WithParamInterface<uint64_t> {};

TEST_P(RingStressTest, EveryStepIsReadOnceOrCountedAsDropped) {
  constexpr uint64_t kSteps = 60000;
  trimtab_options options = Options();
  options.ring_bytes = GetParam();
  options.act = 1;
  Open(options);
  std::atomic<bool> done{false};
  uint64_t taken = 0;
  std::thread writer([&] {
    std::vector<uint64_t> cells(32 * 8);
    for (uint64_t step = 1; step <= kSteps; ++step) {
      const uint32_t layers = static_cast<uint32_t>(1 + step * 7 % 32);
      for (uint64_t i = 0; i < cells.size(); ++i) cells[i] = step * 1000 + i;
      trimtab_step_begin(agent_, step, 0);
      trimtab_step_put_u64(agent_, trimtab_metric_id("attention_rows"), cells.data(), layers, 8);
      ASSERT_EQ(trimtab_step_commit(agent_), TRIMTAB_OK);
      trimtab_command command;
      if (trimtab_poll_command(agent_, &command) != 0) {
        ASSERT_EQ(command.plan * 3, command.effective_step) << "a torn command was taken";
        ASSERT_EQ(command.layers[5], static_cast<uint8_t>(command.plan));
        trimtab_ack(agent_, command.plan, TRIMTAB_ACK_PREPARED, step, "reason");
        ++taken;
      }
      if (step % 100 == 0) {
        const std::string info = "{\"n\":" + std::string(step % 1000, '1') + "}";
        ASSERT_EQ(trimtab_set_info(agent_, info.data(), info.size()), TRIMTAB_OK);
      }
    }
    done.store(true, std::memory_order_release);
  });

  const auto reader = Reader();
  RingStep step;
  uint64_t read = 0, last = 0, plan = 0, last_ack = 0;
  std::string info;
  for (bool finished = false; !finished;) {
    finished = done.load(std::memory_order_acquire);
    for (ReadResult result; (result = reader->Next(&step)) != ReadResult::kEmpty;) {
      ASSERT_NE(result, ReadResult::kCorrupt) << reader->error();
      if (result == ReadResult::kSkipped) continue;
      ASSERT_GT(step.sequence, last);
      last = step.sequence;
      ++read;
      ASSERT_EQ(step.blocks.size(), 1u);
      ASSERT_EQ(step.blocks[0].shape[0], 1 + step.step * 7 % 32);
      const auto* cells = static_cast<const uint64_t*>(step.blocks[0].data);
      for (uint64_t i = 0; i < step.blocks[0].count; ++i) ASSERT_EQ(cells[i], step.step * 1000 + i);
    }
    trimtab_command command = {};
    command.plan = ++plan;
    command.phase = TRIMTAB_PHASE_PREPARE;
    command.mode = TRIMTAB_MODE_PAPER;
    command.effective_step = plan * 3;
    command.layers[5] = static_cast<uint8_t>(plan);
    reader->WriteCommand(command);
    for (const RingAck& ack : reader->ReadAcks(last_ack)) {
      ASSERT_LE(ack.plan, plan);
      ASSERT_EQ(ack.reason, "reason");
      last_ack = ack.index;
    }
    if (reader->ReadInfo(&info)) {
      ASSERT_EQ(info.find_first_not_of("{\"n:1}"), std::string::npos);
    }
  }
  writer.join();
  EXPECT_EQ(last, kSteps);
  EXPECT_EQ(read + reader->dropped_steps(), kSteps);
  EXPECT_EQ(reader->last_sequence(), kSteps);
  EXPECT_GT(taken, 0u);
}

INSTANTIATE_TEST_SUITE_P(Rings, RingStressTest, testing::Values(kMinRingBytes, kDefaultRingBytes));

}  // namespace
}  // namespace trimtab::agent
