// Watches one applied switch: did loss or step time get worse than before it?
#ifndef TRIMTAB_SERVER_POLICY_GUARD_WATCH_H_
#define TRIMTAB_SERVER_POLICY_GUARD_WATCH_H_

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/policy/detectors/window.h"
#include "server/policy/policy.h"

namespace trimtab::server {

// The last kSteps steps of loss and step time, so that a guard which learns of a switch some steps late still finds
// what was before it.
class StepHistory {
 public:
  static constexpr size_t kSteps = 256;
  static constexpr size_t kBaselineSteps = 50;

  void Push(uint64_t step, double loss, double step_time_seconds);
  void Clear() { size_ = next_ = 0; }
  // Over the last kBaselineSteps steps before `step`; NaN when there is none.
  double MeanLossBefore(uint64_t step) const;
  double MedianStepTimeBefore(uint64_t step) const;

 private:
  struct Entry {
    uint64_t step;
    double loss, step_time_seconds;
  };
  template <typename Take>
  Window Before(uint64_t step, Take take) const;
  std::array<Entry, kSteps> ring_{};
  size_t size_ = 0, next_ = 0;
};

class GuardWatch {
 public:
  GuardWatch(const Guard& guard, uint64_t effective_step, double loss_before, double step_time_before)
      : guard_(guard),
        effective_step_(effective_step),
        loss_before_(loss_before),
        step_time_before_(step_time_before) {}

  // One step; NaN where it has no value. `loss_nonfinite`: some rank's loss is not finite. A sentence when the switch
  // must be undone.
  std::optional<std::string> Feed(uint64_t step, double loss, bool loss_nonfinite, double step_time_seconds);
  // The watch is over and nothing happened.
  bool done(uint64_t step) const { return step >= effective_step_ + guard_.watch_steps; }

  nlohmann::json Json() const;
  double loss_before() const { return loss_before_; }
  double step_time_before() const { return step_time_before_; }
  uint64_t effective_step() const { return effective_step_; }

 private:
  static constexpr size_t kRecent = 20;
  Guard guard_;
  uint64_t effective_step_;
  double loss_before_, step_time_before_;
  Window losses_{kRecent}, step_times_{kRecent};
  uint64_t worse_in_row_ = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_GUARD_WATCH_H_
