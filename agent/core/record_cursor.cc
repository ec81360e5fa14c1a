#include "agent/core/record_cursor.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "agent/core/crc32c.h"

namespace trimtab::agent {
namespace {

RecordHeader HeaderAt(const uint8_t* record) {
  RecordHeader header;
  std::memcpy(&header, record, sizeof(header));
  return header;
}

bool ChecksumIsRight(const uint8_t* record, const RecordHeader& header) {
  RecordHeader clean = header;
  clean.crc32c = 0;
  const uint32_t crc = Crc32c(0, &clean, sizeof(clean));
  return Crc32c(crc, record + sizeof(clean), header.bytes - sizeof(clean)) == header.crc32c;
}

bool ShapeIsSane(const BlockHeader& block) {
  if (block.dims > 2 || block.is_uint64 > 1) return false;
  const bool layers = block.dims >= 1;
  const bool heads = block.dims == 2;
  return (layers ? block.shape[0] >= 1 && block.shape[0] <= TRIMTAB_MAX_LAYERS : block.shape[0] == 0) &&
         (heads ? block.shape[1] >= 1 && block.shape[1] <= kMaxHeads : block.shape[1] == 0);
}

}  // namespace

bool DecodeRecord(const uint8_t* record, const RecordHeader& header, RingStep* step) {
  step->sequence = header.sequence;
  step->step = header.step;
  step->time_unix_nanos = header.time_unix_nanos;
  step->blocks.clear();
  if (header.block_count > kMaxBlocks) return false;
  step->buffer.assign(record, record + header.bytes);
  uint64_t at = sizeof(RecordHeader);
  for (uint32_t i = 0; i < header.block_count; ++i) {
    BlockHeader block;
    if (header.bytes - at < sizeof(block)) return false;
    std::memcpy(&block, step->buffer.data() + at, sizeof(block));
    at += sizeof(block);
    if (!ShapeIsSane(block)) return false;
    RingBlock out;
    out.metric = block.metric;
    out.dims = block.dims;
    out.shape[0] = block.shape[0];
    out.shape[1] = block.shape[1];
    out.is_uint64 = block.is_uint64 != 0;
    out.count = uint64_t{std::max(1u, block.shape[0])} * std::max(1u, block.shape[1]);
    const uint64_t bytes = RoundUp(out.count * (out.is_uint64 ? 8 : 4), 8);
    if (header.bytes - at < bytes) return false;
    out.data = step->buffer.data() + at;
    at += bytes;
    step->blocks.push_back(out);
  }
  return header.bytes - at < kRecordAlign;
}

ReadResult RecordCursor::Corrupt(std::string text) {
  corrupt_ = true;
  error_ = std::move(text);
  return ReadResult::kCorrupt;
}

void RecordCursor::SeekAfter(uint64_t sequence) {
  expected_ = sequence == std::numeric_limits<uint64_t>::max() ? sequence : sequence + 1;
  position_ = 0;
  chunk_begin_ = chunk_end_ = 0;
}

ReadResult RecordCursor::Refill(uint64_t need) {
  constexpr uint64_t kHead = kLiveOffset + offsetof(RingLive, head);
  constexpr uint64_t kTail = kLiveOffset + offsetof(RingLive, tail);
  const uint64_t ring = file_->data_bytes();
  std::string text;
  for (int chase = 0; chase < kMaxChases; ++chase) {
    // Tail before head: the head read is at least as new, so never below the tail.
    uint64_t tail, head;
    if (!file_->ReadWord(kTail, &tail, &text)) return Corrupt(text);
    LoadBarrier();
    if (!file_->ReadWord(kHead, &head, &text)) return Corrupt(text);
    LoadBarrier();
    if (head % kRecordAlign != 0 || tail % kRecordAlign != 0) return Corrupt("head or tail is not aligned");
    if (head < tail || head < head_ || tail < tail_) return Corrupt("head or tail went backwards");
    head_ = head;
    tail_ = tail;
    position_ = std::max(position_, tail);
    if (position_ > head) return Corrupt("head is behind the position that was read");
    if (position_ == head) return ReadResult::kEmpty;

    const uint64_t place = position_ % ring;
    const uint64_t bytes = std::min({head - position_, ring - place, std::max(need, kChunkBytes)});
    chunk_.resize(bytes);
    chunk_begin_ = chunk_end_ = position_;
    if (!file_->Read(kDataOffset + place, chunk_.data(), bytes, &text)) return Corrupt(text);
    LoadBarrier();
    if (!file_->ReadWord(kTail, &tail, &text)) return Corrupt(text);
    if (tail < tail_ || tail % kRecordAlign != 0) return Corrupt("tail went backwards or is not aligned");
    if (tail < head && head - tail > ring) return Corrupt("head is more than a ring ahead of tail");
    tail_ = tail;
    chunk_end_ = chunk_begin_ + bytes;
    if (tail <= position_) return ReadResult::kStep;
    position_ = tail;  // what lies before may have been overwritten while we copied
    if (InChunk() && chunk_end_ - position_ >= need) return ReadResult::kStep;
  }
  return ReadResult::kSkipped;
}

bool RecordCursor::IsPlausible(const RecordHeader& header, uint64_t position) const {
  const uint64_t ring = file_->data_bytes();
  const uint64_t room = ring - position % ring;
  if (header.position != position || header.bytes < kRecordAlign || header.bytes % kRecordAlign != 0 ||
      header.bytes > MaxRecordBytes(ring) || header.bytes > room || header.bytes > head_ - position) {
    return false;
  }
  return header.magic == kRecordMagic || (header.magic == kPaddingMagic && header.bytes == room);
}

void RecordCursor::Resync() {
  do {
    position_ += kRecordAlign;
  } while (InChunk() && !IsPlausible(HeaderAt(At(position_)), position_));
}

ReadResult RecordCursor::Next(RingStep* step) {
  if (corrupt_) return ReadResult::kCorrupt;
  const uint64_t most = file_->data_bytes() / kRecordAlign + 1;
  for (uint64_t hop = 0; hop < most; ++hop) {
    if (!InChunk()) {
      const ReadResult result = Refill(kRecordAlign);
      if (result != ReadResult::kStep) return result;
    }
    RecordHeader header = HeaderAt(At(position_));
    if (!IsPlausible(header, position_)) {
      Resync();
      return ReadResult::kSkipped;
    }
    if (header.bytes > chunk_end_ - position_) {
      const uint64_t before = position_;
      const ReadResult result = Refill(header.bytes);
      if (result != ReadResult::kStep) return result;
      if (position_ != before) continue;
      header = HeaderAt(At(position_));
      if (!IsPlausible(header, position_) || header.bytes > chunk_end_ - position_) {
        Resync();
        return ReadResult::kSkipped;
      }
    }
    const uint8_t* record = At(position_);
    if (header.magic == kPaddingMagic) {
      position_ += header.bytes;
      continue;
    }
    const bool whole = header.sequence != 0 && header.sequence != std::numeric_limits<uint64_t>::max() &&
                       ChecksumIsRight(record, header);
    if (whole && header.sequence < expected_) {  // before the place that SeekAfter asked for
      position_ += header.bytes;
      continue;
    }
    if (!whole) {  // its length may be the lie: look for the next header instead of believing it
      Resync();
      return ReadResult::kSkipped;
    }
    if (!DecodeRecord(record, header, step)) {
      position_ += header.bytes;
      return ReadResult::kSkipped;
    }
    if (header.sequence > expected_) {
      dropped_ += header.sequence - expected_;
      expected_ = header.sequence;
      return ReadResult::kSkipped;  // this record is the next one
    }
    position_ += header.bytes;
    ++expected_;
    return ReadResult::kStep;
  }
  return ReadResult::kEmpty;
}

}  // namespace trimtab::agent
