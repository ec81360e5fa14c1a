// The trainer's half of a two-phase switch, without a shadow check. A state machine of its own: no shared memory, no
// clock, no threads.
#ifndef TRIMTAB_AGENT_CORE_CONTROL_LATCH_H_
#define TRIMTAB_AGENT_CORE_CONTROL_LATCH_H_

#include <cstdint>

#include "trimtab/agent.h"

namespace trimtab::agent {

inline constexpr uint32_t kLatchReasonBytes = 256;

// What to answer. state 0: nothing.
struct LatchAnswer {
  uint64_t plan = 0;
  uint32_t state = 0;  // trimtab_ack_state
  uint64_t step = 0;
  char reason[kLatchReasonBytes] = "";
};

class ControlLatch {
 public:
  explicit ControlLatch(bool act = false) : act_(act) {}

  // Takes one command at the boundary before `next_step` of a model with `layers` layers. Never applies it.
  LatchAnswer OnCommand(const trimtab_command& command, uint64_t next_step, uint32_t layers);

  // At the same boundary, after the commands: writes the mode of a committed plan whose step has come into
  // modes[layers]. The answer is APPLIED, or REFUSED when the trainer jumped over the step; *changed tells whether any
  // mode is another now.
  LatchAnswer OnBoundary(uint64_t next_step, uint8_t* modes, uint32_t layers, bool* changed);

 private:
  enum class Phase : uint8_t { kIdle, kPrepared, kCommitted };

  LatchAnswer Prepare(const trimtab_command& command, uint64_t next_step, uint32_t layers);
  LatchAnswer Commit(const trimtab_command& command, uint64_t next_step);
  LatchAnswer Abort(const trimtab_command& command, uint64_t next_step);

  bool act_;
  Phase phase_ = Phase::kIdle;
  trimtab_command pending_ = {};
  uint64_t applied_plan_ = 0;
  uint64_t applied_step_ = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_CONTROL_LATCH_H_
