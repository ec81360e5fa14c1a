#include "agent/courier/spool_segment.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/agent/courier/test_trainer.h"

namespace trimtab::courier {
namespace {

class SpoolSegmentTest : public ::testing::Test {
 protected:
  // Records 1..count, each of 100 bytes.
  void Write(uint64_t count) {
    absl::StatusOr<SegmentWriter> writer = SegmentWriter::Create(path_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (uint64_t i = 1; i <= count; ++i) ASSERT_TRUE(writer->Append(i, Payload(i)).ok());
    bytes_ = writer->bytes();
  }
  static std::string Payload(uint64_t i) { return std::string(100, static_cast<char>('a' + i % 26)); }
  static uint64_t OffsetOf(uint64_t record) { return kSegmentHeaderBytes + (record - 1) * (kRecordHeaderBytes + 100); }
  void Damage(uint64_t offset, char byte) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }
  std::vector<uint64_t> ReadAll(uint64_t* damage = nullptr) {
    std::vector<uint64_t> sequences;
    absl::StatusOr<SegmentReader> reader = SegmentReader::Open(path_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    uint64_t sequence = 0;
    std::string payload;
    while (reader->Next(&sequence, &payload) == SegmentReader::Result::kRecord) {
      EXPECT_EQ(payload, Payload(sequence));
      sequences.push_back(sequence);
    }
    if (damage != nullptr) *damage = reader->damage();
    return sequences;
  }

  TempFolder folder_;
  std::string path_ = folder_ / "one.seg";
  uint64_t bytes_ = 0;
};

TEST_F(SpoolSegmentTest, ReadsBackWhatWasWritten) {
  Write(5);
  EXPECT_EQ(ReadAll(), (std::vector<uint64_t>{1, 2, 3, 4, 5}));
}

TEST_F(SpoolSegmentTest, ReaderSeesRecordsAppendedAfterItsEnd) {
  absl::StatusOr<SegmentWriter> writer = SegmentWriter::Create(path_);
  absl::StatusOr<SegmentReader> reader = SegmentReader::Open(path_);
  ASSERT_TRUE(writer.ok() && reader.ok());
  uint64_t sequence = 0;
  std::string payload;
  EXPECT_EQ(reader->Next(&sequence, &payload), SegmentReader::Result::kEnd);
  ASSERT_TRUE(writer->Append(9, "nine").ok());
  EXPECT_EQ(reader->Next(&sequence, &payload), SegmentReader::Result::kRecord);
  EXPECT_EQ(sequence, 9u);
  EXPECT_EQ(payload, "nine");
  EXPECT_EQ(reader->Next(&sequence, &payload), SegmentReader::Result::kEnd);
}

TEST_F(SpoolSegmentTest, EveryCutTailCostsOnlyTheRecordThatWasCut) {
  for (uint64_t cut = 1; cut < kRecordHeaderBytes + 100; cut += 7) {
    std::filesystem::remove(path_);
    Write(3);
    std::filesystem::resize_file(path_, bytes_ - cut);
    uint64_t damage = 9;
    EXPECT_EQ(ReadAll(&damage), (std::vector<uint64_t>{1, 2})) << "cut by " << cut;
    EXPECT_EQ(damage, 0u);
  }
}

TEST_F(SpoolSegmentTest, DamageAnywhereCostsOnlyTheRecordItHits) {
  for (uint64_t at = 0; at < kRecordHeaderBytes + 100; ++at) {
    std::filesystem::remove(path_);
    Write(4);
    Damage(OffsetOf(2) + at, '\x7f');
    uint64_t damage = 0;
    EXPECT_EQ(ReadAll(&damage), (std::vector<uint64_t>{1, 3, 4})) << "at byte " << at;
    EXPECT_EQ(damage, 1u);
  }
}

TEST_F(SpoolSegmentTest, DamagedLastRecordEndsTheFile) {
  Write(3);
  Damage(OffsetOf(3) + kRecordHeaderBytes + 50, '\x7f');
  uint64_t damage = 0;
  EXPECT_EQ(ReadAll(&damage), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(damage, 1u);
}

TEST_F(SpoolSegmentTest, FindsRecordsBehindAnyStretchOfRubbish) {
  Write(2);
  {
    std::ofstream file(path_, std::ios::app | std::ios::binary);
    file << std::string(200'001, 'T');
  }
  absl::StatusOr<SegmentWriter> other = SegmentWriter::Create(folder_ / "two.seg");
  ASSERT_TRUE(other.ok() && other->Append(3, Payload(3)).ok());
  std::ifstream in(folder_ / "two.seg", std::ios::binary);
  in.seekg(kSegmentHeaderBytes);
  std::ofstream(path_, std::ios::app | std::ios::binary) << in.rdbuf();
  EXPECT_EQ(ReadAll(), (std::vector<uint64_t>{1, 2, 3}));
}

TEST_F(SpoolSegmentTest, RefusesWhatIsNotASegment) {
  EXPECT_FALSE(SegmentReader::Open(path_).ok());
  std::ofstream(path_) << "TTSPOOL";
  EXPECT_FALSE(SegmentReader::Open(path_).ok());
  std::ofstream(path_) << std::string(64, 'x');
  EXPECT_FALSE(SegmentReader::Open(path_).ok());
  std::filesystem::remove(path_);
  Write(1);
  Damage(8, 2);  // version
  EXPECT_EQ(SegmentReader::Open(path_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SegmentWriter::Create(path_).status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace trimtab::courier
