// The live picture of every run: who is connected, the latest value of every metric folded over ranks, kernel modes,
// step rate. How values fold: server/registry/metric_fold.h. Fed by ingest, read by export, http and query. Rebuilt
// from the store at start (runs that had not finished show as silent).
//
// A rank whose courier's stream broke counts as lost only after `reconnect_grace_seconds`. Joins, leaves and losses of
// worlds above 8 ranks are told in groups of up to 64 ranks, at the latest at the next Tick.
//
// Thread-safe. Bounded: runs and ranks over the limits are counted in refused() and not kept.
#ifndef TRIMTAB_SERVER_REGISTRY_REGISTRY_H_
#define TRIMTAB_SERVER_REGISTRY_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/model/roles.h"
#include "server/store/store.h"
#include "trimtab/v1/query.pb.h"

namespace trimtab::server {

struct RegistryOptions {
  size_t max_runs = 1000;
  size_t max_ranks_per_run = 32768;
  double silent_after_seconds = 60;  // no step from any rank for this long: run_silent (event, status)
  double reconnect_grace_seconds = 5;
};

// Counts of one run since the server started (or the run, if that was later).
struct RunCounts {
  std::string run;
  uint64_t steps = 0;  // training steps, seen on the lowest connected rank
  // Values that were NaN or infinite, by signal: the name of a scalar metric, or what a *_nonfinite metric counts
  // ("attention", "activation"). NaN in a [layer] or [layer, head] block means "no sample" and is not counted.
  std::map<std::string, uint64_t> nonfinite;
};

class Registry : public StepListener {
 public:
  // `events` gets run_started, rank_joined, rank_left, rank_lost, run_silent, run_finished.
  static std::unique_ptr<Registry> Create(const RegistryOptions& options, EventLog* events);

  // Loads runs known to the store; call once before serving.
  virtual absl::Status Restore(Store* store) = 0;
  // Call about once a second: notices silence. `now_unix_nanos` is the wall clock.
  virtual void Tick(int64_t now_unix_nanos) = 0;

  virtual std::vector<v1::RunSummary> Summaries() const = 0;
  // NOT_FOUND names known runs. Without ranks it stays small in a world of thousands.
  absl::StatusOr<v1::RunState> State(const std::string& run) const { return Snapshot(run, /*with_ranks=*/true); }
  virtual absl::StatusOr<v1::RunState> Snapshot(const std::string& run, bool with_ranks) const = 0;
  virtual RunCounts Counts(const std::string& run) const = 0;  // zeros for an unknown run
  virtual uint64_t refused() const = 0;                        // runs and ranks over the limits
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_REGISTRY_REGISTRY_H_
