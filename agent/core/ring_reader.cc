#include "agent/core/ring_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/core/crc32c.h"
#include "agent/core/process_id.h"
#include "agent/core/record_cursor.h"
#include "agent/core/ring_file_view.h"
#include "agent/core/text_check.h"

namespace trimtab::agent {
namespace {

constexpr uint64_t kCommandOffset = kControlOffset + offsetof(ControlArea, command);
constexpr uint64_t kTakenOffset = kControlOffset + offsetof(ControlArea, taken_version);
constexpr uint64_t kAcksOffset = kControlOffset + offsetof(ControlArea, acks);
constexpr uint64_t kSlotsOffset = kInfoOffset + offsetof(InfoArea, slots);

class FileRingReader final : public RingReader {
 public:
  explicit FileRingReader(std::unique_ptr<RingFileView> file) : file_(std::move(file)), cursor_(file_.get()) {}

  const RingIdentity& identity() const override { return file_->identity(); }
  const std::string& path() const override { return file_->path(); }
  void SeekAfter(uint64_t sequence) override { cursor_.SeekAfter(sequence); }
  ReadResult Next(RingStep* step) override { return cursor_.Next(step); }
  uint64_t dropped_steps() const override { return cursor_.dropped_steps(); }
  uint64_t refused_steps() const override { return Live(offsetof(RingLive, refused_steps)); }
  uint64_t last_sequence() const override { return Live(offsetof(RingLive, last_sequence)); }
  bool closed() const override { return Live(offsetof(RingLive, state)) == kRingClosed; }
  bool writer_alive() const override { return IsProcessAlive(identity().pid, identity().pid_start_ticks); }
  const std::string& error() const override { return cursor_.error().empty() ? error_ : cursor_.error(); }

  bool ReadInfo(std::string* json) override;
  void WriteCommand(const trimtab_command& command) override;
  bool command_taken() const override;
  std::vector<RingAck> ReadAcks(uint64_t after) override;

 private:
  // 0 when the file is gone from under us; Next reports that.
  uint64_t Live(uint64_t field) const {
    uint64_t word = 0;
    std::string ignored;
    return file_->ReadWord(kLiveOffset + field, &word, &ignored) ? word : 0;
  }

  std::unique_ptr<RingFileView> file_;
  RecordCursor cursor_;
  uint64_t info_version_ = 0;
  std::string error_;
};

bool FileRingReader::ReadInfo(std::string* json) {
  uint64_t version = 0;
  if (!file_->ReadWord(kInfoOffset, &version, &error_) || version == info_version_) return false;
  LoadBarrier();
  const uint64_t offset = kSlotsOffset + version % 2 * sizeof(InfoSlot);
  struct {
    uint64_t version;
    uint32_t bytes;
    uint32_t crc32c;
  } head;
  static_assert(sizeof(head) == offsetof(InfoSlot, pad));
  if (!file_->Read(offset, &head, sizeof(head), &error_)) return false;
  if (head.version != version || head.bytes > kMaxInfoBytes) return false;  // replaced meanwhile: the next call has it
  std::string text(head.bytes, '\0');
  if (!file_->Read(offset + offsetof(InfoSlot, text), text.data(), text.size(), &error_)) return false;
  const uint32_t crc = Crc32c(Crc32c(0, &head, offsetof(InfoSlot, crc32c)), text.data(), text.size());
  if (crc != head.crc32c || !IsUtf8(text.data(), text.size())) return false;
  info_version_ = version;
  *json = std::move(text);
  return true;
}

void FileRingReader::WriteCommand(const trimtab_command& command) {
  uint64_t version = 0;
  if (!file_->ReadWord(kCommandOffset, &version, &error_)) return;
  const uint64_t writing = version | 1;  // a courier that died while writing left it odd
  CommandSlot slot = {};
  slot.version.store(writing + 1, std::memory_order_relaxed);
  slot.plan = command.plan;
  slot.effective_step = command.effective_step;
  slot.deadline_unix_nanos = command.deadline_unix_nanos;
  slot.phase = command.phase;
  slot.mode = command.mode;
  slot.layer_count = command.layer_count;
  std::memcpy(slot.layers, command.layers, sizeof(slot.layers));
  const auto* bytes = reinterpret_cast<const uint8_t*>(&slot);
  slot.crc32c = Crc32c(0, bytes, sizeof(slot));

  constexpr size_t kWord = sizeof(uint64_t);
  if (!file_->Write(kCommandOffset, &writing, kWord, &error_)) return;
  StoreBarrier();
  if (!file_->Write(kCommandOffset + kWord, bytes + kWord, sizeof(slot) - kWord, &error_)) return;
  StoreBarrier();
  file_->Write(kCommandOffset, bytes, kWord, &error_);
}

bool FileRingReader::command_taken() const {
  uint64_t version = 0;
  uint64_t taken = 0;
  std::string ignored;
  return file_->ReadWord(kCommandOffset, &version, &ignored) && file_->ReadWord(kTakenOffset, &taken, &ignored) &&
         version == taken;
}

std::vector<RingAck> FileRingReader::ReadAcks(uint64_t after) {
  std::vector<RingAck> acks;
  AckSlot slots[kAckSlots];
  if (!file_->Read(kAcksOffset, slots, sizeof(slots), &error_)) return acks;
  for (uint32_t i = 0; i < kAckSlots; ++i) {
    AckSlot& slot = slots[i];
    const uint32_t crc = slot.crc32c;
    slot.crc32c = 0;
    if (slot.index <= after || (slot.index - 1) % kAckSlots != i || Crc32c(0, &slot, sizeof(slot)) != crc) continue;
    if (slot.state < TRIMTAB_ACK_PREPARED || slot.state > TRIMTAB_ACK_ABORTED || slot.reason_bytes > kMaxReasonBytes ||
        !IsUtf8(slot.reason, slot.reason_bytes)) {
      continue;
    }
    RingAck ack;
    ack.index = slot.index;
    ack.plan = slot.plan;
    ack.state = static_cast<trimtab_ack_state>(slot.state);
    ack.step = slot.step;
    ack.reason.assign(slot.reason, slot.reason_bytes);
    acks.push_back(std::move(ack));
  }
  std::sort(acks.begin(), acks.end(), [](const RingAck& a, const RingAck& b) { return a.index < b.index; });
  return acks;
}

}  // namespace

std::unique_ptr<RingReader> RingReader::Open(const std::string& path, RingError* error, std::string* message) {
  std::unique_ptr<RingFileView> file = RingFileView::Open(path, error, message);
  if (file == nullptr) return nullptr;
  return std::make_unique<FileRingReader>(std::move(file));
}

}  // namespace trimtab::agent
