// The value against a constant, with hysteresis.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_THRESHOLD_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_THRESHOLD_H_

#include "server/policy/detectors/reading.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class ThresholdDetector {
 public:
  explicit ThresholdDetector(const ThresholdParams& p) : p_(p) {}

  Reading Feed(const Sample& s) const {
    if (p_.above) {
      const double clear = p_.clear_below.value_or(*p_.above);
      return {s.value > *p_.above ? Verdict::kFiring
              : s.value <= clear  ? Verdict::kClear
                                  : Verdict::kBetween,
              *p_.above, *p_.above, s.value};
    }
    const double clear = p_.clear_above.value_or(*p_.below);
    return {s.value < *p_.below ? Verdict::kFiring
            : s.value >= clear  ? Verdict::kClear
                                : Verdict::kBetween,
            *p_.below, *p_.below, s.value};
  }

 private:
  ThresholdParams p_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_THRESHOLD_H_
