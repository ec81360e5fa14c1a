// What the writer commits is what the reader reads.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <limits>

#include "agent/core/ring_format.h"
#include "tests/unit/agent/core/ring_fixture.h"

namespace trimtab::agent {
namespace {

TEST_F(RingTest, HeaderSaysWhoWrites) {
  trimtab_options options = Options();
  options.run = "läufe/\"7\"";
  options.rank = 3;
  options.world_size = 8;
  options.local_rank = 1;
  options.act = 1;
  Open(options);
  const auto reader = Reader();
  const RingIdentity& identity = reader->identity();
  EXPECT_EQ(identity.run, "läufe/\"7\"");
  EXPECT_EQ(identity.rank, 3u);
  EXPECT_EQ(identity.world_size, 8u);
  EXPECT_EQ(identity.local_rank, 1u);
  EXPECT_TRUE(identity.act);
  EXPECT_EQ(identity.pid, static_cast<uint32_t>(getpid()));
  EXPECT_NE(identity.incarnation, 0u);
  EXPECT_FALSE(identity.host.empty());
  EXPECT_TRUE(reader->writer_alive());
  EXPECT_FALSE(reader->closed());
  char name[64];
  std::snprintf(name, sizeof(name), "%016llx-3.ring", static_cast<unsigned long long>(identity.incarnation));
  EXPECT_EQ(std::filesystem::path(path_).filename(), name);
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, static_cast<uint64_t>(info.st_size)) << "sparse";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1) << "a temporary file was left";
}

TEST_F(RingTest, ReadsBackEveryValueBitForBit) {
  Open(Options());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {nan, inf, -inf, -0.0f, 1e-45f, 3.0f};
  const std::vector<uint64_t> rows = {std::numeric_limits<uint64_t>::max(), 0, 1, 2, 3, 4};
  const std::vector<uint64_t> modes = {1, 2, 3};
  const float loss = -2.5f;
  ASSERT_EQ(trimtab_step_begin(agent_, 41, -7), TRIMTAB_OK);
  ASSERT_EQ(trimtab_step_put_f32(agent_, trimtab_metric_id("loss"), &loss, 0, 0), TRIMTAB_OK);
  ASSERT_EQ(trimtab_step_put_f32(agent_, trimtab_metric_id("max_attention_logit"), logits.data(), 3, 2), TRIMTAB_OK);
  ASSERT_EQ(trimtab_step_put_u64(agent_, trimtab_metric_id("attention_rows"), rows.data(), 2, 3), TRIMTAB_OK);
  ASSERT_EQ(trimtab_step_put_u64(agent_, trimtab_metric_id("attention_mode"), modes.data(), 3, 0), TRIMTAB_OK);
  ASSERT_EQ(trimtab_step_commit(agent_), TRIMTAB_OK);

  const auto reader = Reader();
  RingStep step;
  ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
  EXPECT_EQ(step.sequence, 1u);
  EXPECT_EQ(step.step, 41u);
  EXPECT_EQ(step.time_unix_nanos, -7);
  ASSERT_EQ(step.blocks.size(), 4u);
  EXPECT_EQ(step.blocks[0].dims, 0u);
  EXPECT_EQ(step.blocks[0].count, 1u);
  EXPECT_EQ(*static_cast<const float*>(step.blocks[0].data), loss);
  EXPECT_EQ(step.blocks[1].dims, 2u);
  EXPECT_EQ(step.blocks[1].shape[0], 3u);
  EXPECT_EQ(step.blocks[1].shape[1], 2u);
  ASSERT_EQ(step.blocks[1].count, logits.size());
  EXPECT_EQ(std::memcmp(step.blocks[1].data, logits.data(), logits.size() * sizeof(float)), 0);
  EXPECT_TRUE(step.blocks[2].is_uint64);
  EXPECT_EQ(std::memcmp(step.blocks[2].data, rows.data(), rows.size() * sizeof(uint64_t)), 0);
  EXPECT_EQ(step.blocks[3].dims, 1u);
  for (const RingBlock& block : step.blocks) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data) % 8, 0u);
    EXPECT_GE(static_cast<const uint8_t*>(block.data), step.buffer.data());
    EXPECT_LE(static_cast<const uint8_t*>(block.data) + block.count * (block.is_uint64 ? 8 : 4),
              step.buffer.data() + step.buffer.size());
  }
  EXPECT_EQ(reader->Next(&step), ReadResult::kEmpty);
  EXPECT_EQ(reader->dropped_steps(), 0u);
}

TEST_F(RingTest, EmptyStepAndEmptyRing) {
  Open(Options());
  const auto reader = Reader();
  RingStep step;
  EXPECT_EQ(reader->Next(&step), ReadResult::kEmpty);
  EXPECT_EQ(reader->last_sequence(), 0u);
  ASSERT_EQ(trimtab_step_begin(agent_, 0, 0), TRIMTAB_OK);
  EXPECT_EQ(reader->Next(&step), ReadResult::kEmpty);
  ASSERT_EQ(trimtab_step_commit(agent_), TRIMTAB_OK);
  ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
  EXPECT_TRUE(step.blocks.empty());
  EXPECT_EQ(reader->last_sequence(), 1u);
}

TEST_F(RingTest, UncommittedStepIsInvisibleAndBeginDiscardsIt) {
  Open(Options());
  const float loss = 1.0f;
  ASSERT_EQ(trimtab_step_begin(agent_, 1, 0), TRIMTAB_OK);
  ASSERT_EQ(trimtab_step_put_f32(agent_, 1, &loss, 0, 0), TRIMTAB_OK);
  ASSERT_EQ(trimtab_step_begin(agent_, 2, 0), TRIMTAB_OK);
  ASSERT_EQ(trimtab_step_commit(agent_), TRIMTAB_OK);
  const auto reader = Reader();
  RingStep step;
  ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
  EXPECT_EQ(step.step, 2u);
  EXPECT_TRUE(step.blocks.empty());
  EXPECT_EQ(reader->Next(&step), ReadResult::kEmpty);
}

TEST_F(RingTest, SeekAfterSkipsWhatIsDurable) {
  Open(Options());
  for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(CommitStep(i), TRIMTAB_OK);
  const auto reader = Reader();
  RingStep step;
  reader->SeekAfter(15);
  for (uint64_t sequence = 16; sequence <= 20; ++sequence) {
    ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
    EXPECT_EQ(step.sequence, sequence);
  }
  EXPECT_EQ(reader->Next(&step), ReadResult::kEmpty);
  reader->SeekAfter(0);
  ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
  EXPECT_EQ(step.sequence, 1u);
  reader->SeekAfter(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(reader->Next(&step), ReadResult::kEmpty);
  EXPECT_EQ(reader->dropped_steps(), 0u);
}

TEST_F(RingTest, OverwritesTheOldestAndCountsExactly) {
  trimtab_options options = Options();
  options.ring_bytes = kMinRingBytes;
  Open(options);
  // 48 + (16 + 8) + (16 + 8·16·4) = 600 bytes, 640 in the ring: 102 fit, less what padding at the end takes.
  const uint64_t kSteps = 1000;
  const uint64_t kRecord = 640;
  for (uint64_t i = 1; i <= kSteps; ++i) ASSERT_EQ(CommitStep(i, 8, 16), TRIMTAB_OK);
  const auto reader = Reader();
  RingStep step;
  ASSERT_EQ(reader->Next(&step), ReadResult::kSkipped);
  uint64_t first = 0;
  uint64_t expected = 0;
  uint64_t read = 0;
  while (reader->Next(&step) == ReadResult::kStep) {
    if (first == 0) expected = first = step.sequence;
    EXPECT_EQ(step.sequence, expected++);
    EXPECT_EQ(step.step, step.sequence);
    EXPECT_EQ(static_cast<const float*>(step.blocks[1].data)[127], static_cast<float>(step.step));
    ++read;
  }
  EXPECT_EQ(expected, kSteps + 1);
  EXPECT_EQ(reader->dropped_steps(), first - 1);
  EXPECT_EQ(reader->dropped_steps() + read, kSteps);
  EXPECT_GE(read, kMinRingBytes / kRecord - 2);
  EXPECT_LE(read, kMinRingBytes / kRecord);
}

TEST_F(RingTest, ReaderThatIsLappedResumesAtTheOldest) {
  trimtab_options options = Options();
  options.ring_bytes = kMinRingBytes;
  Open(options);
  const auto reader = Reader();
  RingStep step;
  uint64_t read = 0;
  uint64_t last = 0;
  for (uint64_t i = 1; i <= 3000; ++i) {
    ASSERT_EQ(CommitStep(i, 1 + i % 7, 1 + i % 31), TRIMTAB_OK);
    if (i % 700 != 0) continue;
    for (ReadResult result; (result = reader->Next(&step)) != ReadResult::kEmpty;) {
      ASSERT_NE(result, ReadResult::kCorrupt) << reader->error();
      if (result == ReadResult::kSkipped) continue;
      EXPECT_GT(step.sequence, last);
      last = step.sequence;
      ++read;
    }
    EXPECT_EQ(last, i);
    EXPECT_EQ(reader->dropped_steps() + read, i);
  }
  EXPECT_GT(reader->dropped_steps(), 0u);
}

TEST_F(RingTest, RecordOverAQuarterOfTheRingIsRefusedAndCounted) {
  trimtab_options options = Options();
  options.ring_bytes = kMinRingBytes;  // records up to 16,384 bytes
  Open(options);
  const std::vector<float> data(4096, 1.0f);
  const uint32_t logit = trimtab_metric_id("max_attention_logit");
  // 48 + 16 + 4·4080 = 16,384: the largest that fits.
  ASSERT_EQ(trimtab_step_begin(agent_, 1, 0), TRIMTAB_OK);
  EXPECT_EQ(trimtab_step_put_f32(agent_, logit, data.data(), 255, 16), TRIMTAB_OK);
  EXPECT_EQ(trimtab_step_commit(agent_), TRIMTAB_OK);
  ASSERT_EQ(trimtab_step_begin(agent_, 2, 0), TRIMTAB_OK);
  EXPECT_EQ(trimtab_step_put_f32(agent_, logit, data.data(), 256, 16), TRIMTAB_FULL);
  EXPECT_EQ(trimtab_step_put_f32(agent_, 1, data.data(), 0, 0), TRIMTAB_FULL) << "a spoilt step stays spoilt";
  EXPECT_EQ(trimtab_step_commit(agent_), TRIMTAB_FULL);
  EXPECT_THAT(std::string(trimtab_last_error()), testing::HasSubstr("ring_bytes"));
  EXPECT_EQ(trimtab_dropped_steps(agent_), 1u);
  ASSERT_EQ(CommitStep(3), TRIMTAB_OK);

  const auto reader = Reader();
  EXPECT_EQ(reader->refused_steps(), 1u);
  RingStep step;
  ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
  EXPECT_EQ(step.blocks[0].count, 4080u);
  ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
  EXPECT_EQ(step.step, 3u);
  EXPECT_EQ(step.sequence, 2u) << "a refused step takes no sequence";
}

TEST_F(RingTest, InfoTextIsReplacedWhole) {
  trimtab_options options = Options();
  options.info_json = "{\"run\":\"first\"}";
  Open(options);
  const auto reader = Reader();
  std::string json;
  ASSERT_TRUE(reader->ReadInfo(&json));
  EXPECT_EQ(json, "{\"run\":\"first\"}");
  EXPECT_FALSE(reader->ReadInfo(&json));
  for (const size_t bytes : {size_t{2}, size_t{1000}, size_t{kMaxInfoBytes}}) {
    const std::string text = "{" + std::string(bytes - 2, ' ') + "}";
    ASSERT_EQ(trimtab_set_info(agent_, text.data(), text.size()), TRIMTAB_OK);
    ASSERT_TRUE(reader->ReadInfo(&json));
    EXPECT_EQ(json, text);
  }
}

TEST_F(RingTest, CloseIsSeenAndLeavesTheFile) {
  Open(Options());
  ASSERT_EQ(CommitStep(5), TRIMTAB_OK);
  const auto before = Reader();
  Close();
  EXPECT_TRUE(before->closed());
  const auto after = Reader();
  RingStep step;
  ASSERT_EQ(after->Next(&step), ReadResult::kStep);
  EXPECT_EQ(step.step, 5u);
}

TEST_F(RingTest, TwoIncarnationsOfOneRankHaveTwoFiles) {
  Open(Options());
  const std::string first = path_;
  Close();
  Open(Options());
  EXPECT_NE(path_, first);
  EXPECT_TRUE(std::filesystem::exists(first));
}

}  // namespace
}  // namespace trimtab::agent
