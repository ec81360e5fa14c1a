// Cumulative sum (Page): small but lasting rises above a baseline that was learned once.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_CUSUM_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_CUSUM_H_

#include <algorithm>

#include "server/policy/detectors/window.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class CusumDetector {
 public:
  explicit CusumDetector(const CusumParams& p) : p_(p), baseline_(p.baseline_samples) {}

  // Unknown while the baseline is learned, and for ever when it is constant and scale_floor is 0. One value adds at
  // most limit_sigmas, so that a single outlier does not stay in the sum for longer than limit / drift samples.
  Reading Feed(const Sample& s) {
    if (!baseline_.full()) {
      if (std::isfinite(s.value)) baseline_.Push(s.value);
      if (baseline_.full()) {
        median_ = baseline_.Median();
        sigma_ = std::max(SigmaOfMad(baseline_.MedianDeviation(median_)), p_.scale_floor);
      }
      return {};
    }
    if (!(sigma_ > 0)) return {};
    const double z = (s.value - median_) / sigma_;
    sum_ = std::max(0.0, sum_ + std::min(z, p_.limit_sigmas) - p_.drift_sigmas);
    sum_ = std::min(sum_, 2 * p_.limit_sigmas);  // a long fault must not take as long to clear
    return {sum_ >= p_.limit_sigmas ? Verdict::kFiring
            : sum_ <= 0             ? Verdict::kClear
                                    : Verdict::kBetween,
            median_, p_.limit_sigmas, sum_};
  }

 private:
  CusumParams p_;
  Window baseline_;
  double median_ = 0, sigma_ = 0, sum_ = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_CUSUM_H_
