// Runs the rules of a policy on the folded steps of one run. Pure: no clock, no thread, no store, so that the live
// engine and a backtest decide alike, and a decision can be made again from stored steps.
//
// Not thread-safe. Memory: one detector a (rule, layer), bounded by kMaxRules x kMaxLayers.
#ifndef TRIMTAB_SERVER_POLICY_EVALUATOR_H_
#define TRIMTAB_SERVER_POLICY_EVALUATOR_H_

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/policy/alarm.h"
#include "server/policy/decision.h"
#include "server/policy/detectors/missing_rank.h"
#include "server/policy/detectors/missing_signal.h"
#include "server/policy/detectors/nonfinite.h"
#include "server/policy/detectors/stall.h"
#include "server/policy/guard_watch.h"
#include "server/policy/latest.h"
#include "server/policy/series_detector.h"
#include "server/policy/signals.h"

namespace trimtab::server {

class RunEvaluator {
 public:
  // An asked switch that was refused is asked again after this many steps, this many times.
  static constexpr uint64_t kRetrySteps = 100;
  static constexpr uint32_t kRetriesMax = 5;
  // While a plan of the rule is in flight, it looks this often whether further layers can be asked for.
  static constexpr uint64_t kWaitSteps = 20;
  // How far back an attention alarm counts as a precursor of a loss alarm.
  static constexpr uint64_t kPrecursorSteps = 20000;

  // Both outlive the evaluator.
  RunEvaluator(const Policy* policy, const SignalTable* table);

  void SetFacts(RunFacts facts) { facts_ = std::move(facts); }
  // The next folded step, ascending. `now_unix_nanos` is only for stall.
  std::vector<Decision> Evaluate(const StepCells& cells, int64_t now_unix_nanos);
  void OnRepeatedStep();
  // Stall and missing_rank.
  std::vector<Decision> Look(int64_t now_unix_nanos, const std::vector<uint32_t>& missing, uint32_t missing_count,
                             uint32_t connected);
  // The run goes back to an earlier step: alarms close, history is forgotten; switch counts stay.
  std::vector<Decision> Restart(uint64_t step);
  // No rank is left: alarms close, with `why` and not as recovered.
  std::vector<Decision> End(const std::string& why);

  // What became of a kSwitch decision of `rule`.
  void OnSwitchAccepted(size_t rule, const std::vector<uint32_t>& layers);
  void OnSwitchRefused(size_t rule, const std::vector<uint32_t>& layers, bool try_again);
  void OnSwitchApplied(size_t rule, uint64_t effective_step);

  // What a restarted server has to know: alarms, counts, guards, best loss.
  nlohmann::json Save() const;
  void Load(const nlohmann::json& state);

  uint64_t active_alarms() const;
  uint64_t last_step() const { return last_step_; }
  // Something that Save() keeps has changed since the last call.
  bool TakeChanged() { return std::exchange(changed_, false); }

 private:
  struct Point {
    uint64_t step;
    double value;
    Reading reading;
  };
  struct Series {
    std::optional<SeriesDetector> detector;
    Alarm alarm;
    std::deque<Point> tail;  // at most kTail
  };
  struct RuleState {
    std::vector<Series> series;  // one a layer; one for a run
    bool layered = false;
    std::optional<NonFiniteDetector> nonfinite;
    std::optional<StallDetector> stall;
    std::optional<MissingRankDetector> missing_rank;
    std::optional<MissingSignalDetector> missing_signal;
    std::set<uint32_t> asked;  // layers in a plan of this rule; UINT32_MAX: all
    uint32_t switches = 0;
    uint32_t retries = 0;
    std::optional<uint64_t> retry_step;
    bool blocked = false;  // the guard undid a switch: no further one in this run
    std::optional<GuardWatch> guard;
  };
  static constexpr size_t kTail = 8;

  // What the step says of a rule's series beside its reading.
  struct Where {
    const Cell* cell = nullptr;
    std::string signal;
  };

  void ResetRule(size_t rule);
  Series& SeriesOf(size_t rule, size_t index, size_t count);
  void EvaluateSeries(size_t rule, const StepCells& cells, std::vector<Decision>* out);
  void EvaluateNonFinite(size_t rule, const StepCells& cells, std::vector<Decision>* out);
  void EvaluateMissing(size_t rule, const StepCells& cells, std::vector<Decision>* out);
  void EvaluateGuard(size_t rule, const StepCells& cells, std::vector<Decision>* out);
  void AskForSwitch(size_t rule, uint64_t step, std::vector<Decision>* out);
  // Feeds the alarm and appends what changed. True when it fired.
  bool Apply(size_t rule, std::optional<uint32_t> layer, Series* series, uint64_t step, double value,
             const Reading& reading, const Where& where, std::vector<Decision>* out);
  Decision Close(size_t rule, std::optional<uint32_t> layer, const Series& series, const std::string& why) const;

  std::string LayerText(uint32_t layer) const;
  std::string FiredMessage(size_t rule, std::optional<uint32_t> layer, double value, const Reading& reading,
                           const Where& where) const;
  std::string ActionText(size_t rule, std::optional<uint32_t> layer) const;
  std::string PrecursorText() const;
  nlohmann::json Evidence(size_t rule, std::optional<uint32_t> layer, const Series& series, const Where& where) const;
  nlohmann::json Precursors() const;
  bool IsAttentionRule(size_t rule) const;
  bool IsTraining(const std::string& signal) const { return signal == "loss" || signal == "grad_norm"; }
  std::optional<std::string> WhyNoSwitch(size_t rule) const;
  bool InMode(size_t rule, uint32_t layer) const;
  const SignalCells* Find(const StepCells& cells, const std::string& signal) const;

  const Policy* policy_;
  const SignalTable* table_;
  RunFacts facts_;
  std::vector<RuleState> rules_;
  LatestSignals latest_;
  StepHistory history_;
  uint64_t last_step_ = 0;
  int64_t last_time_unix_nanos_ = 0;
  int64_t reading_time_unix_nanos_ = 0;  // of the step or the look being judged
  uint32_t ranks_folded_ = 0;
  bool changed_ = false;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_EVALUATOR_H_
