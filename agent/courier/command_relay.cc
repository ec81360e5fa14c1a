#include "agent/courier/command_relay.h"

#include "absl/strings/str_cat.h"
#include "agent/courier/limits.h"

namespace trimtab::courier {
namespace {

bool Same(const trimtab_command& a, const trimtab_command& b) { return a.plan == b.plan && a.phase == b.phase; }

}  // namespace

absl::StatusOr<trimtab_command> CommandFromProto(const v1::Command& command) {
  if (command.phase() < v1::COMMAND_PHASE_PREPARE || command.phase() > v1::COMMAND_PHASE_ABORT) {
    return absl::InvalidArgumentError(absl::StrCat("unknown command phase ", command.phase()));
  }
  if (command.phase() != v1::COMMAND_PHASE_ABORT &&
      (command.mode() < v1::KERNEL_MODE_NATIVE || command.mode() > v1::KERNEL_MODE_PAPER)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown kernel mode ", command.mode()));
  }
  trimtab_command out = {};
  out.plan = command.plan();
  out.phase = static_cast<uint32_t>(command.phase());
  out.mode = static_cast<uint32_t>(command.mode());
  out.effective_step = command.effective_step();
  out.deadline_unix_nanos = command.deadline_unix_nanos();
  for (const uint32_t layer : command.layers()) {
    if (layer >= TRIMTAB_MAX_LAYERS) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " is not below ", TRIMTAB_MAX_LAYERS));
    }
    uint8_t& byte = out.layers[layer / 8];
    const uint8_t bit = static_cast<uint8_t>(1u << (layer % 8));
    if ((byte & bit) == 0) ++out.layer_count;
    byte = static_cast<uint8_t>(byte | bit);
  }
  return out;
}

void CommandRelay::Write(const trimtab_command& command, agent::RingReader* ring, TimePoint now) {
  ring->WriteCommand(command);
  written_ = command;
  written_at_ = now;
}

bool CommandRelay::MayReplace(const agent::RingReader& ring, TimePoint now, int64_t unix_nanos) const {
  if (!written_.has_value() || ring.command_taken()) return true;
  const Duration stayed = now - written_at_;
  if (stayed < min_stay_) return false;
  if (stayed >= max_stay_) return true;
  return written_->deadline_unix_nanos != 0 && unix_nanos > written_->deadline_unix_nanos;
}

absl::Status CommandRelay::Give(const trimtab_command& command, agent::RingReader* ring, TimePoint now,
                                int64_t unix_nanos) {
  const bool repeated =
      waiting_.empty() ? written_.has_value() && Same(*written_, command) : Same(waiting_.back(), command);
  if (repeated) return absl::OkStatus();
  if (waiting_.empty() &&
      ((written_.has_value() && written_->plan == command.plan) || MayReplace(*ring, now, unix_nanos))) {
    Write(command, ring, now);
    return absl::OkStatus();
  }
  if (waiting_.size() >= kMaxCommandsWaiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxCommandsWaiting, " commands wait already; the rank has not come to a step boundary"));
  }
  waiting_.push_back(command);
  return absl::OkStatus();
}

void CommandRelay::Poll(agent::RingReader* ring, TimePoint now, int64_t unix_nanos) {
  if (waiting_.empty()) return;
  if (waiting_.front().plan != written_->plan && !MayReplace(*ring, now, unix_nanos)) return;
  Write(waiting_.front(), ring, now);
  waiting_.pop_front();
}

}  // namespace trimtab::courier
