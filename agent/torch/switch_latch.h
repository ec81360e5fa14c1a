// The rank's side of a two-phase switch: prepares (with a shadow comparison on the job's own data), commits, applies at
// the boundary before the agreed step. Protocol: docs/hooks.md.
#ifndef TRIMTAB_AGENT_TORCH_SWITCH_LATCH_H_
#define TRIMTAB_AGENT_TORCH_SWITCH_LATCH_H_

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <string>

#include "trimtab/agent.h"

namespace trimtab::agent {

// Mode of every layer, and of layers not seen yet.
struct LayerModes {
  std::array<uint8_t, TRIMTAB_MAX_LAYERS> of_layer;
  uint8_t other = TRIMTAB_MODE_OBSERVE;  // layers that are not known yet
  void Fill(uint8_t mode) {
    of_layer.fill(mode);
    other = mode;
  }
  uint8_t Of(int layer) const { return layer < 0 ? other : of_layer[layer]; }
  bool operator==(const LayerModes&) const = default;
};

using LayerSet = std::bitset<TRIMTAB_MAX_LAYERS>;

// Not thread-safe; the session's lock guards it. Never blocks.
class SwitchLatch {
 public:
  using Ack = std::function<void(uint64_t plan, trimtab_ack_state state, uint64_t step, const std::string& reason)>;

  explicit SwitchLatch(Ack ack) : ack_(std::move(ack)) {}

  // The boundary before `next_step`; `known` are the layers seen so far (read only with a command). Returns true when
  // *modes changed. `command` is the one just polled, or nullptr.
  bool AtBoundary(uint64_t next_step, int64_t now_unix_nanos, const LayerSet& known, bool act,
                  const trimtab_command* command, LayerModes* modes);

  // Whether a forward of the layer is to be compared now, and in which mode.
  bool WantsShadow(int layer) const;
  uint32_t shadow_mode() const { return command_.mode; }
  // Result of the comparison; `detail` has the numbers.
  void ReportShadow(int layer, bool good, const std::string& detail);
  bool shadow_pending() const { return state_ == State::kPreparing; }

  const char* state_name() const;

 private:
  enum class State { kIdle, kPreparing, kPrepared, kCommitted };

  void Prepare(const trimtab_command& command, uint64_t next_step, const LayerSet& known, bool act);
  void Commit(const trimtab_command& command, uint64_t next_step);
  void Refuse(uint64_t plan, uint64_t next_step, const std::string& reason);
  bool Selected(uint32_t layer) const;
  bool Apply(uint64_t step, LayerModes* modes);

  Ack ack_;
  State state_ = State::kIdle;
  trimtab_command command_ = {};
  LayerSet waiting_;  // layers whose comparison is still to come
  std::string failure_;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_SWITCH_LATCH_H_
