// What RunEvaluator says of its decisions: sentences for people, evidence for machines.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/policy/describe.h"
#include "server/policy/evaluator.h"
#include "server/policy/known_signals.h"

namespace trimtab::server {

using nlohmann::json;

bool RunEvaluator::IsAttentionRule(size_t rule) const {
  const std::vector<std::string>& signals = policy_->rules[rule].signals;
  return !signals.empty() && !absl::StartsWith(signals[0], "activation_") &&
         std::find(std::begin(kLayerSignals), std::end(kLayerSignals), signals[0]) != std::end(kLayerSignals);
}

std::string RunEvaluator::LayerText(uint32_t layer) const {
  if (layer < facts_.layer_names.size() && !facts_.layer_names[layer].empty()) {
    return absl::StrCat("layer ", layer, " (", ClipUtf8(facts_.layer_names[layer], 80), ")");
  }
  return absl::StrCat("layer ", layer);
}

std::string RunEvaluator::FiredMessage(size_t rule, std::optional<uint32_t> layer, double value, const Reading& reading,
                                       const Where& where) const {
  const Rule& r = policy_->rules[rule];
  std::string text;
  if (rules_[rule].nonfinite) {
    text = absl::StrCat(where.signal, layer ? absl::StrCat(" of ", LayerText(*layer)) : "", " is not finite at step ",
                        last_step_);
    if (where.cell != nullptr) absl::StrAppend(&text, " on rank ", where.cell->nonfinite_rank);
    const std::optional<uint64_t> last = rules_[rule].nonfinite->last_finite_step();
    absl::StrAppend(&text, last ? absl::StrCat("; the last finite step was ", *last, ".") : "; no step was finite.");
  } else if (rules_[rule].missing_signal) {
    text = absl::StrCat(where.signal, " is absent from step ", last_step_, ", it came with every step before.");
  } else if (rules_[rule].stall) {
    const uint64_t repeats = rules_[rule].stall->repeats();
    text = repeats >= std::get<StallParams>(r.detector).repeat_limit
               ? absl::StrCat("No progress: a step up to ", last_step_, " was reported again ", repeats, " times.")
               : absl::StrCat("No new step for ", NumberText(value), " s after step ", last_step_,
                              " (the median step takes ", NumberText(reading.reference), " s).");
  } else if (where.cell != nullptr) {
    text = absl::StrCat(where.signal, layer ? absl::StrCat(" of ", LayerText(*layer)) : "", " is ", NumberText(value));
    if (std::isfinite(reading.reference) && reading.reference != reading.bound) {
      absl::StrAppend(&text, " against ", NumberText(reading.reference));
    }
    absl::StrAppend(&text, " at step ", last_step_, ": ", DescribeDetector(r.detector));
    absl::StrAppend(&text, DescribeHold(r), ".");
  }
  if (!r.signals.empty() && IsTraining(r.signals[0]) && r.severity != v1::SEVERITY_INFO) {
    absl::StrAppend(&text, " ", PrecursorText());
  }
  const std::string action = ActionText(rule, layer);
  return action.empty() ? text : absl::StrCat(text, " ", action);
}

std::optional<std::string> RunEvaluator::WhyNoSwitch(size_t rule) const {
  const RuleState& state = rules_[rule];
  if (state.blocked) return "an earlier switch of this rule was rolled back by its guard";
  const uint32_t most = policy_->rules[rule].action.max_switches_per_run;
  if (state.switches >= most) return absl::StrCat("this rule has switched ", most, " times in this run already");
  if (!facts_.act) {
    return "the owner of the job did not allow it; start the job with `trimtab run --act` or attach(act=True)";
  }
  return std::nullopt;
}

std::string RunEvaluator::ActionText(size_t rule, std::optional<uint32_t> layer) const {
  const Rule& r = policy_->rules[rule];
  if (r.action.kind == ActionKind::kAlert) return "";
  const std::string mode = ModeName(r.action.mode);
  if (layer && r.scope == Scope::kLayersThatFired && InMode(rule, *layer)) {
    return absl::StrCat("The layer runs ", mode, " already.");
  }
  const std::string what =
      r.scope == Scope::kAll ? "all layers" : absl::StrCat("layer ", layer ? absl::StrCat(*layer) : "?");
  if (r.action.kind == ActionKind::kPropose) return absl::StrCat("Proposed: switch ", what, " to ", mode, ".");
  if (const std::optional<std::string> why = WhyNoSwitch(rule))
    return absl::StrCat("Nothing was switched: ", *why, ".");
  return absl::StrCat("Asking to switch ", what, " to ", mode, ".");
}

json RunEvaluator::Precursors() const {
  json found = json::array();
  for (size_t r = 0; r < rules_.size(); ++r) {
    if (!IsAttentionRule(r)) continue;
    for (size_t l = 0; l < rules_[r].series.size(); ++l) {
      const Alarm& alarm = rules_[r].series[l].alarm;
      if (!alarm.fired_step() || *alarm.fired_step() + kPrecursorSteps < last_step_) continue;
      found.push_back(
          {{"rule", policy_->rules[r].name}, {"layer", l}, {"step", *alarm.fired_step()}, {"active", alarm.active()}});
    }
  }
  return found;
}

std::string RunEvaluator::PrecursorText() const {
  const json found = Precursors();
  if (!found.empty()) {
    const json& first = found[0];
    return absl::StrCat("Attention precursor: ", first["rule"].get<std::string>(), " of layer ",
                        first["layer"].get<uint64_t>(), " at step ", first["step"].get<uint64_t>(), ".");
  }
  if (!latest_.Seen("max_attention_logit")) return "Attention metrics are not reported: no word on the cause.";
  return "No attention-precision precursor was seen: nothing here points at the attention kernel.";
}

json RunEvaluator::Evidence(size_t rule, std::optional<uint32_t> layer, const Series& series,
                            const Where& where) const {
  const Rule& r = policy_->rules[rule];
  json tail = json::array();
  for (const Point& p : series.tail) {
    tail.push_back({{"step", p.step},
                    {"value", NumberJson(p.value)},
                    {"reference", NumberJson(p.reading.reference)},
                    {"bound", NumberJson(p.reading.bound)},
                    {"score", NumberJson(p.reading.score)},
                    {"fires", p.reading.verdict == Verdict::kFiring}});
  }
  json j = {{"rule", r.name},
            {"about", r.about},
            {"signals_watched", r.signals},
            {"detector", DetectorJson(r.detector)},
            {"for_samples", r.for_samples},
            {"for_seconds", r.for_seconds},
            {"warm_up_steps", r.warm_up_steps},
            {"cool_down_steps", r.cool_down_steps},
            {"step", last_step_},
            {"ranks_folded", ranks_folded_},
            {"samples", std::move(tail)},
            {"signals", latest_.Json(layer)},
            {"precursors", Precursors()}};
  if (layer) j["layer"] = *layer;
  if (where.cell != nullptr) {
    j["rank"] = where.cell->nonfinite > 0 ? where.cell->nonfinite_rank : where.cell->worst_rank;
    j["head"] = where.cell->nonfinite > 0 ? where.cell->nonfinite_head : where.cell->worst_head;
  }
  if (const auto& nonfinite = rules_[rule].nonfinite; nonfinite && nonfinite->last_finite_step()) {
    j["last_finite_step"] = *nonfinite->last_finite_step();
  }
  return j;
}

Decision RunEvaluator::Close(size_t rule, std::optional<uint32_t> layer, const Series& series,
                             const std::string& why) const {
  const Rule& r = policy_->rules[rule];
  Decision d;
  d.kind = Decision::Kind::kResolved;
  d.rule = rule;
  d.layer = layer;
  d.step = last_step_;
  const std::string subject = r.signals.empty() ? r.name : r.signals[0];
  d.message = absl::StrCat(r.name, ": ", subject, layer ? absl::StrCat(" of ", LayerText(*layer)) : "", " ", why, ".");
  d.evidence = Evidence(rule, layer, series, {});
  d.evidence["fired_step"] = series.alarm.fired_step().value_or(0);
  d.evidence["why"] = why;
  return d;
}

}  // namespace trimtab::server
