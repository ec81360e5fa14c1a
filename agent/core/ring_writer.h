// The writing end of a mapped ring: records, info text, answers to commands. One thread. Never blocks or allocates.
//
// What the file says is only trusted where a lie does no harm: positions and counters are kept here and written out.
#ifndef TRIMTAB_AGENT_CORE_RING_WRITER_H_
#define TRIMTAB_AGENT_CORE_RING_WRITER_H_

#include <cstddef>
#include <cstdint>

#include "agent/core/ring_format.h"

namespace trimtab::agent {

class RingWriter {
 public:
  // `base` is the mapping of a file that RingMapping::Create made; it must outlive the writer.
  void Attach(uint8_t* base, uint64_t data_bytes);

  // Publishes the record at `record`, whose header's magic, bytes, step, time and block_count are set; fills in
  // sequence, position and checksum. bytes is a multiple of kRecordAlign, at most MaxRecordBytes(data_bytes).
  // Overwrites the oldest records. Cost: one checksum pass and one copy.
  void Commit(uint8_t* record);
  void CountRefused();
  uint64_t refused_steps() const { return refused_steps_; }

  // At most kMaxInfoBytes.
  void SetInfo(const char* text, size_t bytes);

  // 1 relaxed load when there is nothing new. False also for a half-written or malformed slot; a malformed one whose
  // checksum is right is answered REFUSED.
  bool PollCommand(trimtab_command* command);
  // reason: at most kMaxReasonBytes, may be null when bytes is 0.
  void Ack(uint64_t plan, trimtab_ack_state state, uint64_t step, const char* reason, size_t reason_bytes);

  void MarkClosed();

 private:
  uint64_t Place(uint64_t position) const { return position % data_bytes_; }
  // Gives up the oldest records until [tail_, head) fits; positions beyond tell which bytes may change.
  void AdvanceTail(uint64_t new_head);

  uint8_t* data_ = nullptr;
  RingLive* live_ = nullptr;
  ControlArea* control_ = nullptr;
  InfoArea* info_ = nullptr;
  uint64_t data_bytes_ = 0;
  uint64_t head_ = 0, tail_ = 0, sequence_ = 0;
  uint64_t refused_steps_ = 0;
  uint64_t info_version_ = 0;
  uint64_t ack_count_ = 0;
  uint64_t taken_version_ = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_RING_WRITER_H_
