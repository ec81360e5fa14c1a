#include "agent/torch/switch_latch.h"

#include "agent/torch/options.h"

namespace trimtab::agent {
namespace {
bool Bit(const uint8_t* bits, uint32_t i) { return (bits[i / 8] >> (i % 8) & 1) != 0; }
}  // namespace

const char* SwitchLatch::state_name() const {
  switch (state_) {
    case State::kIdle:
      return "idle";
    case State::kPreparing:
      return "preparing";
    case State::kPrepared:
      return "prepared";
    case State::kCommitted:
      return "committed";
  }
  return "";
}

bool SwitchLatch::Selected(uint32_t layer) const { return command_.layer_count == 0 || Bit(command_.layers, layer); }

void SwitchLatch::Refuse(uint64_t plan, uint64_t next_step, const std::string& reason) {
  ack_(plan, TRIMTAB_ACK_REFUSED, next_step, reason);
}

void SwitchLatch::Prepare(const trimtab_command& command, uint64_t next_step, const LayerSet& known, bool act) {
  if (!act) {
    return Refuse(command.plan, next_step, "the owner did not allow switches: start with --act or attach(act=True)");
  }
  if (state_ == State::kCommitted) {
    return Refuse(command.plan, next_step,
                  "plan " + std::to_string(command_.plan) + " is committed and not yet applied");
  }
  if (command.mode < TRIMTAB_MODE_NATIVE || command.mode > TRIMTAB_MODE_PAPER) {
    return Refuse(command.plan, next_step, "mode " + std::to_string(command.mode) + " is not known here");
  }
  if (known.none()) return Refuse(command.plan, next_step, "no attention layer was seen yet");
  for (uint32_t layer = 0; command.layer_count != 0 && layer < TRIMTAB_MAX_LAYERS; ++layer) {
    if (Bit(command.layers, layer) && !known[layer]) {
      return Refuse(
          command.plan, next_step,
          "layer " + std::to_string(layer) + " is not known; " + std::to_string(known.count()) + " layers were seen");
    }
  }
  if (state_ != State::kIdle) {
    ack_(command_.plan, TRIMTAB_ACK_ABORTED, next_step, "replaced by plan " + std::to_string(command.plan));
  }
  command_ = command;
  failure_.clear();
  waiting_.reset();
  if (command.mode == TRIMTAB_MODE_NATIVE || command.mode == TRIMTAB_MODE_OBSERVE) {  // nothing of ours to compare
    state_ = State::kPrepared;
    ack_(command_.plan, TRIMTAB_ACK_PREPARED, next_step, "");
    return;
  }
  for (uint32_t layer = 0; layer < TRIMTAB_MAX_LAYERS; ++layer) waiting_[layer] = known[layer] && Selected(layer);
  state_ = State::kPreparing;
}

void SwitchLatch::Commit(const trimtab_command& command, uint64_t next_step) {
  if (state_ != State::kPrepared || command.plan != command_.plan) {
    return Refuse(command.plan, next_step, "plan " + std::to_string(command.plan) + " is not prepared here");
  }
  if (next_step > command.effective_step) {
    state_ = State::kIdle;
    return Refuse(command.plan, next_step,
                  "late: step " + std::to_string(next_step) + " is next, after effective step " +
                      std::to_string(command.effective_step));
  }
  command_.effective_step = command.effective_step;
  state_ = State::kCommitted;
  ack_(command_.plan, TRIMTAB_ACK_COMMITTED, next_step, "");
}

bool SwitchLatch::Apply(uint64_t step, LayerModes* modes) {
  const LayerModes before = *modes;
  const auto mode = static_cast<uint8_t>(command_.mode);
  if (command_.layer_count == 0) {
    modes->Fill(mode);
  } else {
    for (uint32_t layer = 0; layer < TRIMTAB_MAX_LAYERS; ++layer) {
      if (Selected(layer)) modes->of_layer[layer] = mode;
    }
  }
  state_ = State::kIdle;
  ack_(command_.plan, TRIMTAB_ACK_APPLIED, step, "");
  return !(before == *modes);
}

bool SwitchLatch::AtBoundary(uint64_t next_step, int64_t now_unix_nanos, const LayerSet& known, bool act,
                             const trimtab_command* command, LayerModes* modes) {
  if (command != nullptr) {
    if (command->phase == TRIMTAB_PHASE_PREPARE) {
      Prepare(*command, next_step, known, act);
    } else if (command->phase == TRIMTAB_PHASE_COMMIT) {
      Commit(*command, next_step);
    } else if (command->phase == TRIMTAB_PHASE_ABORT) {
      if (state_ != State::kIdle && command->plan == command_.plan) state_ = State::kIdle;
      ack_(command->plan, TRIMTAB_ACK_ABORTED, next_step, "");
    }
  }
  if (state_ == State::kPreparing) {
    if (!failure_.empty()) {
      state_ = State::kIdle;
      Refuse(command_.plan, next_step, failure_);
    } else if (waiting_.none()) {
      state_ = State::kPrepared;
      ack_(command_.plan, TRIMTAB_ACK_PREPARED, next_step, "");
    } else if (command_.deadline_unix_nanos != 0 && now_unix_nanos > command_.deadline_unix_nanos) {
      state_ = State::kIdle;
      Refuse(command_.plan, next_step,
             std::to_string(waiting_.count()) +
                 " layers were not called before the deadline, so nothing could be compared");
    }
  }
  if (state_ == State::kCommitted && next_step >= command_.effective_step) return Apply(next_step, modes);
  return false;
}

bool SwitchLatch::WantsShadow(int layer) const {
  return state_ == State::kPreparing && layer >= 0 && layer < TRIMTAB_MAX_LAYERS && waiting_[layer];
}

void SwitchLatch::ReportShadow(int layer, bool good, const std::string& detail) {
  if (!WantsShadow(layer)) return;
  waiting_.reset(layer);
  if (!good && failure_.empty()) {
    failure_ = "shadow comparison of layer " + std::to_string(layer) + " in " + ModeName(command_.mode) +
               " mode failed: " + detail;
  }
}

}  // namespace trimtab::agent
