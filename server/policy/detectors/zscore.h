// Robust z of a value against the series' own past.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_ZSCORE_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_ZSCORE_H_

#include <algorithm>
#include <cmath>

#include "server/policy/detectors/window.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class ZScoreDetector {
 public:
  explicit ZScoreDetector(const ZScoreParams& p)
      : p_(p), past_(p.window_samples, kPatienceWindows * size_t{p.window_samples}) {}

  // Compares, then learns. Unknown before min_samples, or when the past is constant and scale_floor is 0.
  Reading Feed(const Sample& s) {
    Reading r;
    const Window& w = past_.window();
    if (w.size() >= std::max<size_t>(1, p_.min_samples)) {
      const double median = w.Median();
      // A few samples say nothing about the noise: with a floor, it alone is the scale then.
      const bool few = w.size() < kScaleSamples && p_.scale_floor > 0;
      const double sigma = few ? p_.scale_floor : std::max(SigmaOfMad(w.MedianDeviation(median)), p_.scale_floor);
      if (sigma > 0) {
        const double z = (s.value - median) / sigma;
        const double sided = p_.side == ZScoreParams::Side::kBoth    ? std::abs(z)
                             : p_.side == ZScoreParams::Side::kBelow ? -z
                                                                     : z;
        const double sign =
            p_.side == ZScoreParams::Side::kBelow || (p_.side == ZScoreParams::Side::kBoth && z < 0) ? -1.0 : 1.0;
        r.verdict = sided >= p_.sigmas         ? Verdict::kFiring
                    : sided <= p_.clear_sigmas ? Verdict::kClear
                                               : Verdict::kBetween;
        r.reference = median;
        r.bound = median + sign * p_.sigmas * sigma;
        r.score = z;
      }
    }
    // What is not clear does not teach either: the first steps of a jump must not hide the next ones.
    past_.Learn(s.value, r.verdict == Verdict::kFiring || r.verdict == Verdict::kBetween);
    return r;
  }

 private:
  // A series that stays away for this many windows has found a new level.
  static constexpr size_t kPatienceWindows = 16;
  static constexpr size_t kScaleSamples = 8;
  ZScoreParams p_;
  Baseline past_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_ZSCORE_H_
