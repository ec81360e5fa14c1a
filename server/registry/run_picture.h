// Everything that is known about one run now. Not thread-safe; the registry guards it.
#ifndef TRIMTAB_SERVER_REGISTRY_RUN_PICTURE_H_
#define TRIMTAB_SERVER_REGISTRY_RUN_PICTURE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/model/roles.h"
#include "server/registry/metric_fold.h"
#include "server/registry/rank_news.h"
#include "server/registry/registry.h"
#include "trimtab/v1/query.pb.h"

namespace trimtab::server {

class RunPicture {
 public:
  RunPicture(std::string run, int64_t now) : run_(std::move(run)), first_seen_(now), last_seen_(now) {}

  // Each appends the events that it makes to *events, without run and time.
  void Joined(const RankKey& rank, const v1::RankInfo& info, const std::vector<v1::MetricDescriptor>& metrics,
              int64_t now, std::vector<v1::Event>* events);
  void Updated(const RankKey& rank, const v1::RankInfo& info);
  void Steps(const RankKey& rank, absl::Span<const v1::Step* const> steps, int64_t now);
  void Left(const RankKey& rank, LeaveReason reason, const std::string& detail, int64_t now,
            std::vector<v1::Event>* events);
  void Tick(const RegistryOptions& options, int64_t now, std::vector<v1::Event>* events);

  // From the store, at start. `finished`: the run had ended before the server did.
  void RestoreRun(const StoredRun& stored, bool finished);
  void RestoreRow(uint32_t metric, const Store::Row& row);

  bool HasRank(uint32_t rank) const { return ranks_.contains(rank); }
  size_t rank_count() const { return ranks_.size(); }
  v1::RunSummary Summary() const;
  v1::RunState State(bool with_ranks) const;
  RunCounts Counts() const;

 private:
  struct Rank {
    v1::RankInfo info;
    bool connected = false;
    bool clean = false;      // said goodbye
    bool restarted = false;  // a new incarnation whose first step is still to come
    int64_t lost_at = 0;     // when its stream broke, until it is told; 0: nothing to tell
  };

  void CountNonFinite(const MetricFold& metric, const v1::Block& block);
  void AddMetric(const v1::MetricDescriptor& metric);
  const MetricFold* FindMetric(const std::string& name) const;
  double StepsPerSecond() const;
  bool AllLeftCleanly() const;
  void TellEnd(std::vector<v1::Event>* events);

  const std::string run_;
  int64_t first_seen_;
  int64_t last_seen_;  // last step's arrival
  uint64_t last_step_ = 0;
  uint32_t world_size_ = 0;
  uint32_t connected_ = 0;
  uint64_t steps_ = 0;
  bool started_ = false;  // run_started was told
  bool silent_ = false;
  bool restored_ = false;  // known from the store only; nothing has connected yet
  bool ended_ = false;     // the end was told
  int64_t last_left_ = 0;
  std::map<uint32_t, Rank> ranks_;
  std::map<uint32_t, MetricFold> metrics_;
  std::map<std::string, uint64_t> nonfinite_;
  std::deque<std::pair<int64_t, uint64_t>> pace_;  // (agent's clock, step) of the lowest rank
  RankNews joined_{"rank_joined", "joined", v1::SEVERITY_INFO};
  RankNews left_{"rank_left", "finished", v1::SEVERITY_INFO};
  RankNews lost_{"rank_lost", "lost", v1::SEVERITY_WARNING};
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_REGISTRY_RUN_PICTURE_H_
