// A rank that is not there while others are.
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_MISSING_RANK_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_MISSING_RANK_H_

#include <cstdint>
#include <optional>

#include "server/policy/detectors/reading.h"
#include "server/policy/policy.h"

namespace trimtab::server {

class MissingRankDetector {
 public:
  explicit MissingRankDetector(const MissingRankParams& p) : p_(p) {}

  // `missing`: ranks of the world that are neither connected nor finished; `connected`: ranks that are. A run that is
  // gone as a whole is not missing ranks (stall and the registry say so).
  Reading Look(int64_t now_unix_nanos, uint32_t missing, uint32_t connected) {
    if (connected == 0) {
      since_.reset();
      return {};
    }
    if (missing == 0) {
      since_.reset();
      return {Verdict::kClear, 0, p_.at_least_seconds, 0};
    }
    if (!since_) since_ = now_unix_nanos;
    const double seconds = static_cast<double>(now_unix_nanos - *since_) * 1e-9;
    return {seconds >= p_.at_least_seconds ? Verdict::kFiring : Verdict::kBetween, static_cast<double>(missing),
            p_.at_least_seconds, seconds};
  }

 private:
  MissingRankParams p_;
  std::optional<int64_t> since_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_MISSING_RANK_H_
