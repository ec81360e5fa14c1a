#include "agent/core/ring_writer.h"

#include <cstring>
#include <new>

#include "agent/core/crc32c.h"

namespace trimtab::agent {
namespace {

// The courier stores to the slot while we read: no access may be torn apart by the compiler or taken twice.
void CopyVolatile(const volatile void* from, void* to, size_t bytes) {
  const auto* source = static_cast<const volatile uint64_t*>(from);
  auto* target = static_cast<uint8_t*>(to);
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = source[at / sizeof(uint64_t)];
    std::memcpy(target + at, &word, sizeof(word));
  }
}

const char* MalformedReason(const trimtab_command& command) {
  if (command.phase < TRIMTAB_PHASE_PREPARE || command.phase > TRIMTAB_PHASE_ABORT)
    return "command of an unknown phase";
  if (command.mode < TRIMTAB_MODE_NATIVE || command.mode > TRIMTAB_MODE_PAPER) return "command for an unknown mode";
  if (command.layer_count > TRIMTAB_MAX_LAYERS) return "command names more layers than there can be";
  return nullptr;
}

}  // namespace

void RingWriter::Attach(uint8_t* base, uint64_t data_bytes) {
  live_ = std::launder(reinterpret_cast<RingLive*>(base + kLiveOffset));
  control_ = reinterpret_cast<ControlArea*>(base + kControlOffset);
  info_ = reinterpret_cast<InfoArea*>(base + kInfoOffset);
  data_ = base + kDataOffset;
  data_bytes_ = data_bytes;
}

void RingWriter::AdvanceTail(uint64_t new_head) {
  const uint64_t before = tail_;
  while (new_head - tail_ > data_bytes_) {
    uint32_t bytes;
    std::memcpy(&bytes, data_ + Place(tail_) + offsetof(RecordHeader, bytes), sizeof(bytes));
    const bool sane = bytes >= kRecordAlign && bytes % kRecordAlign == 0 && bytes <= head_ - tail_;
    tail_ = sane ? tail_ + bytes : head_;  // somebody else wrote into our ring: give all of it up
  }
  if (tail_ == before) return;
  live_->tail.store(tail_, std::memory_order_release);
  StoreBarrier();
}

void RingWriter::Commit(uint8_t* record) {
  RecordHeader header;
  std::memcpy(&header, record, sizeof(header));
  const uint64_t room = data_bytes_ - Place(head_);
  const uint64_t padding = room < header.bytes ? room : 0;
  const uint64_t start = head_ + padding;
  AdvanceTail(start + header.bytes);

  if (padding > 0) {
    const RecordHeader pad = {kPaddingMagic, static_cast<uint32_t>(padding), head_, 0, 0, 0, 0, 0};
    std::memcpy(data_ + Place(head_), &pad, sizeof(pad));
  }
  header.position = start;
  header.sequence = ++sequence_;
  header.crc32c = 0;
  std::memcpy(record, &header, sizeof(header));
  header.crc32c = Crc32c(0, record, header.bytes);
  std::memcpy(record, &header, sizeof(header));
  std::memcpy(data_ + Place(start), record, header.bytes);

  head_ = start + header.bytes;
  live_->head.store(head_, std::memory_order_release);
  live_->last_sequence.store(sequence_, std::memory_order_release);
}

void RingWriter::CountRefused() { live_->refused_steps.store(++refused_steps_, std::memory_order_relaxed); }

void RingWriter::SetInfo(const char* text, size_t bytes) {
  const uint64_t version = ++info_version_;
  InfoSlot* slot = &info_->slots[version % 2];
  slot->version = version;
  slot->bytes = static_cast<uint32_t>(bytes);
  std::memcpy(slot->text, text, bytes);
  slot->crc32c = Crc32c(Crc32c(0, slot, offsetof(InfoSlot, crc32c)), text, bytes);
  info_->version.store(version, std::memory_order_release);
}

bool RingWriter::PollCommand(trimtab_command* command) {
  const uint64_t version = control_->command.version.load(std::memory_order_relaxed);
  if (version == taken_version_ || version % 2 != 0) return false;
  alignas(CommandSlot) uint8_t copy[sizeof(CommandSlot)];
  CopyVolatile(&control_->command, copy, sizeof(copy));
  const auto* slot = reinterpret_cast<const CommandSlot*>(copy);
  const uint32_t crc = slot->crc32c;
  std::memset(copy + offsetof(CommandSlot, crc32c), 0, sizeof(uint32_t));
  if (Crc32c(0, copy, sizeof(copy)) != crc) return false;  // being written: complete by the next poll

  taken_version_ = slot->version.load(std::memory_order_relaxed);
  control_->taken_version.store(taken_version_, std::memory_order_release);
  *command = trimtab_command{};
  command->plan = slot->plan;
  command->phase = slot->phase;
  command->mode = slot->mode;
  command->effective_step = slot->effective_step;
  command->deadline_unix_nanos = slot->deadline_unix_nanos;
  command->layer_count = slot->layer_count;
  std::memcpy(command->layers, slot->layers, sizeof(command->layers));
  if (const char* reason = MalformedReason(*command)) {
    Ack(command->plan, TRIMTAB_ACK_REFUSED, 0, reason, std::strlen(reason));
    return false;
  }
  return true;
}

void RingWriter::Ack(uint64_t plan, trimtab_ack_state state, uint64_t step, const char* reason, size_t reason_bytes) {
  AckSlot ack = {};
  ack.index = ++ack_count_;
  ack.plan = plan;
  ack.step = step;
  ack.state = static_cast<uint32_t>(state);
  ack.reason_bytes = static_cast<uint32_t>(reason_bytes);
  if (reason_bytes > 0) std::memcpy(ack.reason, reason, reason_bytes);
  ack.crc32c = Crc32c(0, &ack, sizeof(ack));
  std::memcpy(&control_->acks[(ack.index - 1) % kAckSlots], &ack, sizeof(ack));
  control_->ack_count.store(ack.index, std::memory_order_release);
}

void RingWriter::MarkClosed() { live_->state.store(kRingClosed, std::memory_order_release); }

}  // namespace trimtab::agent
