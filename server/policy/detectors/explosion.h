// The loss leaves its best level and does not come back.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_EXPLOSION_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_EXPLOSION_H_

#include <algorithm>
#include <cmath>
#include <limits>

#include "server/policy/detectors/window.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class ExplosionDetector {
 public:
  explicit ExplosionDetector(const ExplosionParams& p)
      : p_(p), recent_(p.mean_samples), differences_(p.noise_sigmas > 0 ? kNoiseSamples : 1) {}

  Reading Feed(const Sample& s) {
    if (!std::isfinite(s.value)) return {};
    if (p_.noise_sigmas > 0 && recent_.size() > 0) differences_.Push(s.value - last_);
    last_ = s.value;
    recent_.Push(s.value);
    if (!recent_.full()) return {};
    const double mean = recent_.Mean();
    best_ = std::min(best_, mean);
    const double rise = mean - best_;
    const double bound = std::max(p_.rise, p_.noise_sigmas * NoiseOfMean());
    if (rise > bound) {
      ++held_samples_;
      peak_rise_ = std::max(peak_rise_, rise);
    } else {
      held_samples_ = 0;
      peak_rise_ = 0;
    }
    const bool lasting = held_samples_ >= p_.hold_samples;
    const bool falling = rise < p_.falling_ratio * peak_rise_ && held_samples_ < 3 * p_.hold_samples;
    return {lasting && !falling     ? Verdict::kFiring
            : rise <= p_.clear_rise ? Verdict::kClear
                                    : Verdict::kBetween,
            best_, best_ + bound, rise};
  }

  // The best mean survives a restart of the server: without it an exploded run would look like a fresh one.
  double best() const { return best_; }
  void set_best(double best) { best_ = std::min(best_, best); }

 private:
  static constexpr size_t kNoiseSamples = 64;

  // Standard deviation of the mean, from the median deviation of successive differences (blind to slow trends).
  double NoiseOfMean() const {
    if (p_.noise_sigmas == 0 || differences_.size() < 2) return 0;
    const double sigma = SigmaOfMad(differences_.MedianDeviation(differences_.Median())) / std::sqrt(2.0);
    return sigma / std::sqrt(static_cast<double>(p_.mean_samples));
  }

  ExplosionParams p_;
  Window recent_, differences_;
  double last_ = 0;
  double best_ = std::numeric_limits<double>::infinity();
  double peak_rise_ = 0;
  uint64_t held_samples_ = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_EXPLOSION_H_
