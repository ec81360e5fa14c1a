#include "tests/fuzz/ring_harness.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "agent/core/crc32c.h"
#include "agent/core/ring_format.h"

namespace trimtab::agent {
namespace {

void Require(bool promise, const char* text) {
  if (promise) return;
  std::fprintf(stderr, "ring harness: broken promise: %s\n", text);
  std::abort();
}

void RequireWholeStep(const RingStep& step) {
  const uint8_t* begin = step.buffer.data();
  const uint8_t* end = begin + step.buffer.size();
  for (const RingBlock& block : step.blocks) {
    const auto* data = static_cast<const uint8_t*>(block.data);
    Require(block.dims <= 2, "dims");
    const uint64_t first = block.dims >= 1 ? block.shape[0] : 1;
    const uint64_t second = block.dims == 2 ? block.shape[1] : 1;
    Require(block.count == first * second && block.count > 0, "count is the product of the shape");
    Require(data >= begin && data <= end, "data lies in the buffer");
    Require(block.count * (block.is_uint64 ? 8 : 4) <= static_cast<uint64_t>(end - data), "data ends in the buffer");
    Require(reinterpret_cast<uintptr_t>(data) % 8 == 0, "data is aligned");
    volatile uint8_t sum = 0;
    for (uint64_t i = 0; i < block.count * (block.is_uint64 ? 8 : 4); ++i) sum = static_cast<uint8_t>(sum + data[i]);
  }
}

}  // namespace

struct RingHarness::Input {
  const uint8_t* data;
  size_t size;

  uint64_t Take(size_t bytes) {
    uint64_t value = 0;
    const size_t there = std::min(bytes, size);
    std::memcpy(&value, data, there);
    data += there;
    size -= there;
    return value;
  }
};

RingHarness::RingHarness() {
  const char* root = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  dir_ = std::string(root) + "/trimtab-fuzz-XXXXXX";
  Require(mkdtemp(dir_.data()) != nullptr, "a folder for the ring");
  trimtab_options options = {};
  options.struct_size = sizeof(options);
  options.ring_dir = dir_.c_str();
  options.run = "fuzz";
  options.world_size = 4;
  options.ring_bytes = kMinRingBytes;
  options.act = 1;
  trimtab_agent* agent = nullptr;
  Require(trimtab_open(&options, &agent) == TRIMTAB_OK, "a ring to start from");
  path_ = trimtab_ring_path(agent);
  trimtab_close(agent);
  file_bytes_ = kDataOffset + kMinRingBytes;
  const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  base_ = static_cast<uint8_t*>(mmap(nullptr, file_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  close(fd);
  Require(base_ != MAP_FAILED, "a mapping");
  fresh_header_.reset(new uint8_t[kPageBytes]);
  std::memcpy(fresh_header_.get(), base_, kPageBytes);
  Require(record_.Reserve(MaxRecordBytes(kMinRingBytes)), "memory");
}

RingHarness::~RingHarness() {
  munmap(base_, file_bytes_);
  unlink(path_.c_str());
  rmdir(dir_.c_str());
}

void RingHarness::Reset() {
  if (truncated_) Require(truncate(path_.c_str(), static_cast<off_t>(file_bytes_)) == 0, "the old size");
  truncated_ = false;
  std::memcpy(base_, fresh_header_.get(), kPageBytes);
  std::memset(base_ + kControlOffset, 0, kControlBytes);
  auto* info = reinterpret_cast<InfoArea*>(base_ + kInfoOffset);
  for (InfoSlot& slot : info->slots) std::memset(&slot, 0, offsetof(InfoSlot, text) + 256);
  info->version.store(0);
  std::memset(base_ + kDataOffset, 0, kMinRingBytes);
  writer_ = RingWriter();
  writer_.Attach(base_, kMinRingBytes);
  reader_.reset();
  step_ = 0;
  last_sequence_ = 0;
  CommitSteps(20, 3);
  writer_.SetInfo("{\"run\":\"fuzz\"}", 14);
  writer_.Ack(1, TRIMTAB_ACK_REFUSED, 2, "because", 7);
}

void RingHarness::Run(const uint8_t* data, size_t size) {
  Reset();
  Input input = {data, size};
  while (input.size > 0) Play(&input);
  if (OpenReader()) {
    ReadAllElse();
    ReadSome(3 * kMinRingBytes / kRecordAlign);
    const ReadResult end = reader_->Next(&read_step_);
    Require(end == ReadResult::kEmpty || end == ReadResult::kCorrupt, "reading a ring at rest comes to an end");
  }
  reader_.reset();
}

void RingHarness::Play(Input* input) {
  switch (input->Take(1) % kOpCount) {
    case kPatchHeader:
      return Patch(input, 0, sizeof(RingHeader), input->Take(2));
    case kSetLiveWord: {
      constexpr uint64_t kWords[] = {offsetof(RingLive, head), offsetof(RingLive, tail),
                                     offsetof(RingLive, last_sequence), offsetof(RingLive, state)};
      const uint64_t word = kWords[input->Take(1) % std::size(kWords)];
      const uint64_t value = input->Take(8);
      if (!truncated_) std::memcpy(base_ + kLiveOffset + word, &value, sizeof(value));
      return;
    }
    case kPatchControl:
      return Patch(input, kControlOffset, sizeof(ControlArea), input->Take(2));
    case kPatchInfo: {
      const uint64_t where = input->Take(1);
      const uint64_t slot = offsetof(InfoArea, slots) + (where & 1) * sizeof(InfoSlot);
      return Patch(input, kInfoOffset, sizeof(InfoArea), (where & 0x80) != 0 ? 0 : slot + (where >> 1) % 40);
    }
    case kPatchData:
      return Patch(input, kDataOffset, kMinRingBytes, input->Take(2));
    case kForgeRecord:
      return ForgeRecord(input->Take(2));
    case kForgeHeader:
      return ForgeHeader();
    case kTruncate:
      truncated_ = true;
      Require(truncate(path_.c_str(), static_cast<off_t>(input->Take(4) % file_bytes_)) == 0, "truncate");
      return;
    case kRead:
      if (OpenReader()) ReadSome(input->Take(1));
      return;
    case kCommit: {
      const uint64_t count = input->Take(1) % 32;
      return CommitSteps(count, static_cast<uint32_t>(1 + input->Take(1) % 200));
    }
    case kCommand: {
      trimtab_command command = {};
      command.plan = 1;
      command.phase = static_cast<uint32_t>(input->Take(1));
      command.mode = static_cast<uint32_t>(input->Take(1));
      command.layer_count = static_cast<uint32_t>(input->Take(2));
      if (OpenReader()) reader_->WriteCommand(command);
      return;
    }
    case kSeek: {
      const uint64_t sequence = input->Take(8);
      if (OpenReader()) reader_->SeekAfter(sequence);
      last_sequence_ = 0;
      return;
    }
    default:
      return;
  }
}

void RingHarness::Patch(Input* input, uint64_t area, uint64_t area_bytes, uint64_t offset) {
  const uint64_t start = offset % area_bytes;
  const size_t bytes = std::min({static_cast<size_t>(input->Take(1)), input->size, area_bytes - start});
  if (!truncated_) std::memcpy(base_ + area + start, input->data, bytes);
  input->data += bytes;
  input->size -= bytes;
}

void RingHarness::ForgeRecord(uint64_t offset) {
  if (truncated_) return;
  const uint64_t place = offset % kMinRingBytes / kRecordAlign * kRecordAlign;
  uint8_t* record = base_ + kDataOffset + place;
  RecordHeader header;
  std::memcpy(&header, record, sizeof(header));
  if (header.bytes < sizeof(header) || header.bytes > kMinRingBytes - place) return;
  header.crc32c = 0;
  std::memcpy(record, &header, sizeof(header));
  header.crc32c = Crc32c(0, record, header.bytes);
  std::memcpy(record, &header, sizeof(header));
}

void RingHarness::ForgeHeader() {
  if (truncated_) return;
  RingHeader header;
  std::memcpy(&header, base_, sizeof(header));
  header.crc32c = 0;
  header.crc32c = Crc32c(0, &header, sizeof(header));
  std::memcpy(base_, &header, sizeof(header));
}

void RingHarness::CommitSteps(uint64_t count, uint32_t layers) {
  if (truncated_) return;  // a store to a page that is gone would be SIGBUS: the writer's risk, not the reader's
  const std::vector<float> values(size_t{layers} * 8, 1.5f);
  for (uint64_t i = 0; i < count; ++i) {
    record_.Begin(++step_, 7);
    record_.Put(1, false, values.data(), 0, 0);
    record_.Put(32, false, values.data(), layers, 8);
    if (uint8_t* record = record_.Finish()) writer_.Commit(record);
  }
  trimtab_command command;
  if (writer_.PollCommand(&command)) {
    Require(command.mode >= 1 && command.mode <= 4 && command.phase >= 1 && command.phase <= 3, "command in range");
    Require(command.layer_count <= TRIMTAB_MAX_LAYERS, "layer count in range");
  }
}

bool RingHarness::OpenReader() {
  if (reader_ != nullptr) return true;
  RingError error = RingError::kOk;
  std::string message;
  reader_ = RingReader::Open(path_, &error, &message);
  Require((reader_ != nullptr) == (error == RingError::kOk), "an error without a reader");
  Require(reader_ != nullptr || !message.empty(), "an error has a text");
  return reader_ != nullptr;
}

void RingHarness::ReadSome(uint64_t calls) {
  for (uint64_t i = 0; i < calls; ++i) {
    switch (reader_->Next(&read_step_)) {
      case ReadResult::kStep:
        RequireWholeStep(read_step_);
        Require(read_step_.sequence > last_sequence_, "sequences ascend");
        last_sequence_ = read_step_.sequence;
        break;
      case ReadResult::kSkipped:
        break;
      case ReadResult::kCorrupt:
        Require(!reader_->error().empty(), "corruption has a text");
        return;
      case ReadResult::kEmpty:
        return;
    }
  }
}

void RingHarness::ReadAllElse() {
  std::string json;
  reader_->ReadInfo(&json);
  Require(json.size() <= kMaxInfoBytes, "info in bounds");
  const std::vector<RingAck> acks = reader_->ReadAcks(0);
  Require(acks.size() <= kAckSlots, "answers in bounds");
  for (const RingAck& ack : acks) Require(ack.reason.size() <= kMaxReasonBytes, "reason in bounds");
  reader_->closed();
  reader_->command_taken();
  reader_->last_sequence();
  reader_->refused_steps();
  reader_->writer_alive();
}

}  // namespace trimtab::agent
