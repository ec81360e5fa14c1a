#include "agent/core/control_latch.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace trimtab::agent {
namespace {

LatchAnswer Answer(uint64_t plan, trimtab_ack_state state, uint64_t step) {
  LatchAnswer answer;
  answer.plan = plan;
  answer.state = state;
  answer.step = step;
  return answer;
}

[[gnu::format(printf, 3, 4)]] LatchAnswer Refuse(uint64_t plan, uint64_t step, const char* format, ...) {
  LatchAnswer answer = Answer(plan, TRIMTAB_ACK_REFUSED, step);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(answer.reason, sizeof(answer.reason), format, arguments);
  va_end(arguments);
  return answer;
}

bool Names(const trimtab_command& command, uint32_t layer) {
  return command.layer_count == 0 || (command.layers[layer / 8] >> (layer % 8) & 1) != 0;
}

}  // namespace

LatchAnswer ControlLatch::OnCommand(const trimtab_command& command, uint64_t next_step, uint32_t layers) {
  switch (command.phase) {
    case TRIMTAB_PHASE_PREPARE:
      return Prepare(command, next_step, layers);
    case TRIMTAB_PHASE_COMMIT:
      return Commit(command, next_step);
    case TRIMTAB_PHASE_ABORT:
      return Abort(command, next_step);
    default:
      return Refuse(command.plan, next_step, "command of an unknown phase");
  }
}

LatchAnswer ControlLatch::Prepare(const trimtab_command& command, uint64_t next_step, uint32_t layers) {
  if (!act_) {
    return Refuse(command.plan, next_step,
                  "the job was not started with --act: its owner allows reports only; restart it with "
                  "`trimtab run --act` or attach(act=True)");
  }
  if (phase_ == Phase::kCommitted && pending_.plan != command.plan) {
    return Refuse(command.plan, next_step, "plan %" PRIu64 " is committed for step %" PRIu64 " and not applied yet",
                  pending_.plan, pending_.effective_step);
  }
  if (command.layer_count != 0) {
    for (uint32_t layer = layers; layer < TRIMTAB_MAX_LAYERS; ++layer) {
      if (Names(command, layer)) {
        return Refuse(command.plan, next_step, "there is no layer %u: the model has %u", layer, layers);
      }
    }
  }
  if (phase_ != Phase::kCommitted) {  // a repeated PREPARE does not undo a COMMIT
    pending_ = command;
    phase_ = Phase::kPrepared;
  }
  return Answer(command.plan, TRIMTAB_ACK_PREPARED, next_step);
}

LatchAnswer ControlLatch::Commit(const trimtab_command& command, uint64_t next_step) {
  if (command.plan == applied_plan_ && applied_plan_ != 0) {
    return Answer(command.plan, TRIMTAB_ACK_APPLIED, applied_step_);
  }
  if (phase_ == Phase::kIdle || pending_.plan != command.plan) {
    return Refuse(command.plan, next_step, "plan %" PRIu64 " was not prepared here", command.plan);
  }
  if (pending_.mode != command.mode || pending_.layer_count != command.layer_count ||
      std::memcmp(pending_.layers, command.layers, sizeof(command.layers)) != 0) {
    phase_ = Phase::kIdle;
    return Refuse(command.plan, next_step, "the commit names another mode or other layers than were prepared");
  }
  if (next_step > command.effective_step) {
    phase_ = Phase::kIdle;
    return Refuse(command.plan, next_step, "late: step %" PRIu64 " is next, the switch was for step %" PRIu64,
                  next_step, command.effective_step);
  }
  pending_ = command;
  phase_ = Phase::kCommitted;
  return Answer(command.plan, TRIMTAB_ACK_COMMITTED, next_step);
}

LatchAnswer ControlLatch::Abort(const trimtab_command& command, uint64_t next_step) {
  if (command.plan == applied_plan_ && applied_plan_ != 0) {
    return Refuse(command.plan, next_step, "applied at step %" PRIu64 " already: undo it with a rollback",
                  applied_step_);
  }
  if (pending_.plan == command.plan) phase_ = Phase::kIdle;
  return Answer(command.plan, TRIMTAB_ACK_ABORTED, next_step);
}

LatchAnswer ControlLatch::OnBoundary(uint64_t next_step, uint8_t* modes, uint32_t layers, bool* changed) {
  *changed = false;
  if (phase_ != Phase::kCommitted || next_step < pending_.effective_step) return LatchAnswer();
  phase_ = Phase::kIdle;
  if (next_step > pending_.effective_step) {
    return Refuse(pending_.plan, next_step, "late: the trainer went over step %" PRIu64 " to step %" PRIu64,
                  pending_.effective_step, next_step);
  }
  for (uint32_t layer = 0; layer < layers; ++layer) {
    if (!Names(pending_, layer) || modes[layer] == pending_.mode) continue;
    modes[layer] = static_cast<uint8_t>(pending_.mode);
    *changed = true;
  }
  applied_plan_ = pending_.plan;
  applied_step_ = next_step;
  return Answer(pending_.plan, TRIMTAB_ACK_APPLIED, next_step);
}

}  // namespace trimtab::agent
