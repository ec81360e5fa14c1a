#include "server/policy/detector_parser.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace trimtab::server {
namespace {

constexpr double kHuge = 1e300;

// Reports `message` unless `holds`. Silent when a value of the mapping was refused already: that is the cause.
void Require(YamlMap& map, bool holds, const char* message) {
  if (!holds && !map.refused()) map.problems()->Add(map.mark(), absl::StrCat(map.what(), ": ", message));
}

DetectorParams Threshold(YamlMap& map) {
  ThresholdParams p;
  map.Number("above", -kHuge, kHuge, &p.above);
  map.Number("below", -kHuge, kHuge, &p.below);
  map.Number("clear_below", -kHuge, kHuge, &p.clear_below);
  map.Number("clear_above", -kHuge, kHuge, &p.clear_above);
  Require(map, p.above.has_value() != p.below.has_value(), "give either 'above' or 'below'.");
  Require(map, !p.clear_below || (p.above && *p.clear_below <= *p.above),
          "'clear_below' goes with 'above' and may not exceed it.");
  Require(map, !p.clear_above || (p.below && *p.clear_above >= *p.below),
          "'clear_above' goes with 'below' and may not be under it.");
  return p;
}

DetectorParams RatioToMedian(YamlMap& map) {
  RatioToMedianParams p;
  map.Number("factor", 1, 1e9, &p.factor);
  p.clear_factor = std::min(p.clear_factor, p.factor);
  map.Number("clear_factor", 0, 1e9, &p.clear_factor);
  map.Number("at_least", -kHuge, kHuge, &p.at_least);
  Require(map, p.clear_factor <= p.factor, "'clear_factor' may not exceed 'factor'.");
  return p;
}

DetectorParams ZScore(YamlMap& map) {
  ZScoreParams p;
  map.Number("sigmas", 0.5, 1e9, &p.sigmas);
  p.clear_sigmas = std::min(p.clear_sigmas, p.sigmas);
  map.Number("clear_sigmas", 0, 1e9, &p.clear_sigmas);
  map.Count("window_samples", 2, kMaxWindowSamples, &p.window_samples);
  p.min_samples = std::min(p.min_samples, p.window_samples);
  map.Count("min_samples", 1, kMaxWindowSamples, &p.min_samples);
  map.Number("scale_floor", 0, kHuge, &p.scale_floor);
  if (const auto side = map.Word("side", {"above", "below", "both"})) p.side = static_cast<ZScoreParams::Side>(*side);
  Require(map, p.clear_sigmas <= p.sigmas, "'clear_sigmas' may not exceed 'sigmas'.");
  Require(map, p.min_samples <= p.window_samples, "'min_samples' may not exceed 'window_samples'.");
  return p;
}

DetectorParams Growth(YamlMap& map) {
  GrowthParams p;
  map.Number("factor", 1, 1e9, &p.factor);
  p.clear_factor = std::min(p.clear_factor, p.factor);
  map.Number("clear_factor", 0, 1e9, &p.clear_factor);
  map.Count("window_steps", 1, 10'000'000, &p.window_steps);
  map.Count("min_samples", 1, 64, &p.min_samples);
  map.Number("at_least", -kHuge, kHuge, &p.at_least);
  map.Number("pack_factor", 0, 1e9, &p.pack_factor);
  if (const auto r = map.Word("reference", {"median", "minimum"})) {
    p.reference = static_cast<GrowthParams::Reference>(*r);
  }
  Require(map, p.clear_factor <= p.factor, "'clear_factor' may not exceed 'factor'.");
  Require(map, p.min_samples <= p.window_steps, "'min_samples' may not exceed 'window_steps'.");
  return p;
}

DetectorParams Cusum(YamlMap& map) {
  CusumParams p;
  map.Count("baseline_samples", 4, kMaxWindowSamples, &p.baseline_samples);
  map.Number("drift_sigmas", 0.01, 1e6, &p.drift_sigmas);
  map.Number("limit_sigmas", 0.1, 1e6, &p.limit_sigmas);
  map.Number("scale_floor", 0, kHuge, &p.scale_floor);
  return p;
}

DetectorParams SignPersistence(YamlMap& map) {
  SignPersistenceParams p;
  map.Count("window_samples", 4, kMaxWindowSamples, &p.window_samples);
  map.Number("share", 0.5, 1, &p.share);
  p.clear_share = std::min(p.clear_share, p.share);
  map.Number("clear_share", 0.5, 1, &p.clear_share);
  Require(map, p.clear_share <= p.share, "'clear_share' may not exceed 'share'.");
  return p;
}

DetectorParams NonFinite(YamlMap& map) {
  NonFiniteParams p;
  map.Count("loss_scaling_grace_steps", 0, 100000, &p.loss_scaling_grace_steps);
  return p;
}

DetectorParams Explosion(YamlMap& map) {
  ExplosionParams p;
  map.Count("mean_samples", 1, kMaxWindowSamples, &p.mean_samples);
  map.Number("rise", 0, kHuge, &p.rise);
  map.Count("hold_samples", 1, 1'000'000, &p.hold_samples);
  map.Number("falling_ratio", 0, 1, &p.falling_ratio);
  p.clear_rise = std::min(p.clear_rise, p.rise);
  map.Number("clear_rise", 0, kHuge, &p.clear_rise);
  map.Number("noise_sigmas", 0, 1e6, &p.noise_sigmas);
  Require(map, p.clear_rise <= p.rise, "'clear_rise' may not exceed 'rise'.");
  return p;
}

DetectorParams Stall(YamlMap& map) {
  StallParams p;
  map.Number("median_step_times", 1, 1e6, &p.median_step_times);
  map.Number("at_least_seconds", 1, 1e7, &p.at_least_seconds);
  map.Count("repeat_limit", 2, 1'000'000, &p.repeat_limit);
  return p;
}

DetectorParams MissingRank(YamlMap& map) {
  MissingRankParams p;
  map.Number("at_least_seconds", 0, 1e7, &p.at_least_seconds);
  return p;
}

DetectorParams MissingSignal(YamlMap& map) {
  MissingSignalParams p;
  map.Count("present_before_samples", 1, 100000, &p.present_before_samples);
  return p;
}

struct Entry {
  absl::string_view name;
  DetectorParams (*parse)(YamlMap& map);
};

constexpr Entry kDetectors[] = {
    {"threshold", Threshold},
    {"ratio_to_median", RatioToMedian},
    {"zscore", ZScore},
    {"growth", Growth},
    {"cusum", Cusum},
    {"sign_persistence", SignPersistence},
    {"nonfinite", NonFinite},
    {"explosion", Explosion},
    {"stall", Stall},
    {"missing_rank", MissingRank},
    {"missing_signal", MissingSignal},
};

}  // namespace

std::optional<DetectorParams> ParseDetector(const YAML::Node& node, Problems* problems) {
  std::vector<absl::string_view> names;
  for (const Entry& e : kDetectors) names.push_back(e.name);
  std::string name;
  YAML::Node body(YAML::NodeType::Map);
  YAML::Mark mark = node.Mark();
  if (node.IsScalar()) {  // "detector: nonfinite": all defaults
    name = node.Scalar();
  } else if (node.IsMap() && node.size() == 1 && node.begin()->first.IsScalar()) {
    name = node.begin()->first.Scalar();
    mark = node.begin()->first.Mark();
    if (!node.begin()->second.IsNull()) body.reset(node.begin()->second);
  } else {
    problems->Add(mark, "'detector' must be one detector's name with its parameters, e.g. threshold: {above: 200}.");
    return std::nullopt;
  }
  for (const Entry& e : kDetectors) {
    if (name != e.name) continue;
    YamlMap map(body, absl::StrCat("detector ", name), problems, mark);
    DetectorParams params = e.parse(map);
    map.Finish();
    return params;
  }
  problems->Add(mark, absl::StrCat("Unknown detector '", name.substr(0, 64), "'.", DidYouMean(name, names)));
  return std::nullopt;
}

}  // namespace trimtab::server
