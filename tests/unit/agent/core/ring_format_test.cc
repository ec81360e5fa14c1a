// A file that version 1 wrote stays readable: testdata/ring_v1.txt was written once and is never written again.
#include "agent/core/ring_format.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "tests/unit/agent/core/ring_fixture.h"

namespace trimtab::agent {
namespace {

constexpr uint64_t kGoldenBytes = 606208;

class RingFormatTest : public RingTest {
 protected:
  // Unpacks the text form (rows of 32 bytes that are not zero) into a ring file.
  void Unpack() {
    std::string bytes(kGoldenBytes, '\0');
    std::ifstream file(TRIMTAB_TESTDATA "/ring_v1.txt");
    int rows = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      uint64_t offset = 0;
      std::string hex;
      words >> std::hex >> offset >> hex;
      ASSERT_EQ(hex.size(), 64u);
      for (size_t i = 0; i < 32; ++i)
        bytes[offset + i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
      ++rows;
    }
    ASSERT_GT(rows, 10);
    path_ = dir_ + "/0826 golden.ring";
    const int fd = open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
    ASSERT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    close(fd);
  }
};

TEST_F(RingFormatTest, LayoutIsThatOfVersionOne) {
  EXPECT_EQ(kControlOffset, 4096u);
  EXPECT_EQ(kInfoOffset, 12288u);
  EXPECT_EQ(kDataOffset + kMinRingBytes, kGoldenBytes);
  EXPECT_EQ(offsetof(RingLive, tail), 64u);
  EXPECT_EQ(offsetof(RingLive, state), 128u);
  EXPECT_EQ(offsetof(ControlArea, taken_version), 256u);
  EXPECT_EQ(offsetof(ControlArea, acks), 512u);
  EXPECT_EQ(offsetof(InfoSlot, text), 64u);
  EXPECT_EQ(offsetof(RecordHeader, crc32c), 44u);
}

TEST_F(RingFormatTest, GoldenFileIsRead) {
  Unpack();
  const auto reader = Reader();
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->identity().run, "golden/läuft");
  EXPECT_EQ(reader->identity().rank, 2u);
  EXPECT_EQ(reader->identity().world_size, 4u);
  EXPECT_EQ(reader->identity().local_rank, 1u);
  EXPECT_EQ(reader->identity().incarnation, 0x08062c29f7256c72u);
  EXPECT_TRUE(reader->identity().act);
  EXPECT_TRUE(reader->closed());
  std::string json;
  ASSERT_TRUE(reader->ReadInfo(&json));
  EXPECT_EQ(json, "{\"metadata\":{\"golden\":\"v1\"}}");
  const std::vector<RingAck> acks = reader->ReadAcks(0);
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_EQ(acks[0].plan, 77u);
  EXPECT_EQ(acks[0].state, TRIMTAB_ACK_REFUSED);
  EXPECT_EQ(acks[0].step, 26u);
  EXPECT_EQ(acks[0].reason, "weil nicht möglich");

  RingStep step;
  ASSERT_EQ(reader->Next(&step), ReadResult::kSkipped);
  EXPECT_EQ(reader->dropped_steps(), 4u);
  for (uint64_t sequence = 5; sequence <= 25; ++sequence) {
    ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
    EXPECT_EQ(step.sequence, sequence);
    EXPECT_EQ(step.time_unix_nanos, static_cast<int64_t>(sequence * 1000));
    ASSERT_EQ(step.blocks.size(), 1u);
    EXPECT_EQ(step.blocks[0].count, 360u);
  }
  ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
  EXPECT_EQ(step.step, 26u);
  ASSERT_EQ(step.blocks.size(), 3u);
  EXPECT_EQ(*static_cast<const float*>(step.blocks[0].data), 2.5f);
  const auto* logits = static_cast<const float*>(step.blocks[1].data);
  EXPECT_EQ(logits[1], 2.0f);
  EXPECT_TRUE(std::isnan(logits[2]));
  EXPECT_EQ(logits[4], -INFINITY);
  EXPECT_TRUE(std::signbit(logits[5]));
  EXPECT_EQ(static_cast<const uint64_t*>(step.blocks[2].data)[1], 3u);
  EXPECT_EQ(reader->Next(&step), ReadResult::kEmpty);
}

}  // namespace
}  // namespace trimtab::agent
