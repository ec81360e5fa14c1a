// A value against the series' own past: how many times its median (or minimum) of the last window_steps steps it is.
//
// The past is kept as at most kSlots values, at least window_steps / kSlots steps apart, so that a long window costs
// the same as a short one whatever the sampling interval is.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_GROWTH_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_GROWTH_H_

#include <algorithm>
#include <cstdint>

#include "server/policy/detectors/window.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class GrowthDetector {
 public:
  static constexpr uint64_t kSlots = 64;

  explicit GrowthDetector(const GrowthParams& p)
      : p_(p), past_(std::clamp<uint64_t>(p.window_steps, 1, kSlots), kSlots), stride_steps_(p.window_steps / kSlots) {}

  // Compares, then learns. Unknown before min_samples values, when the past is not positive, or when the pack is asked
  // for and unknown. A value below at_least is clear whatever its growth.
  Reading Feed(const Sample& s) {
    Reading r;
    const Window& w = past_.window();
    const double reference = p_.reference == GrowthParams::Reference::kMedian ? w.Median() : w.Minimum();
    const bool known = w.size() >= std::max<size_t>(1, p_.min_samples) && reference > 0 &&
                       (p_.pack_factor == 0 || s.pack_median == s.pack_median);
    if (known) {
      r.bound = std::max(p_.factor * reference, p_.at_least);
      if (p_.pack_factor > 0) r.bound = std::max(r.bound, p_.pack_factor * s.pack_median);
      r.verdict = s.value >= r.bound                                                ? Verdict::kFiring
                  : s.value <= p_.clear_factor * reference || s.value < p_.at_least ? Verdict::kClear
                                                                                    : Verdict::kBetween;
      r.reference = reference;
      r.score = s.value / reference;
    }
    if (w.size() == 0 || s.step >= learned_step_ + std::max<uint64_t>(1, stride_steps_) || s.step < learned_step_) {
      past_.Learn(s.value, r.verdict == Verdict::kFiring);
      learned_step_ = s.step;
    }
    return r;
  }

 private:
  GrowthParams p_;
  Baseline past_;
  uint64_t stride_steps_;
  uint64_t learned_step_ = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_GROWTH_H_
