// Values that are not finite, told from the skipped steps of a loss scaler.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_NONFINITE_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_NONFINITE_H_

#include <cstdint>
#include <optional>

#include "server/policy/detectors/reading.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class NonFiniteDetector {
 public:
  explicit NonFiniteDetector(const NonFiniteParams& p) : p_(p) {}

  // One step of a run: how many of the watched values were there, how many of them were not finite, and whether a
  // loss scaler explains it (a scale was reported and the loss itself is finite). A step without any watched value
  // changes nothing: absence is not recovery.
  Reading Feed(uint64_t step, uint64_t present, uint64_t nonfinite, bool scaler_explains) {
    if (present == 0) return {};
    Reading r{Verdict::kClear, 0, 0, static_cast<double>(nonfinite)};
    if (nonfinite == 0) {
      last_finite_step_ = step;
      in_row_ = 0;
      return r;
    }
    ++in_row_;
    r.verdict = scaler_explains && in_row_ <= p_.loss_scaling_grace_steps ? Verdict::kBetween : Verdict::kFiring;
    return r;
  }

  std::optional<uint64_t> last_finite_step() const { return last_finite_step_; }
  void set_last_finite_step(uint64_t step) { last_finite_step_ = step; }

 private:
  NonFiniteParams p_;
  std::optional<uint64_t> last_finite_step_;
  uint64_t in_row_ = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_NONFINITE_H_
