#include "server/policy/describe.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/policy/known_signals.h"
#include "server/policy/policy_parser.h"
#include "server/policy/yaml_map.h"

namespace trimtab::server {
namespace {

using nlohmann::json;

struct InWords {
  std::string operator()(const ThresholdParams& p) const {
    return p.above ? absl::StrCat("above ", NumberText(*p.above)) : absl::StrCat("below ", NumberText(*p.below));
  }
  std::string operator()(const RatioToMedianParams& p) const {
    return absl::StrCat("at least ", NumberText(p.factor), " x the median of the other layers",
                        p.at_least > 0 ? absl::StrCat(" and ", NumberText(p.at_least)) : "");
  }
  std::string operator()(const ZScoreParams& p) const {
    const char* side = p.side == ZScoreParams::Side::kAbove   ? "above"
                       : p.side == ZScoreParams::Side::kBelow ? "below"
                                                              : "away from";
    return absl::StrCat(NumberText(p.sigmas), " robust sigmas or more ", side, " the median of its last ",
                        p.window_samples, " samples");
  }
  std::string operator()(const GrowthParams& p) const {
    std::string text = absl::StrCat("at least ", NumberText(p.factor), " x its own ",
                                    p.reference == GrowthParams::Reference::kMedian ? "median" : "minimum", " over ",
                                    p.window_steps, " steps");
    if (p.at_least > 0) absl::StrAppend(&text, " and ", NumberText(p.at_least));
    if (p.pack_factor > 0) {
      absl::StrAppend(&text, " and ", NumberText(p.pack_factor), " x the median of the other layers");
    }
    return text;
  }
  std::string operator()(const CusumParams& p) const {
    return absl::StrCat("a cumulated rise of ", NumberText(p.limit_sigmas), " sigmas above its first ",
                        p.baseline_samples, " samples");
  }
  std::string operator()(const SignPersistenceParams& p) const {
    return absl::StrCat("of one sign in ", NumberText(100 * p.share), " % of its last ", p.window_samples, " samples");
  }
  std::string operator()(const NonFiniteParams&) const { return "not finite"; }
  std::string operator()(const ExplosionParams& p) const {
    return absl::StrCat("mean of ", p.mean_samples, " more than ", NumberText(p.rise),
                        " above its running minimum for ", p.hold_samples, " samples");
  }
  std::string operator()(const StallParams& p) const {
    return absl::StrCat("no new step for ", NumberText(p.median_step_times), " x the median step time and ",
                        NumberText(p.at_least_seconds), " s");
  }
  std::string operator()(const MissingRankParams& p) const {
    return absl::StrCat("a rank is not connected for ", NumberText(p.at_least_seconds), " s");
  }
  std::string operator()(const MissingSignalParams& p) const {
    return absl::StrCat("absent after it came ", p.present_before_samples, " times in a row");
  }
};

struct AsJson {
  json operator()(const ThresholdParams& p) const {
    json j = json::object();
    if (p.above) j["above"] = *p.above, j["clear_below"] = p.clear_below.value_or(*p.above);
    if (p.below) j["below"] = *p.below, j["clear_above"] = p.clear_above.value_or(*p.below);
    return j;
  }
  json operator()(const RatioToMedianParams& p) const {
    return {{"factor", p.factor}, {"clear_factor", p.clear_factor}, {"at_least", p.at_least}};
  }
  json operator()(const ZScoreParams& p) const {
    static constexpr const char* kSides[] = {"above", "below", "both"};
    return {
        {"sigmas", p.sigmas},           {"clear_sigmas", p.clear_sigmas}, {"window_samples", p.window_samples},
        {"min_samples", p.min_samples}, {"scale_floor", p.scale_floor},   {"side", kSides[static_cast<int>(p.side)]}};
  }
  json operator()(const GrowthParams& p) const {
    return {{"factor", p.factor},
            {"clear_factor", p.clear_factor},
            {"window_steps", p.window_steps},
            {"min_samples", p.min_samples},
            {"at_least", p.at_least},
            {"pack_factor", p.pack_factor},
            {"reference", p.reference == GrowthParams::Reference::kMedian ? "median" : "minimum"}};
  }
  json operator()(const CusumParams& p) const {
    return {{"baseline_samples", p.baseline_samples},
            {"drift_sigmas", p.drift_sigmas},
            {"limit_sigmas", p.limit_sigmas},
            {"scale_floor", p.scale_floor}};
  }
  json operator()(const SignPersistenceParams& p) const {
    return {{"window_samples", p.window_samples}, {"share", p.share}, {"clear_share", p.clear_share}};
  }
  json operator()(const NonFiniteParams& p) const { return {{"loss_scaling_grace_steps", p.loss_scaling_grace_steps}}; }
  json operator()(const ExplosionParams& p) const {
    return {{"mean_samples", p.mean_samples}, {"rise", p.rise},
            {"hold_samples", p.hold_samples}, {"falling_ratio", p.falling_ratio},
            {"clear_rise", p.clear_rise},     {"noise_sigmas", p.noise_sigmas}};
  }
  json operator()(const StallParams& p) const {
    return {{"median_step_times", p.median_step_times},
            {"at_least_seconds", p.at_least_seconds},
            {"repeat_limit", p.repeat_limit}};
  }
  json operator()(const MissingRankParams& p) const { return {{"at_least_seconds", p.at_least_seconds}}; }
  json operator()(const MissingSignalParams& p) const { return {{"present_before_samples", p.present_before_samples}}; }
};

std::string Consequence(const Rule& rule) {
  static constexpr const char* kSeverities[] = {"", "info", "warning", "critical"};
  std::string text = absl::StrCat(kSeverities[rule.severity], " alert");
  if (rule.action.kind == ActionKind::kAlert) return text;
  absl::StrAppend(&text, rule.action.kind == ActionKind::kSwitch ? ", switch " : ", proposal to switch ",
                  rule.scope == Scope::kAll ? "all layers" : "the layers that fired", " to ",
                  ModeName(rule.action.mode));
  if (rule.action.kind == ActionKind::kSwitch) {
    absl::StrAppend(&text, " (at most ", rule.action.max_switches_per_run, " times a run)");
  }
  if (rule.guard) absl::StrAppend(&text, ", rolled back when it made things worse");
  return text;
}

}  // namespace

std::string DescribeDetector(const DetectorParams& params) { return std::visit(InWords{}, params); }

json DetectorJson(const DetectorParams& params) {
  json j = std::visit(AsJson{}, params);
  j["name"] = DetectorName(params);
  return j;
}

std::string ModeName(v1::KernelMode mode) {
  switch (mode) {
    case v1::KERNEL_MODE_NATIVE:
      return "native";
    case v1::KERNEL_MODE_OBSERVE:
      return "observe";
    case v1::KERNEL_MODE_STABILIZED:
      return "stabilized";
    case v1::KERNEL_MODE_PAPER:
      return "paper";
    default:
      return "unknown";
  }
}

std::string ClipUtf8(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end));
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return absl::StrCat(value);
}

json NumberJson(double value) {
  if (std::isfinite(value)) return value;
  return NumberText(value);
}

std::string DescribeHold(const Rule& rule) {
  std::string text;
  if (rule.for_samples > 1) absl::StrAppend(&text, ", ", rule.for_samples, " samples in a row");
  if (rule.for_seconds > 0) absl::StrAppend(&text, ", for ", NumberText(rule.for_seconds), " s");
  return text;
}

std::string PolicySummary(const Policy& policy) {
  if (policy.rules.empty()) return "No rules: nothing is watched.\n";
  std::vector<absl::string_view> known(std::begin(kScalarSignals), std::end(kScalarSignals));
  known.insert(known.end(), std::begin(kLayerSignals), std::end(kLayerSignals));
  std::string text;
  for (const Rule& rule : policy.rules) {
    absl::StrAppend(&text, rule.name, ": ", absl::StrJoin(rule.signals, " or "), rule.signals.empty() ? "" : " ",
                    DescribeDetector(rule.detector));
    absl::StrAppend(&text, DescribeHold(rule));
    if (rule.warm_up_steps > 0) absl::StrAppend(&text, ", from step ", rule.warm_up_steps);
    absl::StrAppend(&text, " -> ", Consequence(rule), ".\n");
    for (const std::string& signal : rule.signals) {
      if (std::find(known.begin(), known.end(), signal) != known.end()) continue;
      absl::StrAppend(&text, "  warning: line ", rule.line, ": no agent of this version reports '", signal,
                      "'; the rule stays silent until a run does.", DidYouMean(signal, known), "\n");
    }
  }
  return text;
}

}  // namespace trimtab::server
