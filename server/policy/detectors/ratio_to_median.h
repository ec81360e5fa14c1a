// A layer against the pack: the median of the other layers at the same step.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_RATIO_TO_MEDIAN_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_RATIO_TO_MEDIAN_H_

#include <algorithm>

#include "server/policy/detectors/reading.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class RatioToMedianDetector {
 public:
  explicit RatioToMedianDetector(const RatioToMedianParams& p) : p_(p) {}

  // Unknown when the pack is unknown or its median is not positive: a ratio means nothing there.
  Reading Feed(const Sample& s) const {
    if (!(s.pack_median > 0)) return {};
    const double bound = std::max(p_.factor * s.pack_median, p_.at_least);
    const double clear = p_.clear_factor * s.pack_median;
    return {s.value >= bound                            ? Verdict::kFiring
            : s.value <= clear || s.value < p_.at_least ? Verdict::kClear
                                                        : Verdict::kBetween,
            s.pack_median, bound, s.value / s.pack_median};
  }

 private:
  RatioToMedianParams p_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_RATIO_TO_MEDIAN_H_
