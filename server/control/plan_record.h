// A plan with everything that is needed to finish it, also after a restart of the server.
#ifndef TRIMTAB_SERVER_CONTROL_PLAN_RECORD_H_
#define TRIMTAB_SERVER_CONTROL_PLAN_RECORD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/control/rank_directory.h"
#include "trimtab/v1/control.pb.h"

namespace trimtab::server {

// Layers that get the same mode.
struct ModeGroup {
  v1::KernelMode mode = v1::KERNEL_MODE_UNSPECIFIED;
  std::vector<uint32_t> layers;  // empty: all
};

struct PlanRecord {
  v1::Plan plan;                       // plan.ranks ascending by rank
  std::vector<uint64_t> incarnations;  // of plan.ranks
  uint32_t slot = 0;                   // where it is stored
  uint32_t lead_steps = 0;             // 0: from the step rate
  int64_t deadline_nanos = 0;          // how long a phase may take
  int64_t deadline_unix_nanos = 0;     // of the present phase
  int64_t abort_until_unix_nanos = 0;  // a rank that comes back before is told that the plan is off
  bool undoing = false;                // a rank failed after COMMIT: waiting for what the others did
  bool partial = false;                // a rollback for some ranks of the run only
  bool undone = false;                 // rolled back since
  uint64_t undoes = 0;                 // the plan that this one rolls back
  std::vector<std::pair<uint32_t, v1::KernelMode>> modes_before;  // by layer, what it changes
  std::vector<ModeGroup> follow_ups;                              // planned when this one is applied
  std::string evidence_json;
  bool resumed = false;  // not stored: read from the store at start

  bool finished() const;
  bool in_flight() const {
    return plan.state() == v1::PLAN_STATE_PREPARING || plan.state() == v1::PLAN_STATE_COMMITTING;
  }
};

// JSON text of at most a few hundred bytes and about 100 a rank.
std::string EncodePlan(const PlanRecord& record);
// DATA_LOSS when the text is not a plan.
absl::StatusOr<PlanRecord> DecodePlan(const std::string& text);

// What the layers of `layers` (empty: all that the run has) run now.
std::vector<std::pair<uint32_t, v1::KernelMode>> ModesNow(const RunView& view, const std::vector<uint32_t>& layers);
// Groups that bring back `modes_before`; with `skip_current`, without the layers that run it already. Layers are left
// empty when one group covers all layers of the run.
std::vector<ModeGroup> GroupsToRestore(const std::vector<std::pair<uint32_t, v1::KernelMode>>& modes_before,
                                       const RunView& view, bool skip_current);
// "layer 3", "layers 0, 3 and 10 more", "all layers".
std::string LayersText(const std::vector<uint32_t>& layers);
std::vector<uint32_t> LayersOf(const v1::Plan& plan);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_CONTROL_PLAN_RECORD_H_
