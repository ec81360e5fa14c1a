// One sign where noise would show two: the share of the commoner sign among the last nonzero values.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_SIGN_PERSISTENCE_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_SIGN_PERSISTENCE_H_

#include <algorithm>

#include "server/policy/detectors/window.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class SignPersistenceDetector {
 public:
  explicit SignPersistenceDetector(const SignPersistenceParams& p) : p_(p), signs_(p.window_samples) {}

  // Unknown until the window is full. Zeros are left out: they have no sign.
  Reading Feed(const Sample& s) {
    if (s.value != 0) signs_.Push(s.value > 0 ? 1 : -1);
    if (!signs_.full()) return {};
    const double mean = signs_.Mean();
    const double share = 0.5 + 0.5 * std::abs(mean);
    return {share >= p_.share         ? Verdict::kFiring
            : share <= p_.clear_share ? Verdict::kClear
                                      : Verdict::kBetween,
            mean, p_.share, share};
  }

 private:
  SignPersistenceParams p_;
  Window signs_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_SIGN_PERSISTENCE_H_
