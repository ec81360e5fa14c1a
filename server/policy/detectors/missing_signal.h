// A signal that came with every step and then does not.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_MISSING_SIGNAL_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_MISSING_SIGNAL_H_

#include <cstdint>

#include "server/policy/detectors/reading.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class MissingSignalDetector {
 public:
  explicit MissingSignalDetector(const MissingSignalParams& p) : p_(p) {}

  // Unknown until it was present in present_before_samples steps in a row; a sparsely reported signal never fires.
  Reading Feed(bool present) {
    if (present) {
      absent_in_row_ = 0;
      if (present_in_row_ < p_.present_before_samples) ++present_in_row_;
      return {present_in_row_ >= p_.present_before_samples ? Verdict::kClear : Verdict::kUnknown, kNotKnown, kNotKnown,
              0};
    }
    if (present_in_row_ < p_.present_before_samples) {
      present_in_row_ = 0;
      return {};
    }
    ++absent_in_row_;
    return {Verdict::kFiring, kNotKnown, 1, static_cast<double>(absent_in_row_)};
  }

 private:
  MissingSignalParams p_;
  uint32_t present_in_row_ = 0;
  uint64_t absent_in_row_ = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_MISSING_SIGNAL_H_
