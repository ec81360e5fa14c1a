#include "server/registry/registry.h"

#include <spdlog/spdlog.h>

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/status/status.h"
#include "server/model/run_name.h"
#include "server/registry/run_picture.h"

namespace trimtab::server {
namespace {

constexpr uint64_t kEventsToLookBack = 64;

// Whether the run's last word in the audit log is that it finished.
absl::StatusOr<bool> HadFinished(Store* store, const std::string& run) {
  TRIMTAB_ASSIGN_OR_RETURN(const auto events, store->ReadEvents(run, 0, kEventsToLookBack, /*newest=*/true));
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (event->kind() == "run_finished") return true;
    if (event->kind() == "run_started" || event->kind() == "rank_joined") return false;
  }
  return false;
}

class RegistryImpl final : public Registry {
 public:
  RegistryImpl(const RegistryOptions& options, EventLog* events) : options_(options), events_(events) {}

  absl::Status Restore(Store* store) override {
    TRIMTAB_ASSIGN_OR_RETURN(const std::vector<StoredRun> stored, store->ListRuns());
    absl::MutexLock lock(&mutex_);
    for (const StoredRun& one : stored) {
      RunPicture* run = FindOrAdd(one.run, one.first_seen_unix_nanos);
      if (run == nullptr) continue;
      TRIMTAB_ASSIGN_OR_RETURN(const bool finished, HadFinished(store, one.run));
      run->RestoreRun(one, finished);
      if (one.ranks.empty()) continue;
      for (const v1::MetricDescriptor& metric : one.metrics) {
        TRIMTAB_ASSIGN_OR_RETURN(const auto row, store->LastRow(one.run, metric.name(), one.ranks.front().rank()));
        if (row) run->RestoreRow(metric.id(), *row);
      }
    }
    return absl::OkStatus();
  }

  void Tick(int64_t now_unix_nanos) override {
    std::vector<v1::Event> events;
    {
      absl::MutexLock lock(&mutex_);
      for (auto& [name, run] : runs_) {
        const size_t first = events.size();
        run.Tick(options_, now_unix_nanos, &events);
        Name(name, first, &events);
      }
    }
    Write(std::move(events));
  }

  void OnRankJoined(const RankKey& rank, const v1::RankInfo& info,
                    const std::vector<v1::MetricDescriptor>& metrics) override {
    std::vector<v1::Event> events;
    {
      const int64_t now = absl::GetCurrentTimeNanos();
      absl::MutexLock lock(&mutex_);
      RunPicture* run = FindOrAdd(rank.run, now);
      if (run == nullptr) return;
      if (!run->HasRank(rank.rank) && run->rank_count() >= options_.max_ranks_per_run) {
        ++refused_;
        return;
      }
      run->Joined(rank, info, metrics, now, &events);
    }
    Name(rank.run, 0, &events);
    Write(std::move(events));
  }

  void OnRankUpdated(const RankKey& rank, const v1::RankInfo& info) override {
    absl::MutexLock lock(&mutex_);
    const auto found = runs_.find(rank.run);
    if (found != runs_.end()) found->second.Updated(rank, info);
  }

  void OnSteps(const RankKey& rank, absl::Span<const v1::Step* const> steps) override {
    const int64_t now = absl::GetCurrentTimeNanos();
    absl::MutexLock lock(&mutex_);
    const auto found = runs_.find(rank.run);
    if (found != runs_.end()) found->second.Steps(rank, steps, now);
  }

  void OnRankLeft(const RankKey& rank, LeaveReason reason, const std::string& detail) override {
    std::vector<v1::Event> events;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = runs_.find(rank.run);
      if (found == runs_.end()) return;
      found->second.Left(rank, reason, detail, absl::GetCurrentTimeNanos(), &events);
    }
    Name(rank.run, 0, &events);
    Write(std::move(events));
  }

  std::vector<v1::RunSummary> Summaries() const override {
    absl::ReaderMutexLock lock(&mutex_);
    std::vector<v1::RunSummary> summaries;
    for (const auto& [name, run] : runs_) summaries.push_back(run.Summary());
    return summaries;
  }

  absl::StatusOr<v1::RunState> Snapshot(const std::string& run, bool with_ranks) const override {
    absl::ReaderMutexLock lock(&mutex_);
    const auto found = runs_.find(run);
    if (found == runs_.end()) {
      std::string message = absl::StrCat("there is no run ", QuoteName(run));
      if (!runs_.empty()) absl::StrAppend(&message, "; known: ", QuoteName(runs_.begin()->first));
      if (runs_.size() > 1) absl::StrAppend(&message, " and ", runs_.size() - 1, " more (trimtab runs)");
      return absl::NotFoundError(message);
    }
    return found->second.State(with_ranks);
  }

  RunCounts Counts(const std::string& run) const override {
    absl::ReaderMutexLock lock(&mutex_);
    const auto found = runs_.find(run);
    return found == runs_.end() ? RunCounts{.run = run} : found->second.Counts();
  }

  uint64_t refused() const override {
    absl::ReaderMutexLock lock(&mutex_);
    return refused_;
  }

 private:
  RunPicture* FindOrAdd(const std::string& run, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = runs_.find(run);
    if (found != runs_.end()) return &found->second;
    if (runs_.size() >= options_.max_runs) {
      ++refused_;
      return nullptr;
    }
    return &runs_.try_emplace(run, run, now).first->second;
  }

  static void Name(const std::string& run, size_t first, std::vector<v1::Event>* events) {
    for (size_t i = first; i < events->size(); ++i) (*events)[i].set_run(run);
  }

  void Write(std::vector<v1::Event> events) {
    for (v1::Event& event : events) {
      if (const auto id = events_->Append(std::move(event)); !id.ok()) {
        spdlog::error("event is not stored: {}", std::string(id.status().message()));
      }
    }
  }

  const RegistryOptions options_;
  EventLog* const events_;
  mutable absl::Mutex mutex_;
  std::map<std::string, RunPicture> runs_ ABSL_GUARDED_BY(mutex_);
  uint64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<Registry> Registry::Create(const RegistryOptions& options, EventLog* events) {
  return std::make_unique<RegistryImpl>(options, events);
}

}  // namespace trimtab::server
