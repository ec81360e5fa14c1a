// Waiting times between attempts: doubling with jitter, so that a thousand couriers do not come back at once.
#ifndef TRIMTAB_AGENT_COURIER_BACKOFF_H_
#define TRIMTAB_AGENT_COURIER_BACKOFF_H_

#include <algorithm>
#include <cstdint>
#include <random>

#include "agent/courier/options.h"

namespace trimtab::courier {

class Backoff {
 public:
  Backoff(Duration min, Duration max, uint64_t seed) : min_(min), max_(max), next_(min), random_(seed) {}

  // The next wait: between half and all of min·2^n, at most `max`.
  Duration Next() {
    const Duration full = next_;
    next_ = std::min(max_, next_ * 2);
    std::uniform_int_distribution<Duration::rep> part(full.count() / 2, full.count());
    return Duration(part(random_));
  }
  void Reset() { next_ = min_; }

 private:
  Duration min_, max_, next_;
  std::mt19937_64 random_;
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_BACKOFF_H_
