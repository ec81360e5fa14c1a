// Which ranks of which runs are connected, where they are, and what they run: fed by ingest, read by plans.
//
// Thread-safe; every call is short and none waits for anything but this directory's own lock.
#ifndef TRIMTAB_SERVER_CONTROL_RANK_DIRECTORY_H_
#define TRIMTAB_SERVER_CONTROL_RANK_DIRECTORY_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/model/roles.h"

namespace trimtab::server {

struct RankView {
  uint64_t incarnation = 0;
  bool connected = false;
  LeaveReason left = LeaveReason::kDisconnected;  // when not connected
  bool act = false;
  uint64_t step = 0;                   // the last one that it reported
  std::vector<v1::KernelMode> modes;   // by layer, as last reported
  std::optional<uint64_t> modes_step;  // the step that `modes` was reported with; none: with its Hello
};

struct RunView {
  std::map<uint32_t, RankView> ranks;
  uint32_t world_size = 0;
  uint32_t layers = 0;  // 0: not known
  double steps_per_second = 0;

  uint32_t connected() const;
  uint64_t highest_step() const;
  // Mode of a layer on the lowest connected rank; OBSERVE (what an agent starts with) when not reported.
  v1::KernelMode mode(uint32_t layer) const;
};

class RankDirectory {
 public:
  explicit RankDirectory(size_t runs_max) : runs_max_(runs_max) {}

  void Join(const RankKey& rank, const v1::RankInfo& info, const std::vector<v1::MetricDescriptor>& metrics);
  void Update(const RankKey& rank, const v1::RankInfo& info);
  void Steps(const RankKey& rank, absl::Span<const v1::Step* const> steps);
  void Leave(const RankKey& rank, LeaveReason reason);
  // Every rank confirmed `mode` from `effective_step` on: believed over telemetry of earlier steps that is still on its
  // way. `layers` empty: all.
  void Applied(const std::string& run, v1::KernelMode mode, const std::vector<uint32_t>& layers,
               uint64_t effective_step);

  // A copy; nothing when the run is not known.
  std::optional<RunView> View(const std::string& run) const;
  // One rank, without copying the run.
  std::optional<RankView> Rank(const std::string& run, uint32_t rank) const;
  std::vector<std::string> Runs(size_t max) const;
  uint64_t runs_refused() const;

 private:
  struct Run {
    RunView view;
    std::map<uint32_t, uint32_t> mode_metric;  // by rank: the id of attention_mode
    uint64_t rate_step = 0;
    int64_t rate_unix_nanos = 0;
  };
  void Describe(const v1::RankInfo& info, RankView* rank, Run* run);
  void MeasureRate(const v1::Step& step, Run* run);

  const size_t runs_max_;
  mutable std::mutex mutex_;
  std::map<std::string, Run> runs_;
  uint64_t runs_refused_ = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_CONTROL_RANK_DIRECTORY_H_
