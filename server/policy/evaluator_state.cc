// What survives a restart of the server, as JSON of at most a few hundred bytes a (rule, alarm).
#include <algorithm>
#include <cmath>

#include "server/model/limits.h"
#include "server/policy/evaluator.h"

namespace trimtab::server {

using nlohmann::json;

json RunEvaluator::Save() const {
  json rules = json::object();
  for (size_t r = 0; r < rules_.size(); ++r) {
    const RuleState& state = rules_[r];
    json alarms = json::array();
    for (size_t l = 0; l < state.series.size(); ++l) {
      const Series& s = state.series[l];
      if (s.alarm.fired_step()) alarms.push_back({l, s.alarm.active(), *s.alarm.fired_step()});
    }
    json j = {{"series", state.series.size()},
              {"layered", state.layered},
              {"switches", state.switches},
              {"blocked", state.blocked}};
    if (!alarms.empty()) j["alarms"] = std::move(alarms);
    if (!state.series.empty() && state.series[0].detector) {
      if (const auto* e = std::get_if<ExplosionDetector>(&*state.series[0].detector); e && std::isfinite(e->best())) {
        j["best"] = e->best();
      }
    }
    if (state.nonfinite && state.nonfinite->last_finite_step()) {
      j["last_finite_step"] = *state.nonfinite->last_finite_step();
    }
    if (state.guard) {
      j["guard"] = {{"effective_step", state.guard->effective_step()}};
      if (std::isfinite(state.guard->loss_before())) j["guard"]["loss"] = state.guard->loss_before();
      if (std::isfinite(state.guard->step_time_before())) j["guard"]["step_time"] = state.guard->step_time_before();
    }
    rules[policy_->rules[r].name] = std::move(j);
  }
  return {{"version", 1}, {"last_step", last_step_}, {"rules", std::move(rules)}};
}

void RunEvaluator::Load(const json& state) {
  if (!state.is_object() || state.value("version", 0) != 1) return;
  last_step_ = state.value("last_step", uint64_t{0});
  const json rules = state.value("rules", json::object());
  for (size_t r = 0; r < rules_.size(); ++r) {
    const auto it = rules.find(policy_->rules[r].name);
    if (it == rules.end() || !it->is_object()) continue;
    RuleState& to = rules_[r];
    to.switches = it->value("switches", 0u);
    to.blocked = it->value("blocked", false);
    to.layered = it->value("layered", false);
    const size_t count = std::min<size_t>(it->value("series", size_t{0}), kMaxLayers);
    if (count > 0) SeriesOf(r, 0, count);
    for (const json& a : it->value("alarms", json::array())) {
      if (!a.is_array() || a.size() != 3 || a[0].get<size_t>() >= to.series.size()) continue;
      to.series[a[0].get<size_t>()].alarm.Restore(a[1].get<bool>(), a[2].get<uint64_t>());
    }
    if (it->contains("best") && !to.series.empty() && to.series[0].detector) {
      if (auto* e = std::get_if<ExplosionDetector>(&*to.series[0].detector)) e->set_best((*it)["best"].get<double>());
    }
    if (it->contains("last_finite_step") && to.nonfinite) {
      to.nonfinite->set_last_finite_step((*it)["last_finite_step"].get<uint64_t>());
    }
    if (const auto g = it->find("guard"); g != it->end() && policy_->rules[r].guard) {
      to.guard.emplace(*policy_->rules[r].guard, g->value("effective_step", uint64_t{0}), g->value("loss", kNotKnown),
                       g->value("step_time", kNotKnown));
    }
  }
}

}  // namespace trimtab::server
