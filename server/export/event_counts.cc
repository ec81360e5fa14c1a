#include "server/export/event_counts.h"

namespace trimtab::server {

void EventCounts::Add(const v1::Event& event) {
  const std::string& kind = event.kind();
  const bool applied = kind == "switch_applied", refused = kind == "switch_refused";
  const bool rollback = kind == "rollback_planned", alert = kind == "alert";
  if (!applied && !refused && !rollback && !alert) return;
  absl::MutexLock lock(&mutex_);
  if (!runs_.contains(event.run()) && runs_.size() >= kMaxCountedRuns) {
    ++refused_;
    return;
  }
  OfRun& run = runs_[event.run()];
  run.applied += applied;
  run.refused += refused;
  run.rollbacks += rollback;
  if (!alert) return;
  if (!run.alerts.contains(event.detector()) && run.alerts.size() >= kMaxCountedRules) {
    ++refused_;
    return;
  }
  ++run.alerts[event.detector()];
}

EventCounts::OfRun EventCounts::Of(const std::string& run) const {
  OfRun counts;
  {
    absl::ReaderMutexLock lock(&mutex_);
    const auto found = runs_.find(run);
    if (found != runs_.end()) counts = found->second;
  }
  for (const std::string& rule : rules_) counts.alerts.try_emplace(rule, 0);
  return counts;
}

uint64_t EventCounts::refused() const {
  absl::ReaderMutexLock lock(&mutex_);
  return refused_;
}

}  // namespace trimtab::server
