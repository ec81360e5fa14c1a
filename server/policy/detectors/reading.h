// What a detector is fed and what it says. Detectors are values: no clock, no thread, no allocation after construction.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_READING_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_READING_H_

#include <cmath>
#include <cstdint>
#include <limits>

namespace trimtab::server {

inline constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();

// One value of one series, folded over ranks (and heads).
struct Sample {
  uint64_t step = 0;
  double value = 0;                // +Inf is a value (it is above everything); NaN is not fed
  double pack_median = kNotKnown;  // median of the other layers at this step; NaN with fewer than 2 others
};

enum class Verdict : uint8_t {
  kUnknown,  // not enough history: neither fires nor clears
  kClear,
  kBetween,  // inside the hysteresis band
  kFiring,
};

struct Reading {
  Verdict verdict = Verdict::kUnknown;
  double reference = kNotKnown;  // what the value was compared with (median, minimum, …)
  double bound = kNotKnown;      // the value at which it would fire
  double score = kNotKnown;      // the detector's own measure (ratio, sigmas, share, rise)
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_READING_H_
