#include "server/policy/run_watch.h"

#include <algorithm>
#include <iterator>

#include "server/model/limits.h"

namespace trimtab::server {

RankFacts FactsOf(const v1::RankInfo& info) {
  RankFacts facts;
  facts.world_size = info.world_size();
  facts.act = info.act();
  for (const int mode : info.modes()) facts.modes.push_back(static_cast<v1::KernelMode>(mode));
  facts.layer_names.resize(std::min<size_t>(info.layers_size(), kMaxLayers));
  for (const v1::LayerInfo& layer : info.layers()) {
    if (layer.index() < facts.layer_names.size()) facts.layer_names[layer.index()] = layer.name();
  }
  return facts;
}

void RunWatch::Join(uint32_t rank, uint64_t incarnation, const RankFacts& facts,
                    const std::vector<v1::Aggregation>& aggregation) {
  fold_.Join(rank, incarnation, facts.world_size, aggregation);
  Update(rank, facts);
  changed_ = true;
}

void RunWatch::Update(uint32_t rank, const RankFacts& facts) {
  ranks_[rank] = facts;
  RefreshFacts();
}

bool RunWatch::act() const {
  return !ranks_.empty() && std::all_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r.second.act; });
}

void RunWatch::RefreshFacts() {
  if (ranks_.empty()) return;
  const RankFacts& first = ranks_.begin()->second;
  evaluator_.SetFacts({act(), first.modes, first.layer_names});
}

std::vector<Decision> RunWatch::Leave(uint32_t rank, uint64_t incarnation, LeaveReason reason, int64_t now_unix_nanos) {
  std::vector<Decision> out;
  fold_.Leave(rank, incarnation, reason == LeaveReason::kFinished);
  const bool ended = fold_.live() == 0 && (reason == LeaveReason::kFinished || reason == LeaveReason::kDied);
  TakeReady(ended, now_unix_nanos, &out);
  if (!ended) return out;
  ranks_.clear();
  std::vector<Decision> closed =
      evaluator_.End(reason == LeaveReason::kFinished ? "closed: the run ended, it had not recovered"
                                                      : "closed: the last rank died, it had not recovered");
  out.insert(out.end(), std::make_move_iterator(closed.begin()), std::make_move_iterator(closed.end()));
  return out;
}

std::vector<Decision> RunWatch::Step(uint32_t rank, uint64_t incarnation, StepCells cells, int64_t now_unix_nanos) {
  std::vector<Decision> out;
  const uint64_t step = cells.step;
  switch (fold_.Add(rank, incarnation, std::move(cells))) {
    case RunFold::Added::kRepeat:
      evaluator_.OnRepeatedStep();
      break;
    case RunFold::Added::kLate:
    case RunFold::Added::kUnknownRank:
      ++steps_late_;
      break;
    case RunFold::Added::kRestarted:
      out = evaluator_.Restart(step);
      RefreshFacts();
      break;
    case RunFold::Added::kQueued:
      break;
  }
  TakeReady(false, now_unix_nanos, &out);
  return out;
}

void RunWatch::TakeReady(bool everything, int64_t now_unix_nanos, std::vector<Decision>* out) {
  while (std::optional<StepCells> ready = fold_.Next(everything)) {
    std::vector<Decision> decisions = evaluator_.Evaluate(*ready, now_unix_nanos);
    ++steps_evaluated_;
    out->insert(out->end(), std::make_move_iterator(decisions.begin()), std::make_move_iterator(decisions.end()));
  }
}

std::vector<Decision> RunWatch::Look(int64_t now_unix_nanos) {
  uint32_t count = 0;
  const std::vector<uint32_t> missing = fold_.Missing(16, &count);
  return evaluator_.Look(now_unix_nanos, missing, count, fold_.live());
}

void RunWatch::PlanAccepted(uint64_t plan, const Decision& decision) {
  evaluator_.OnSwitchAccepted(decision.rule, decision.layers);
  plans_[plan] = {decision.rule, decision.layers};
  while (plans_.size() > kPlansKept) plans_.erase(plans_.begin());
  changed_ = true;
}

void RunWatch::PlanRefused(const Decision& decision, bool try_again) {
  evaluator_.OnSwitchRefused(decision.rule, decision.layers, try_again);
}

void RunWatch::OnPlanEvent(const std::string& kind, uint64_t plan, uint64_t step) {
  const auto it = plans_.find(plan);
  if (it == plans_.end()) return;
  if (kind == "switch_applied") {
    evaluator_.OnSwitchApplied(it->second.rule, step);
  } else {  // refused by a rank may pass; a person's no does not
    evaluator_.OnSwitchRefused(it->second.rule, it->second.layers, kind == "switch_refused");
  }
  plans_.erase(it);
  changed_ = true;
}

bool RunWatch::NeedsSave() {
  const bool changed = evaluator_.TakeChanged() || std::exchange(changed_, false);
  if (!changed && steps_evaluated_ - steps_saved_ < kSaveSteps) return false;
  steps_saved_ = steps_evaluated_;
  return true;
}

nlohmann::json RunWatch::Save() const {
  nlohmann::json incarnations = nlohmann::json::array();
  for (const auto& [rank, incarnation] : fold_.Incarnations(kIncarnationsKept)) {
    incarnations.push_back({rank, incarnation});
  }
  nlohmann::json plans = nlohmann::json::array();
  for (const auto& [plan, asked] : plans_) plans.push_back({plan, asked.rule, asked.layers});
  return {{"evaluator", evaluator_.Save()}, {"incarnations", std::move(incarnations)}, {"plans", std::move(plans)}};
}

void RunWatch::Load(const nlohmann::json& state) {
  evaluator_.Load(state.at("evaluator"));
  std::map<uint32_t, uint64_t> incarnations;
  for (const auto& i : state.at("incarnations")) incarnations[i.at(0).get<uint32_t>()] = i.at(1).get<uint64_t>();
  if (!incarnations.empty()) fold_.Restore(evaluator_.last_step(), incarnations);
  for (const auto& p : state.at("plans")) {
    if (p.at(1).get<size_t>() >= kMaxRules) continue;
    plans_[p.at(0).get<uint64_t>()] = {p.at(1).get<size_t>(), p.at(2).get<std::vector<uint32_t>>()};
  }
}

}  // namespace trimtab::server
