#include "server/policy/evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/policy/describe.h"

namespace trimtab::server {
namespace {

constexpr uint32_t kAllLayers = std::numeric_limits<uint32_t>::max();

// For each value, the median of the others; NaN without any.
std::vector<double> MediansOfOthers(const std::vector<Cell>& cells) {
  std::vector<double> sorted;
  for (const Cell& c : cells) {
    if (c.values > 0) sorted.push_back(c.value);
  }
  std::sort(sorted.begin(), sorted.end());
  const auto without = [&](size_t skip, size_t i) { return sorted[i < skip ? i : i + 1]; };
  std::vector<double> medians(cells.size(), kNotKnown);
  if (sorted.size() < 2) return medians;
  const size_t n = sorted.size() - 1;
  for (size_t l = 0; l < cells.size(); ++l) {
    if (cells[l].values == 0) continue;
    const size_t skip = std::lower_bound(sorted.begin(), sorted.end(), cells[l].value) - sorted.begin();
    medians[l] = n % 2 == 1 ? without(skip, n / 2) : (without(skip, n / 2 - 1) + without(skip, n / 2)) / 2;
  }
  return medians;
}

bool NeedsPack(const DetectorParams& d) {
  const auto* growth = std::get_if<GrowthParams>(&d);
  return std::holds_alternative<RatioToMedianParams>(d) || (growth != nullptr && growth->pack_factor > 0);
}

bool HasNonFinite(const SignalCells* s) {
  return s != nullptr && std::any_of(s->cells.begin(), s->cells.end(), [](const Cell& c) { return c.nonfinite > 0; });
}

double ScalarOf(const SignalCells* s) {
  return s != nullptr && !s->layered && s->cells[0].values > 0 ? s->cells[0].value : kNotKnown;
}

}  // namespace

RunEvaluator::RunEvaluator(const Policy* policy, const SignalTable* table)
    : policy_(policy), table_(table), rules_(policy->rules.size()), latest_(table) {
  for (size_t r = 0; r < rules_.size(); ++r) ResetRule(r);
}

void RunEvaluator::ResetRule(size_t rule) {
  RuleState& s = rules_[rule];
  s.series.clear();
  s.guard.reset();
  s.retry_step.reset();
  s.asked.clear();
  const DetectorParams& d = policy_->rules[rule].detector;
  if (const auto* p = std::get_if<NonFiniteParams>(&d)) s.nonfinite.emplace(*p);
  if (const auto* p = std::get_if<StallParams>(&d)) s.stall.emplace(*p);
  if (const auto* p = std::get_if<MissingRankParams>(&d)) s.missing_rank.emplace(*p);
  if (const auto* p = std::get_if<MissingSignalParams>(&d)) s.missing_signal.emplace(*p);
}

RunEvaluator::Series& RunEvaluator::SeriesOf(size_t rule, size_t index, size_t count) {
  std::vector<Series>& series = rules_[rule].series;
  while (series.size() < std::max(count, index + 1)) {
    series.push_back({MakeSeriesDetector(policy_->rules[rule].detector), Alarm(), {}});
  }
  return series[index];
}

const SignalCells* RunEvaluator::Find(const StepCells& cells, const std::string& signal) const {
  const std::optional<size_t> i = table_->Find(signal);
  return i && cells.signals[*i].present ? &cells.signals[*i] : nullptr;
}

std::vector<Decision> RunEvaluator::Evaluate(const StepCells& cells, int64_t now_unix_nanos) {
  std::vector<Decision> out;
  const double seconds = last_time_unix_nanos_ > 0 && cells.step > last_step_
                             ? static_cast<double>(cells.time_unix_nanos - last_time_unix_nanos_) * 1e-9 /
                                   static_cast<double>(cells.step - last_step_)
                             : 0;
  last_time_unix_nanos_ = cells.time_unix_nanos;
  reading_time_unix_nanos_ = cells.time_unix_nanos;
  last_step_ = cells.step;
  ranks_folded_ = cells.ranks;
  latest_.Update(cells);
  if (std::vector<v1::KernelMode> modes = latest_.Modes(); !modes.empty()) facts_.modes = std::move(modes);
  history_.Push(cells.step, ScalarOf(Find(cells, "loss")), ScalarOf(Find(cells, "step_time_seconds")));
  for (size_t r = 0; r < rules_.size(); ++r) {
    if (rules_[r].stall) {
      rules_[r].stall->OnProgress(now_unix_nanos, seconds);
    } else if (rules_[r].nonfinite) {
      EvaluateNonFinite(r, cells, &out);
    } else if (rules_[r].missing_signal) {
      EvaluateMissing(r, cells, &out);
    } else if (!rules_[r].missing_rank) {
      EvaluateSeries(r, cells, &out);
    }
    EvaluateGuard(r, cells, &out);
  }
  return out;
}

void RunEvaluator::EvaluateSeries(size_t rule, const StepCells& cells, std::vector<Decision>* out) {
  const Rule& r = policy_->rules[rule];
  const SignalCells* s = Find(cells, r.signals[0]);
  if (s == nullptr) return;
  // A step whose loss or gradient is not finite teaches nothing about either: the 0.0 that some trainers print as the
  // loss after a NaN gradient is neither a best value nor a recovery.
  if (IsTraining(r.signals[0]) && (HasNonFinite(Find(cells, "loss")) || HasNonFinite(Find(cells, "grad_norm")))) return;
  const std::vector<double> packs =
      s->layered && NeedsPack(r.detector) ? MediansOfOthers(s->cells) : std::vector<double>();
  rules_[rule].layered = s->layered;
  bool fired = false;
  for (size_t l = 0; l < s->cells.size(); ++l) {
    const Cell& cell = s->cells[l];
    if (cell.values == 0) continue;
    Series& series = SeriesOf(rule, l, s->cells.size());
    const Sample sample{cells.step, cell.value, packs.empty() ? kNotKnown : packs[l]};
    const Reading reading = Feed(*series.detector, sample);
    fired |= Apply(rule, s->layered ? std::optional<uint32_t>(l) : std::nullopt, &series, cells.step, cell.value,
                   reading, {&cell, r.signals[0]}, out);
  }
  const std::optional<uint64_t> retry = rules_[rule].retry_step;
  if (r.action.kind != ActionKind::kAlert && (fired || (retry && cells.step >= *retry))) {
    AskForSwitch(rule, cells.step, out);
  }
}

void RunEvaluator::EvaluateNonFinite(size_t rule, const StepCells& cells, std::vector<Decision>* out) {
  uint64_t present = 0, nonfinite = 0;
  Where where;
  std::optional<uint32_t> layer;
  for (const std::string& signal : policy_->rules[rule].signals) {
    const SignalCells* s = Find(cells, signal);
    if (s == nullptr) continue;
    for (size_t l = 0; l < s->cells.size(); ++l) {
      present += s->cells[l].values + s->cells[l].nonfinite;
      nonfinite += s->cells[l].nonfinite;
      if (s->cells[l].nonfinite == 0 || where.cell != nullptr) continue;
      where = {&s->cells[l], signal};
      if (s->layered) layer = l;
    }
  }
  const bool scaled = latest_.Scalar("loss_scale").value_or(1) != 1;
  const bool loss_finite = !HasNonFinite(Find(cells, "loss"));
  const Reading reading =
      rules_[rule].nonfinite->Feed(cells.step, present, nonfinite, scaled && loss_finite && where.signal != "loss");
  Series& series = SeriesOf(rule, 0, 1);
  const double value = where.cell != nullptr && where.cell->values > 0 ? where.cell->value : kNotKnown;
  const bool fired = Apply(rule, layer, &series, cells.step, value, reading, where, out);
  if (fired && policy_->rules[rule].action.kind != ActionKind::kAlert) AskForSwitch(rule, cells.step, out);
}

void RunEvaluator::EvaluateMissing(size_t rule, const StepCells& cells, std::vector<Decision>* out) {
  const std::string& signal = policy_->rules[rule].signals[0];
  const Reading reading = rules_[rule].missing_signal->Feed(Find(cells, signal) != nullptr);
  Apply(rule, std::nullopt, &SeriesOf(rule, 0, 1), cells.step, kNotKnown, reading, {nullptr, signal}, out);
}

void RunEvaluator::EvaluateGuard(size_t rule, const StepCells& cells, std::vector<Decision>* out) {
  RuleState& state = rules_[rule];
  if (!state.guard) return;
  const SignalCells* loss = Find(cells, "loss");
  const std::optional<std::string> worse =
      state.guard->Feed(cells.step, ScalarOf(loss), HasNonFinite(loss), ScalarOf(Find(cells, "step_time_seconds")));
  if (worse) {
    Decision d;
    d.kind = Decision::Kind::kRollback;
    d.rule = rule;
    d.step = cells.step;
    d.severity = v1::SEVERITY_CRITICAL;
    d.message =
        absl::StrCat("The switch of ", policy_->rules[rule].name, " at step ", state.guard->effective_step(),
                     " made things worse: ", *worse, ". Rolling back; the rule will not switch again in this run.");
    d.evidence = {{"rule", policy_->rules[rule].name},
                  {"step", cells.step},
                  {"guard", state.guard->Json()},
                  {"signals", latest_.Json(std::nullopt)}};
    out->push_back(std::move(d));
    state.blocked = true;
  }
  if (worse || state.guard->done(cells.step)) {
    state.guard.reset();
    changed_ = true;
  }
}

void RunEvaluator::OnRepeatedStep() {
  for (RuleState& r : rules_) {
    if (r.stall) r.stall->OnRepeat();
  }
}

std::vector<Decision> RunEvaluator::Look(int64_t now_unix_nanos, const std::vector<uint32_t>& missing,
                                         uint32_t missing_count, uint32_t connected) {
  std::vector<Decision> out;
  reading_time_unix_nanos_ = now_unix_nanos;
  for (size_t r = 0; r < rules_.size(); ++r) {
    RuleState& state = rules_[r];
    if (state.stall && connected > 0) {
      const Reading reading = state.stall->Look(now_unix_nanos);
      Apply(r, std::nullopt, &SeriesOf(r, 0, 1), last_step_, reading.score, reading, {}, &out);
    }
    if (state.missing_rank) {
      const Reading reading = state.missing_rank->Look(now_unix_nanos, missing_count, connected);
      const size_t before = out.size();
      Apply(r, std::nullopt, &SeriesOf(r, 0, 1), last_step_, missing_count, reading, {}, &out);
      for (size_t i = before; i < out.size(); ++i) {
        out[i].evidence["missing_ranks"] = missing;
        if (out[i].kind == Decision::Kind::kAlert) {
          out[i].message =
              absl::StrCat(missing_count, missing_count == 1 ? " rank" : " ranks", " of the job are not connected for ",
                           NumberText(reading.score), " s, the first is rank ", missing.empty() ? 0 : missing[0], ".");
        }
      }
    }
  }
  return out;
}

bool RunEvaluator::Apply(size_t rule, std::optional<uint32_t> layer, Series* series, uint64_t step, double value,
                         const Reading& reading, const Where& where, std::vector<Decision>* out) {
  if (reading.verdict != Verdict::kUnknown) {
    series->tail.push_back({step, value, reading});
    if (series->tail.size() > kTail) series->tail.pop_front();
  }
  const Alarm::Change change = series->alarm.Update(policy_->rules[rule], step, reading_time_unix_nanos_, reading.verdict);
  if (change == Alarm::Change::kNone) return false;
  changed_ = true;
  if (change == Alarm::Change::kResolved) {
    out->push_back(Close(rule, layer, *series, "is back inside its bounds"));
    return false;
  }
  Decision d;
  d.kind = Decision::Kind::kAlert;
  d.rule = rule;
  d.layer = layer;
  d.step = step;
  d.severity = policy_->rules[rule].severity;
  d.evidence = Evidence(rule, layer, *series, where);
  d.message = FiredMessage(rule, layer, value, reading, where);
  out->push_back(std::move(d));
  return true;
}

void RunEvaluator::AskForSwitch(size_t rule, uint64_t step, std::vector<Decision>* out) {
  const Rule& r = policy_->rules[rule];
  RuleState& state = rules_[rule];
  state.retry_step.reset();
  if (r.action.kind == ActionKind::kSwitch) {
    if (state.blocked || state.switches >= r.action.max_switches_per_run) return;
    if (!state.asked.empty()) {  // its last plan is in flight; a second one would be refused
      state.retry_step = step + kWaitSteps;
      return;
    }
  }
  Decision d;
  d.kind = r.action.kind == ActionKind::kSwitch ? Decision::Kind::kSwitch : Decision::Kind::kPropose;
  d.rule = rule;
  d.step = step;
  d.severity = r.severity;
  std::string layers_text;
  const Series* first = nullptr;
  std::optional<uint32_t> first_layer;
  for (uint32_t l = 0; l < state.series.size(); ++l) {
    if (!state.series[l].alarm.active()) continue;
    if (first == nullptr) first = &state.series[l], first_layer = l;
    if (r.scope == Scope::kAll || InMode(rule, l) || state.asked.contains(l)) continue;
    d.layers.push_back(l);
    absl::StrAppend(&layers_text, layers_text.empty() ? "" : ", ", l);
  }
  if (first == nullptr) return;
  if (r.scope == Scope::kAll) {
    bool all_in_mode = !facts_.modes.empty();
    for (uint32_t l = 0; l < facts_.modes.size(); ++l) all_in_mode &= InMode(rule, l);
    if (all_in_mode || state.asked.contains(kAllLayers)) return;
  } else if (d.layers.empty()) {
    return;
  }
  d.message = absl::StrCat(r.name, " at step ", step, ": ", r.signals.empty() ? "" : r.signals[0], " ",
                           DescribeDetector(r.detector));
  d.evidence = Evidence(rule, first_layer, *first, {});
  if (!d.layers.empty()) d.evidence["layers"] = d.layers;
  out->push_back(std::move(d));
}

bool RunEvaluator::InMode(size_t rule, uint32_t layer) const {
  return layer < facts_.modes.size() && facts_.modes[layer] == policy_->rules[rule].action.mode;
}

void RunEvaluator::OnSwitchAccepted(size_t rule, const std::vector<uint32_t>& layers) {
  RuleState& state = rules_[rule];
  if (policy_->rules[rule].action.kind == ActionKind::kSwitch) ++state.switches;
  if (layers.empty()) state.asked.insert(kAllLayers);
  state.asked.insert(layers.begin(), layers.end());
  changed_ = true;
}

void RunEvaluator::OnSwitchRefused(size_t rule, const std::vector<uint32_t>& layers, bool try_again) {
  RuleState& state = rules_[rule];
  if (!state.asked.empty() && state.switches > 0) --state.switches;  // it was accepted, and came to nothing
  for (uint32_t l : layers) state.asked.erase(l);
  if (layers.empty()) state.asked.clear();
  if (try_again && state.retries < kRetriesMax) {
    ++state.retries;
    state.retry_step = last_step_ + kRetrySteps;
  }
  changed_ = true;
}

void RunEvaluator::OnSwitchApplied(size_t rule, uint64_t effective_step) {
  RuleState& state = rules_[rule];
  state.asked.clear();
  state.retries = 0;
  changed_ = true;
  const std::optional<Guard>& guard = policy_->rules[rule].guard;
  if (!guard) return;
  state.guard.emplace(*guard, effective_step, history_.MeanLossBefore(effective_step),
                      history_.MedianStepTimeBefore(effective_step));
}

std::vector<Decision> RunEvaluator::Restart(uint64_t step) {
  std::vector<Decision> out = End(absl::StrCat("closed: the run went back and started again at step ", step));
  for (size_t r = 0; r < rules_.size(); ++r) ResetRule(r);
  latest_.Clear();
  history_.Clear();
  last_step_ = 0;
  last_time_unix_nanos_ = 0;
  changed_ = true;
  return out;
}

std::vector<Decision> RunEvaluator::End(const std::string& why) {
  std::vector<Decision> out;
  for (size_t r = 0; r < rules_.size(); ++r) {
    for (size_t l = 0; l < rules_[r].series.size(); ++l) {
      Series& series = rules_[r].series[l];
      if (!series.alarm.active()) continue;
      out.push_back(Close(r, rules_[r].layered ? std::optional<uint32_t>(l) : std::nullopt, series, why));
      series.alarm.Reset();
      changed_ = true;
    }
  }
  return out;
}

uint64_t RunEvaluator::active_alarms() const {
  uint64_t n = 0;
  for (const RuleState& r : rules_) {
    n += std::count_if(r.series.begin(), r.series.end(), [](const Series& s) { return s.alarm.active(); });
  }
  return n;
}

}  // namespace trimtab::server
