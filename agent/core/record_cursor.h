// Walks the records of a ring that may be overwritten, truncated or forged while it is read.
#ifndef TRIMTAB_AGENT_CORE_RECORD_CURSOR_H_
#define TRIMTAB_AGENT_CORE_RECORD_CURSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "agent/core/ring_file_view.h"
#include "agent/core/ring_reader.h"

namespace trimtab::agent {

class RecordCursor {
 public:
  // `file` must outlive the cursor.
  explicit RecordCursor(const RingFileView* file) : file_(file) {}

  void SeekAfter(uint64_t sequence);
  // Cost: one copy of up to kChunkBytes per chunk of records, one checksum and one copy a record.
  ReadResult Next(RingStep* step);

  uint64_t dropped_steps() const { return dropped_; }
  uint64_t last_read() const { return expected_ - 1; }
  const std::string& error() const { return error_; }

 private:
  static constexpr uint64_t kChunkBytes = 256 * 1024;
  static constexpr int kMaxChases = 16;  // refills that may find the writer ahead before Next gives up for now

  // Copies records from position_ on, at least `need` bytes; moves position_ past what was overwritten meanwhile.
  // kStep: something is there. kEmpty, kCorrupt: as Next. kSkipped: the writer is faster than we are.
  ReadResult Refill(uint64_t need);
  bool InChunk() const { return position_ >= chunk_begin_ && position_ < chunk_end_; }
  const uint8_t* At(uint64_t position) const { return chunk_.data() + (position - chunk_begin_); }
  // The header at `position` of the chunk is one that the writer could have put there.
  bool IsPlausible(const RecordHeader& header, uint64_t position) const;
  // Moves on to the next plausible header of the chunk, or to its end.
  void Resync();
  ReadResult Corrupt(std::string text);

  const RingFileView* file_;
  std::vector<uint8_t> chunk_;  // records [chunk_begin_, chunk_end_), private and whole
  uint64_t chunk_begin_ = 0, chunk_end_ = 0;
  uint64_t position_ = 0;
  uint64_t expected_ = 1;
  uint64_t head_ = 0, tail_ = 0;  // newest values seen; they only grow
  uint64_t dropped_ = 0;
  bool corrupt_ = false;
  std::string error_;
};

// Fills step from the record at `record` (header.bytes long, checksum right). False when its blocks contradict it.
bool DecodeRecord(const uint8_t* record, const RecordHeader& header, RingStep* step);

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_RECORD_CURSOR_H_
