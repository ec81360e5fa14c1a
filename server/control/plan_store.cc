#include "server/control/plan_store.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/policy/state_key.h"

namespace trimtab::server {
namespace {

constexpr char kPrefix[] = "control/plan/";

std::string KeyOf(const PlanRecord& record) {
  return absl::StrCat(RunStateKey(kPrefix, record.plan.run()), "/", record.slot);
}

}  // namespace

absl::StatusOr<size_t> PlanStore::Load() {
  size_t unreadable = 0;
  if (store_ == nullptr) return unreadable;
  auto stored = store_->ListState(kPrefix);
  if (!stored.ok()) return stored.status();
  for (const auto& [key, value] : *stored) {
    absl::StatusOr<PlanRecord> record = DecodePlan(value);
    if (!record.ok()) {
      ++unreadable;
      continue;
    }
    const uint64_t id = record->plan.id();
    next_id_ = std::max(next_id_, id + 1);
    auto& plan = plans_[id] = std::make_unique<PlanRecord>(*std::move(record));
    by_run_[plan->plan.run()][id] = plan.get();
  }
  return unreadable;
}

absl::StatusOr<PlanRecord*> PlanStore::Add(const std::string& run) {
  std::map<uint64_t, PlanRecord*>& of_run = by_run_[run];
  uint32_t slot = 0;
  if (of_run.size() < kept_per_run_) {
    std::set<uint32_t> used;
    for (const auto& [id, r] : of_run) used.insert(r->slot);
    while (used.contains(slot)) ++slot;
  } else {
    const auto oldest = std::find_if(of_run.begin(), of_run.end(), [](const auto& p) { return p.second->finished(); });
    if (oldest == of_run.end()) {
      return absl::ResourceExhaustedError(absl::StrCat("The run has ", of_run.size(), " open plans; reject some."));
    }
    slot = oldest->second->slot;
    dropped_.push_back(oldest->first);
    plans_.erase(oldest->first);
    of_run.erase(oldest);
  }
  auto record = std::make_unique<PlanRecord>();
  record->plan.set_id(next_id_++);
  record->plan.set_run(run);
  record->slot = slot;
  PlanRecord* raw = record.get();
  of_run[raw->plan.id()] = raw;
  plans_[raw->plan.id()] = std::move(record);
  return raw;
}

absl::Status PlanStore::Save(const PlanRecord& record) {
  if (store_ == nullptr) return absl::OkStatus();
  return store_->PutState(KeyOf(record), EncodePlan(record));
}

PlanRecord* PlanStore::Find(uint64_t id) {
  const auto it = plans_.find(id);
  return it == plans_.end() ? nullptr : it->second.get();
}

std::vector<PlanRecord*> PlanStore::Of(const std::string& run) {
  std::vector<PlanRecord*> found;
  if (run.empty()) {
    for (const auto& [id, r] : plans_) found.push_back(r.get());
  } else if (const auto it = by_run_.find(run); it != by_run_.end()) {
    for (const auto& [id, r] : it->second) found.push_back(r);
  }
  return found;
}

PlanRecord* PlanStore::InFlight(const std::string& run) {
  const auto it = by_run_.find(run);
  if (it == by_run_.end()) return nullptr;
  for (const auto& [id, r] : it->second) {
    if (r->in_flight()) return r;
  }
  return nullptr;
}

}  // namespace trimtab::server
