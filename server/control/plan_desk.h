// What the controller's thread does with plans: checks and makes them, runs their protocol, carries out its effects.
//
// Not thread-safe: one thread at a time calls it.
#ifndef TRIMTAB_SERVER_CONTROL_PLAN_DESK_H_
#define TRIMTAB_SERVER_CONTROL_PLAN_DESK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/control/controller.h"
#include "server/control/plan_store.h"
#include "server/control/rank_directory.h"
#include "server/control/two_phase.h"

namespace trimtab::server {

class PlanDesk {
 public:
  // All pointers outlive the desk; `store` may be null.
  PlanDesk(const ControllerOptions& options, RankDirectory* directory, CommandLink* link, EventLog* events,
           Store* store);

  // Loads stored plans; refuses or goes on with those in flight.
  absl::Status Start();

  struct Ask {
    std::string run, reason, actor, evidence_json;
    v1::KernelMode mode = v1::KERNEL_MODE_UNSPECIFIED;
    std::vector<uint32_t> layers;
    uint32_t lead_steps = 0;
    double deadline_seconds = 0;
  };
  // Each records a refusal as an event too, unless the run is unknown.
  absl::StatusOr<v1::Plan> Switch(Ask ask);
  absl::StatusOr<v1::Plan> Propose(Ask ask);
  absl::StatusOr<v1::Plan> Rollback(Ask ask);
  absl::StatusOr<v1::Plan> Approve(const v1::ApproveRequest& request);

  void OnAck(const RankKey& rank, const v1::CommandAck& ack);
  void OnJoined(const RankKey& rank);
  void OnLeft(const RankKey& rank, LeaveReason reason, const std::string& detail);
  void OnTick();

  // Plans that changed since the last call, and ids that are no longer kept.
  std::vector<v1::Plan> TakeChanged();
  std::vector<uint64_t> TakeDropped();
  const Controller::Statistics& statistics() const { return statistics_; }

 private:
  static constexpr size_t kMaxReasonBytes = 1000;
  static constexpr size_t kMaxActorBytes = 100;
  static constexpr int64_t kRepeatedRefusalNanos = 10'000'000'000;

  int64_t Now() const { return options_.now_unix_nanos(); }
  RunView ViewOf(const std::string& run) const;
  absl::StatusOr<RunView> Known(const std::string& run) const;
  absl::Status Check(const Ask& ask, const RunView& view);
  absl::Status CheckNoneInFlight(const std::string& run);
  absl::Status Refused(const Ask& ask, const absl::Status& why);
  static void Clean(Ask* ask);

  // May drop the oldest finished plan of the run: records of finished plans are not valid after it.
  absl::StatusOr<PlanRecord*> Make(const Ask& ask, const RunView& view);
  // Fills in the ranks (all connected ones, or `only`) and begins.
  absl::StatusOr<v1::Plan> Begin(PlanRecord* record, const RunView& view, const std::set<uint32_t>* only);
  TwoPhase& PhaseOf(PlanRecord* record);
  void Run(PlanRecord* record, const std::function<Effects(TwoPhase&)>& input);
  void CarryOut(PlanRecord* record, Effects effects);
  void OnFinished(PlanRecord* record);
  void GoOn(PlanRecord applied);
  void UndoForRanks(PlanRecord aborted);
  absl::Status Save(const PlanRecord& record);
  void Append(v1::Event event);
  void EmitPlan(const char* kind, v1::Severity severity, const PlanRecord& record, const std::string& actor,
                std::string message);

  ControllerOptions options_;
  TwoPhaseOptions phase_options_;
  RankDirectory* directory_;
  CommandLink* link_;
  EventLog* events_;
  PlanStore plans_;
  std::map<uint64_t, TwoPhase> phases_;
  std::set<uint64_t> open_;  // in flight, for deadlines
  std::set<uint64_t> changed_;
  struct LastRefusal {
    std::string message;
    int64_t unix_nanos = 0;
  };
  std::map<std::string, LastRefusal> last_refusals_;  // by run; cleared when larger than runs_max
  Controller::Statistics statistics_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_CONTROL_PLAN_DESK_H_
