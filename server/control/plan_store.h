// Plans in the server's durable state: kept_per_run slots a run, the oldest finished plan is overwritten.
//
// Not thread-safe: the controller's thread owns it.
#ifndef TRIMTAB_SERVER_CONTROL_PLAN_STORE_H_
#define TRIMTAB_SERVER_CONTROL_PLAN_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/control/plan_record.h"
#include "server/store/store.h"

namespace trimtab::server {

class PlanStore {
 public:
  // `store` may be null (nothing is kept over a restart) and outlives this.
  PlanStore(Store* store, size_t kept_per_run) : store_(store), kept_per_run_(kept_per_run < 1 ? 1 : kept_per_run) {}

  // Reads all plans; returns how many did not read back and are left alone.
  absl::StatusOr<size_t> Load();

  // A new plan with the next id, unique over the server's life, in a free slot. The returned record lives until it is
  // finished and its slot is needed. RESOURCE_EXHAUSTED when every slot of the run holds an open plan.
  absl::StatusOr<PlanRecord*> Add(const std::string& run);
  // Durable on return.
  absl::Status Save(const PlanRecord& record);

  PlanRecord* Find(uint64_t id);
  // Ascending ids; "": of all runs.
  std::vector<PlanRecord*> Of(const std::string& run);
  // The plan in flight of a run, or null.
  PlanRecord* InFlight(const std::string& run);
  // Ids that Add has dropped since the last call.
  std::vector<uint64_t> TakeDropped() { return std::exchange(dropped_, {}); }

 private:
  Store* store_;
  size_t kept_per_run_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::unique_ptr<PlanRecord>> plans_;
  std::map<std::string, std::map<uint64_t, PlanRecord*>> by_run_;
  std::vector<uint64_t> dropped_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_CONTROL_PLAN_STORE_H_
