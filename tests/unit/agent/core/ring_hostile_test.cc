// Files that lie: what exactly the reader says to each. Random ones are played by tests/fuzz.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "agent/core/crc32c.h"
#include "agent/core/ring_format.h"
#include "tests/unit/agent/core/ring_fixture.h"

namespace trimtab::agent {
namespace {

using testing::HasSubstr;

class RingHostileTest : public RingTest {
 protected:
  void SetUp() override {
    trimtab_options options = Options();
    options.ring_bytes = kMinRingBytes;
    options.info_json = "{\"a\":1}";
    Open(options);
    for (uint64_t i = 1; i <= 20; ++i) ASSERT_EQ(CommitStep(i), TRIMTAB_OK);
    std::ifstream file(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    ASSERT_EQ(bytes_.size(), kDataOffset + kMinRingBytes);
  }

  // Writes `bytes_` as a new file and opens it; an error's text goes to message_.
  std::unique_ptr<RingReader> OpenCopy(RingError* error) {
    path_ = dir_ + "/copy.ring";
    unlink(path_.c_str());
    const int fd = open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
    EXPECT_EQ(write(fd, bytes_.data(), bytes_.size()), static_cast<ssize_t>(bytes_.size()));
    close(fd);
    return RingReader::Open(path_, error, &message_);
  }
  RingError OpenError() {
    RingError error = RingError::kOk;
    const auto reader = OpenCopy(&error);
    EXPECT_EQ(reader == nullptr, error != RingError::kOk);
    return error;
  }

  template <typename T>
  void Set(uint64_t offset, T value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof(value));
  }
  template <typename T>
  T Get(uint64_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(value));
    return value;
  }
  void ForgeHeader() {
    Set<uint32_t>(offsetof(RingHeader, crc32c), 0);
    Set<uint32_t>(offsetof(RingHeader, crc32c), Crc32c(0, bytes_.data(), sizeof(RingHeader)));
  }
  // Offset in the file of the record with this sequence (all records of this file have the same size).
  uint64_t Record(uint64_t sequence) const {
    return kDataOffset + (sequence - 1) * Get<uint32_t>(kDataOffset + offsetof(RecordHeader, bytes));
  }
  void ForgeRecord(uint64_t sequence) {
    const uint64_t at = Record(sequence);
    Set<uint32_t>(at + offsetof(RecordHeader, crc32c), 0);
    const uint32_t bytes = Get<uint32_t>(at + offsetof(RecordHeader, bytes));
    Set<uint32_t>(at + offsetof(RecordHeader, crc32c), Crc32c(0, bytes_.data() + at, bytes));
  }
  // Sequences that the copy gives, and how often Next said kSkipped.
  std::vector<uint64_t> Drain(RingReader* reader, int* skips, ReadResult* end) {
    std::vector<uint64_t> sequences;
    RingStep step;
    *skips = 0;
    while ((*end = reader->Next(&step)) == ReadResult::kStep || *end == ReadResult::kSkipped) {
      if (*end == ReadResult::kSkipped) {
        ++*skips;
      } else {
        sequences.push_back(step.sequence);
      }
    }
    return sequences;
  }
  // The copy loses exactly the record of sequence 5, whatever was done to it.
  void ExpectOnlyFiveIsLost(const char* what) {
    RingError error;
    const auto reader = OpenCopy(&error);
    ASSERT_NE(reader, nullptr) << what << message_;
    int skips = 0;
    ReadResult end;
    const std::vector<uint64_t> sequences = Drain(reader.get(), &skips, &end);
    EXPECT_EQ(end, ReadResult::kEmpty) << what;
    EXPECT_EQ(sequences.size(), 19u) << what;
    EXPECT_EQ(std::count(sequences.begin(), sequences.end(), 5u), 0) << what;
    EXPECT_EQ(reader->dropped_steps(), 1u) << what;
    EXPECT_GE(skips, 1) << what;
  }

  std::vector<char> bytes_;
  std::string message_;
};

TEST_F(RingHostileTest, FilesThatAreNoRing) {
  std::string message;
  RingError error;
  EXPECT_EQ(RingReader::Open(dir_ + "/none.ring", &error, &message), nullptr);
  EXPECT_EQ(error, RingError::kNotFound);
  const std::string link = dir_ + "/link.ring";
  ASSERT_EQ(symlink(path_.c_str(), link.c_str()), 0);
  EXPECT_EQ(RingReader::Open(link, &error, &message), nullptr);
  EXPECT_EQ(error, RingError::kIo);
  EXPECT_THAT(message, HasSubstr("symbolic link"));
  const std::string fifo = dir_ + "/fifo.ring";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(RingReader::Open(fifo, &error, &message), nullptr);
  EXPECT_THAT(message, HasSubstr("regular file"));
  EXPECT_EQ(RingReader::Open(dir_, &error, &message), nullptr);
  EXPECT_EQ(error, RingError::kIo);
  ASSERT_EQ(chmod(path_.c_str(), 0620), 0);
  EXPECT_EQ(RingReader::Open(path_, &error, &message), nullptr);
  EXPECT_THAT(message, HasSubstr("open to other users"));
  if (geteuid() == 0) {
    ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
    ASSERT_EQ(chown(path_.c_str(), 65534, 65534), 0);
    EXPECT_EQ(RingReader::Open(path_, &error, &message), nullptr);
    EXPECT_THAT(message, HasSubstr("another user"));
  }
}

TEST_F(RingHostileTest, HeaderFields) {
  const std::vector<char> good = bytes_;
  EXPECT_EQ(OpenError(), RingError::kOk);
  const auto expect = [&](RingError error, const char* cause, const auto& change) {
    bytes_ = good;
    change();
    EXPECT_EQ(OpenError(), error) << cause;
    EXPECT_THAT(message_, HasSubstr(cause));
  };
  expect(RingError::kCorrupt, "truncated", [&] { bytes_.clear(); });
  expect(RingError::kCorrupt, "truncated", [&] { bytes_.resize(sizeof(RingHeader) - 1); });
  expect(RingError::kCorrupt, "shorter", [&] { bytes_.resize(sizeof(RingHeader)); });
  expect(RingError::kCorrupt, "shorter", [&] { bytes_.pop_back(); });
  expect(RingError::kNotReady, "not written yet", [&] { Set<uint64_t>(0, 0); });
  expect(RingError::kCorrupt, "magic", [&] { bytes_[0] ^= 1; });
  expect(RingError::kBadVersion, "version 2", [&] { Set<uint32_t>(offsetof(RingHeader, version), 2); });
  expect(RingError::kCorrupt, "checksum", [&] { bytes_[offsetof(RingHeader, run)] ^= 1; });

  const auto forged = [&](const char* cause, uint64_t offset, auto value) {
    expect(RingError::kCorrupt, cause, [&] {
      Set(offset, value);
      ForgeHeader();
    });
  };
  for (const uint64_t size :
       {uint64_t{0}, kMinRingBytes - kPageBytes, kMinRingBytes + 64, kMaxRingBytes + kPageBytes, UINT64_MAX}) {
    forged("data_bytes", offsetof(RingHeader, data_bytes), size);
  }
  forged("layout", offsetof(RingHeader, data_bytes), kMinRingBytes + kPageBytes);
  forged("layout", offsetof(RingHeader, file_bytes), UINT64_MAX);
  forged("layout", offsetof(RingHeader, data_offset), UINT64_MAX);
  forged("layout", offsetof(RingHeader, info_offset), uint64_t{0});
  forged("layout", offsetof(RingHeader, control_offset), uint64_t{8});
  forged("incarnation", offsetof(RingHeader, incarnation), uint64_t{0});
  forged("rank", offsetof(RingHeader, rank), uint32_t{1});
  forged("rank", offsetof(RingHeader, local_rank), uint32_t{1});
  forged("rank", offsetof(RingHeader, world_size), uint32_t{0});
  forged("run", offsetof(RingHeader, run_bytes), uint32_t{0});
  forged("run", offsetof(RingHeader, run_bytes), uint32_t{256});
  forged("run", offsetof(RingHeader, run_bytes), UINT32_MAX);
  forged("run", offsetof(RingHeader, run), '\n');
  forged("run", offsetof(RingHeader, run), '\xFF');
  forged("host", offsetof(RingHeader, host_bytes), UINT32_MAX);
  forged("host", offsetof(RingHeader, host), '\x1B');
}

TEST_F(RingHostileTest, LiveWordsThatContradictEachOther) {
  const uint64_t head = kLiveOffset + offsetof(RingLive, head);
  const uint64_t tail = kLiveOffset + offsetof(RingLive, tail);
  const std::vector<char> good = bytes_;
  const auto expect = [&](const char* cause, uint64_t head_value, uint64_t tail_value) {
    bytes_ = good;
    Set(head, head_value);
    Set(tail, tail_value);
    RingError error;
    const auto reader = OpenCopy(&error);
    ASSERT_NE(reader, nullptr);
    RingStep step;
    EXPECT_EQ(reader->Next(&step), ReadResult::kCorrupt) << cause;
    EXPECT_EQ(reader->Next(&step), ReadResult::kCorrupt) << "stays corrupt";
    EXPECT_THAT(reader->error(), HasSubstr(cause));
  };
  expect("aligned", 65, 0);
  expect("aligned", 6400, 1);
  expect("backwards", 0, 64);
  expect("backwards", 64, 6400);
  expect("more than a ring", kMinRingBytes + 64, 0);
  expect("more than a ring", UINT64_MAX - 63, 64);
}

TEST_F(RingHostileTest, HeadThatGoesBackUnderTheReader) {
  RingError error;
  const auto reader = OpenCopy(&error);
  int skips;
  ReadResult end;
  EXPECT_EQ(Drain(reader.get(), &skips, &end).size(), 20u);
  const int fd = open(path_.c_str(), O_RDWR);
  const uint64_t back = 64;
  ASSERT_EQ(pwrite(fd, &back, sizeof(back), kLiveOffset + offsetof(RingLive, head)), 8);
  close(fd);
  RingStep step;
  EXPECT_EQ(reader->Next(&step), ReadResult::kCorrupt);
}

TEST_F(RingHostileTest, OneBadRecordCostsOneStep) {
  const std::vector<char> good = bytes_;
  const uint64_t at = Record(5);
  const uint32_t length = Get<uint32_t>(at + offsetof(RecordHeader, bytes));
  for (uint32_t i = 0; i < length; ++i) {
    bytes_ = good;
    bytes_[at + i] ^= 0x10;
    ExpectOnlyFiveIsLost(("byte " + std::to_string(i)).c_str());
  }
  for (const uint32_t size : {0u, 63u, 65u, length + 64, uint32_t{kMinRingBytes}, 0x80000000u, 0xFFFFFFC0u}) {
    bytes_ = good;
    Set(at + offsetof(RecordHeader, bytes), size);
    ExpectOnlyFiveIsLost("length");
  }
}

TEST_F(RingHostileTest, RightChecksumOverNonsenseCostsOneStep) {
  const std::vector<char> good = bytes_;
  const uint64_t at = Record(5);
  const uint64_t block = at + sizeof(RecordHeader);  // the loss; the logits follow 24 bytes later
  const uint64_t second = block + sizeof(BlockHeader) + 8;
  const auto forged = [&](const char* what, uint64_t offset, auto value) {
    bytes_ = good;
    Set(offset, value);
    ForgeRecord(5);
    ExpectOnlyFiveIsLost(what);
  };
  forged("too many blocks", at + offsetof(RecordHeader, block_count), uint32_t{3});
  forged("too few blocks", at + offsetof(RecordHeader, block_count), uint32_t{0});
  forged("blocks without end", at + offsetof(RecordHeader, block_count), UINT32_MAX);
  forged("dims", block + offsetof(BlockHeader, dims), uint16_t{3});
  forged("type", block + offsetof(BlockHeader, is_uint64), uint16_t{2});
  forged("scalar with a shape", block + offsetof(BlockHeader, shape), uint32_t{7});
  forged("no layers", second + offsetof(BlockHeader, shape), uint32_t{0});
  forged("too many layers", second + offsetof(BlockHeader, shape), uint32_t{TRIMTAB_MAX_LAYERS + 1});
  forged("layers over the end", second + offsetof(BlockHeader, shape), uint32_t{TRIMTAB_MAX_LAYERS});
  forged("too many heads", second + offsetof(BlockHeader, shape) + 4, UINT32_MAX);
  forged("sequence 0", at + offsetof(RecordHeader, sequence), uint64_t{0});
  forged("sequence of the end of days", at + offsetof(RecordHeader, sequence), UINT64_MAX);
  forged("sequence that was there", at + offsetof(RecordHeader, sequence), uint64_t{2});
}

TEST_F(RingHostileTest, NoiseInTheWholeRingIsSkippedToItsEnd) {
  for (uint64_t i = kDataOffset; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i * 131 >> 3);
  RingError error;
  const auto reader = OpenCopy(&error);
  ASSERT_NE(reader, nullptr);
  int skips;
  ReadResult end;
  EXPECT_TRUE(Drain(reader.get(), &skips, &end).empty());
  EXPECT_EQ(end, ReadResult::kEmpty);
}

TEST_F(RingHostileTest, TruncationUnderTheReaderIsCorruptAndNotSigbus) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{100}, kPageBytes, kInfoOffset, kDataOffset, kDataOffset + 100}) {
    RingError error;
    const auto reader = OpenCopy(&error);
    ASSERT_NE(reader, nullptr);
    ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(size)), 0);
    RingStep step;
    EXPECT_EQ(reader->Next(&step), ReadResult::kCorrupt);
    EXPECT_THAT(reader->error(), HasSubstr("truncated")) << size;
    std::string json;
    if (size <= kInfoOffset) {
      EXPECT_FALSE(reader->ReadInfo(&json));
    }
    EXPECT_TRUE(reader->ReadAcks(0).empty());
    EXPECT_FALSE(reader->closed() && size == 0);
    reader->WriteCommand(trimtab_command{});
  }
}

TEST_F(RingHostileTest, StepsReadBeforeATruncationStayWhole) {
  RingError error;
  const auto reader = OpenCopy(&error);
  RingStep step;
  ASSERT_EQ(reader->Next(&step), ReadResult::kStep);
  ASSERT_EQ(truncate(path_.c_str(), 0), 0);
  EXPECT_EQ(*static_cast<const float*>(step.blocks[0].data), 0.5f);
}

TEST_F(RingHostileTest, InfoThatLiesIsNotTaken) {
  const std::vector<char> good = bytes_;
  const uint64_t slot = kInfoOffset + offsetof(InfoArea, slots) + sizeof(InfoSlot);  // version 1
  const auto expect_none = [&](const char* what) {
    RingError error;
    std::string json = "untouched";
    EXPECT_FALSE(OpenCopy(&error)->ReadInfo(&json)) << what;
    EXPECT_EQ(json, "untouched");
  };
  Set<uint32_t>(slot + offsetof(InfoSlot, bytes), UINT32_MAX);
  expect_none("length");
  bytes_ = good;
  bytes_[slot + offsetof(InfoSlot, text)] ^= 1;
  expect_none("checksum");
  bytes_ = good;
  Set<uint64_t>(kInfoOffset, 2);
  expect_none("slot of another version");
  bytes_ = good;
  Set<uint64_t>(kInfoOffset, UINT64_MAX);
  expect_none("version");
}

TEST_F(RingHostileTest, WriterSurvivesForgedLengthsInItsRing) {
  const int fd = open(path_.c_str(), O_RDWR);
  for (const uint32_t length : {0u, 1u, 64u, 0xFFFFFFC0u, 0x40u, 0x10000u}) {
    for (uint64_t at = 0; at < kMinRingBytes; at += kRecordAlign) {
      ASSERT_EQ(pwrite(fd, &length, sizeof(length), static_cast<off_t>(kDataOffset + at + 4)), 4);
    }
    for (uint64_t i = 0; i < 500; ++i) ASSERT_EQ(CommitStep(i, 8, 16), TRIMTAB_OK);
    const auto reader = Reader();
    int skips;
    ReadResult end;
    EXPECT_FALSE(Drain(reader.get(), &skips, &end).empty());
    EXPECT_EQ(end, ReadResult::kEmpty);
  }
  close(fd);
}

TEST_F(RingHostileTest, HalfWrittenCommandWaitsAndForgedOneIsIgnored) {
  const auto reader = Reader();
  trimtab_command command = {};
  command.plan = 5;
  command.phase = TRIMTAB_PHASE_PREPARE;
  command.mode = TRIMTAB_MODE_STABILIZED;
  reader->WriteCommand(command);
  const int fd = open(path_.c_str(), O_RDWR);
  CommandSlot slot;
  ASSERT_EQ(pread(fd, static_cast<void*>(&slot), sizeof(slot), kControlOffset), static_cast<ssize_t>(sizeof(slot)));
  trimtab_command got;
  const uint64_t odd = slot.version.load() - 1;
  ASSERT_EQ(pwrite(fd, &odd, sizeof(odd), kControlOffset), 8);
  EXPECT_EQ(trimtab_poll_command(agent_, &got), 0) << "odd: being written";
  const uint64_t forged = slot.version.load() + 2;
  ASSERT_EQ(pwrite(fd, &forged, sizeof(forged), kControlOffset), 8);
  EXPECT_EQ(trimtab_poll_command(agent_, &got), 0) << "checksum of another version";
  const uint64_t right = slot.version.load();
  ASSERT_EQ(pwrite(fd, &right, sizeof(right), kControlOffset), 8);
  EXPECT_EQ(trimtab_poll_command(agent_, &got), 1);
  close(fd);
}

}  // namespace
}  // namespace trimtab::agent
