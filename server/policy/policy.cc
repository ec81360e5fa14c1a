#include "server/policy/policy.h"

namespace trimtab::server {

const char* DetectorName(const DetectorParams& params) {
  static constexpr const char* kNames[] = {"threshold", "ratio_to_median",  "zscore",        "growth",
                                           "cusum",     "sign_persistence", "nonfinite",     "explosion",
                                           "stall",     "missing_rank",     "missing_signal"};
  static_assert(std::size(kNames) == std::variant_size_v<DetectorParams>);
  return kNames[params.index()];
}

}  // namespace trimtab::server
