// A run that does not get on: no new highest step for long, or the same step again and again.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_STALL_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_STALL_H_

#include <algorithm>
#include <cstdint>

#include "server/policy/detectors/window.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class StallDetector {
 public:
  explicit StallDetector(const StallParams& p) : p_(p), step_seconds_(kStepTimes) {}

  // A new highest step. `seconds_of_step`: time since the one before on the job's own clock, <= 0 when unknown.
  void OnProgress(int64_t now_unix_nanos, double seconds_of_step) {
    if (seconds_of_step > 0) step_seconds_.Push(seconds_of_step);
    progress_unix_nanos_ = now_unix_nanos;
    seen_ = true;
    repeats_ = 0;
  }
  // A rank reported a step that it had reported before.
  void OnRepeat() { ++repeats_; }

  // Unknown before the first step.
  Reading Look(int64_t now_unix_nanos) const {
    if (!seen_) return {};
    const double silent = static_cast<double>(now_unix_nanos - progress_unix_nanos_) * 1e-9;
    const double median = step_seconds_.size() > 0 ? step_seconds_.Median() : 0;
    const double bound = std::max(p_.at_least_seconds, p_.median_step_times * median);
    return {silent > bound || repeats_ >= p_.repeat_limit ? Verdict::kFiring : Verdict::kClear, median, bound, silent};
  }
  uint64_t repeats() const { return repeats_; }

 private:
  static constexpr size_t kStepTimes = 64;
  StallParams p_;
  Window step_seconds_;
  int64_t progress_unix_nanos_ = 0;
  uint64_t repeats_ = 0;
  bool seen_ = false;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_STALL_H_
