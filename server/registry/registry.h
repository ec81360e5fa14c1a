// The live picture of every run: who is connected, the latest value of every metric folded over ranks, kernel modes,
// step rate. Fed by ingest, read by export, http and query. Rebuilt from the store at start (runs show as silent).
//
// Thread-safe. Bounded: runs and ranks over the limits are counted in refused() and not kept.
#ifndef TRIMTAB_SERVER_REGISTRY_REGISTRY_H_
#define TRIMTAB_SERVER_REGISTRY_REGISTRY_H_

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
  virtual absl::StatusOr<v1::RunState> State(const std::string& run) const = 0;  // NOT_FOUND
  virtual uint64_t refused() const = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_REGISTRY_REGISTRY_H_
