// Any detector that is fed one value a step, made from its parameters.
#ifndef TRIMTAB_SERVER_POLICY_SERIES_DETECTOR_H_
#define TRIMTAB_SERVER_POLICY_SERIES_DETECTOR_H_

#include <optional>
#include <variant>

#include "server/policy/detectors/cusum.h"
#include "server/policy/detectors/explosion.h"
#include "server/policy/detectors/growth.h"
#include "server/policy/detectors/ratio_to_median.h"
#include "server/policy/detectors/sign_persistence.h"
#include "server/policy/detectors/threshold.h"
#include "server/policy/detectors/zscore.h"
#include "server/policy/policy.h"

namespace trimtab::server {

using SeriesDetector = std::variant<ThresholdDetector, RatioToMedianDetector, ZScoreDetector, GrowthDetector,
                                    CusumDetector, SignPersistenceDetector, ExplosionDetector>;

// Empty for the detectors that look at a whole run (nonfinite, stall, missing_rank, missing_signal).
inline std::optional<SeriesDetector> MakeSeriesDetector(const DetectorParams& params) {
  struct Make {
    std::optional<SeriesDetector> operator()(const ThresholdParams& p) const { return ThresholdDetector(p); }
    std::optional<SeriesDetector> operator()(const RatioToMedianParams& p) const { return RatioToMedianDetector(p); }
    std::optional<SeriesDetector> operator()(const ZScoreParams& p) const { return ZScoreDetector(p); }
    std::optional<SeriesDetector> operator()(const GrowthParams& p) const { return GrowthDetector(p); }
    std::optional<SeriesDetector> operator()(const CusumParams& p) const { return CusumDetector(p); }
    std::optional<SeriesDetector> operator()(const SignPersistenceParams& p) const {
      return SignPersistenceDetector(p);
    }
    std::optional<SeriesDetector> operator()(const ExplosionParams& p) const { return ExplosionDetector(p); }
    std::optional<SeriesDetector> operator()(const NonFiniteParams&) const { return std::nullopt; }
    std::optional<SeriesDetector> operator()(const StallParams&) const { return std::nullopt; }
    std::optional<SeriesDetector> operator()(const MissingRankParams&) const { return std::nullopt; }
    std::optional<SeriesDetector> operator()(const MissingSignalParams&) const { return std::nullopt; }
  };
  return std::visit(Make{}, params);
}

inline Reading Feed(SeriesDetector& detector, const Sample& sample) {
  return std::visit([&](auto& d) { return d.Feed(sample); }, detector);
}

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_SERIES_DETECTOR_H_
