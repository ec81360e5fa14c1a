// A policy as plain values: which signals are watched, by which detector, and what follows. Language: docs/policy.md.
//
// Policy is a value: copied, compared by its text, and shared by the live engine and by backtests. Nothing here does
// work; ParsePolicy makes one from YAML, RunEvaluator (evaluator.h) runs one.
#ifndef TRIMTAB_SERVER_POLICY_POLICY_H_
#define TRIMTAB_SERVER_POLICY_POLICY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "trimtab/v1/common.pb.h"

namespace trimtab::server {

// Bounds of the language. A policy over one of them is refused with its line.
inline constexpr size_t kMaxPolicyBytes = size_t{256} << 10;
inline constexpr size_t kMaxRules = 64;
inline constexpr uint32_t kMaxWindowSamples = 4096;
inline constexpr uint32_t kMaxForSamples = 100000;

// The value against a constant. Exactly one of above and below is set.
struct ThresholdParams {
  std::optional<double> above, below;
  std::optional<double> clear_below, clear_above;  // hysteresis; default: the threshold itself
};

// A layer against the median of the other layers at the same step. Unknown with fewer than 3 layers.
struct RatioToMedianParams {
  double factor = 3;
  double clear_factor = 2;
  double at_least = 0;  // values below this never fire
};

// Robust z: (value - median) / (1.4826 MAD), median and MAD over the series' own last window_samples values.
struct ZScoreParams {
  enum class Side { kAbove, kBelow, kBoth };
  double sigmas = 8;
  double clear_sigmas = 4;
  uint32_t window_samples = 128;
  uint32_t min_samples = 32;
  double scale_floor = 0;  // the smallest sigma that is believed, in the signal's unit
  Side side = Side::kAbove;
};

// The value against the series' own past: value >= factor x (median or minimum over the last window_steps steps).
struct GrowthParams {
  enum class Reference { kMedian, kMinimum };
  double factor = 4;
  double clear_factor = 2;
  uint64_t window_steps = 2000;
  uint32_t min_samples = 16;
  double at_least = 0;
  double pack_factor = 0;  // also >= this x the median of the other layers; 0: not asked
  Reference reference = Reference::kMedian;
};

// Cumulated robust z above a drift; the baseline (median, MAD) is learned once from the first baseline_samples.
struct CusumParams {
  uint32_t baseline_samples = 64;
  double drift_sigmas = 0.5;
  double limit_sigmas = 8;
  double scale_floor = 0;
};

// The share of values of one sign among the last window_samples nonzero ones.
struct SignPersistenceParams {
  uint32_t window_samples = 64;
  double share = 0.9;
  double clear_share = 0.75;
};

// A value that is not finite, on any rank. Fires on the first sample unless a loss scaler explains it.
struct NonFiniteParams {
  // With a loss scaler in use a non-finite grad norm beside a finite loss is a skipped step, not a fault, for this many
  // steps in a row.
  uint32_t loss_scaling_grace_steps = 20;
};

// Mean of the last mean_samples more than `rise` above its running minimum for hold_samples samples in a row, and not
// already falling back: the present rise is at least falling_ratio of the highest one, or it lasted 3 x hold_samples.
struct ExplosionParams {
  uint32_t mean_samples = 20;
  double rise = 0.5;
  uint32_t hold_samples = 100;
  double falling_ratio = 0.5;
  double clear_rise = 0.2;  // resolved when the mean is this close to its minimum again
  double noise_sigmas = 0;  // the rise must also be this many sigmas of the mean's own noise
};

// No new highest step for longer than median_step_times x the median step time, and at least at_least_seconds; or the
// same step reported repeat_limit times.
struct StallParams {
  double median_step_times = 10;
  double at_least_seconds = 120;
  uint32_t repeat_limit = 100;
};

// A rank of the world is not connected while others are, for at_least_seconds.
struct MissingRankParams {
  double at_least_seconds = 60;
};

// The signal is absent from a step after it came with present_before_samples steps in a row.
struct MissingSignalParams {
  uint32_t present_before_samples = 5;
};

using DetectorParams =
    std::variant<ThresholdParams, RatioToMedianParams, ZScoreParams, GrowthParams, CusumParams, SignPersistenceParams,
                 NonFiniteParams, ExplosionParams, StallParams, MissingRankParams, MissingSignalParams>;

// The detector's name in YAML: "threshold", "growth", …
const char* DetectorName(const DetectorParams& params);

enum class ActionKind { kAlert, kPropose, kSwitch };

struct Action {
  ActionKind kind = ActionKind::kAlert;
  v1::KernelMode mode = v1::KERNEL_MODE_STABILIZED;
  uint32_t max_switches_per_run = 8;  // over the run's whole life, also over server restarts
};

enum class Scope { kLayersThatFired, kAll };

// Watches the run after a switch of the same rule was applied, and asks for a rollback when it made things worse.
struct Guard {
  uint64_t watch_steps = 500;            // after the step at which the switch took effect
  double loss_worse_by = 0.5;            // mean loss above the mean before the switch; 0: not watched
  uint32_t loss_worse_for_samples = 50;  // in a row
  double step_time_factor_max = 0;       // median step time after / before; 0: not watched
  bool nonfinite_loss = true;            // roll back at the first non-finite loss
};

struct Rule {
  std::string name;
  std::string about;                 // one sentence for the alert
  std::vector<std::string> signals;  // metric names; several only for nonfinite; none for stall and missing_rank
  DetectorParams detector;
  uint32_t for_samples = 1;
  double for_seconds = 0;  // from the first firing sample in a row; both must hold
  uint32_t clear_for_samples = 1;
  uint64_t warm_up_steps = 0;    // steps with a smaller number never fire
  uint64_t cool_down_steps = 0;  // after an alert, before the next one of this rule and layer
  v1::Severity severity = v1::SEVERITY_WARNING;
  Scope scope = Scope::kLayersThatFired;
  Action action;
  std::optional<Guard> guard;
  uint32_t line = 0;  // in the YAML text
};

struct Policy {
  std::vector<Rule> rules;
  std::string yaml;  // the text it was read from
};

// Policy that is compiled in: deploy/policy/default.yaml.
const std::string& DefaultPolicyYaml();

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_POLICY_H_
