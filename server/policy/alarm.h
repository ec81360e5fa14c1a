// The life of one alarm: readings in, fired or resolved out. One a (run, rule, layer).
#ifndef TRIMTAB_SERVER_POLICY_ALARM_H_
#define TRIMTAB_SERVER_POLICY_ALARM_H_

#include <cstdint>
#include <optional>

#include "server/policy/detectors/reading.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class Alarm {
 public:
  enum class Change { kNone, kFired, kResolved };

  // `step` against warm-up and cool-down; readings against for_samples, for_seconds (by `time_unix_nanos` of the
  // readings) and clear_for_samples. An unknown reading neither adds to a row nor breaks it.
  Change Update(const Rule& rule, uint64_t step, int64_t time_unix_nanos, Verdict verdict) {
    if (verdict == Verdict::kUnknown) return Change::kNone;
    if (active_) {
      clear_in_row_ = verdict == Verdict::kClear ? clear_in_row_ + 1 : 0;
      if (clear_in_row_ < rule.clear_for_samples) return Change::kNone;
      active_ = false;
      firing_in_row_ = 0;
      return Change::kResolved;
    }
    firing_in_row_ = verdict == Verdict::kFiring ? firing_in_row_ + 1 : 0;
    if (firing_in_row_ == 1) firing_since_unix_nanos_ = time_unix_nanos;
    if (firing_in_row_ < rule.for_samples || step < rule.warm_up_steps) return Change::kNone;
    if (static_cast<double>(time_unix_nanos - firing_since_unix_nanos_) < rule.for_seconds * 1e9) return Change::kNone;
    if (fired_step_ && step >= *fired_step_ && step - *fired_step_ < rule.cool_down_steps) return Change::kNone;
    active_ = true;
    clear_in_row_ = 0;
    fired_step_ = step;
    return Change::kFired;
  }

  // The run ended or started again: closes the alarm, and forgets rows and cool-down.
  void Reset() { *this = Alarm(); }
  void Restore(bool active, uint64_t fired_step) {
    active_ = active;
    fired_step_ = fired_step;
  }

  bool active() const { return active_; }
  std::optional<uint64_t> fired_step() const { return fired_step_; }

 private:
  bool active_ = false;
  uint64_t firing_in_row_ = 0, clear_in_row_ = 0;
  int64_t firing_since_unix_nanos_ = 0;
  std::optional<uint64_t> fired_step_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_ALARM_H_
