// Switch plans: one mode change of some layers on all ranks of a run at one step, in two phases.
//
//   PREPARE to every rank -> all PREPARED -> effective step = highest step + lead -> COMMIT -> all APPLIED.
//   One refusal, or silence at the deadline, before COMMIT: ABORT to all, nobody switched. One late after COMMIT: the
//   plan is ABORTED and a rollback plan is made for the ranks that switched. docs/policy.md has the states.
//
// Thread-safe. Listener calls hand over and return; one own thread runs the protocol, writes events and plans (each
// durable before the command that depends on it is sent) and keeps the deadlines. One plan in flight per run.
#ifndef TRIMTAB_SERVER_CONTROL_CONTROLLER_H_
#define TRIMTAB_SERVER_CONTROL_CONTROLLER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/model/roles.h"
#include "server/store/store.h"

namespace trimtab::server {

struct ControllerOptions {
  double deadline_seconds = 30;  // for PREPARE, unless the request names one
  double deadline_seconds_max = 600;
  double applied_grace_seconds = 30;  // after the time at which the effective step is expected
  uint32_t lead_steps_min = 20;
  // lead = max(lead_steps_min, steps/s x seconds); seconds: four times what PREPARE took, within these bounds.
  double lead_seconds_min = 0.5;
  double lead_seconds_max = 10;
  uint32_t lead_steps_max = 100000;
  size_t runs_max = 1000;
  size_t plans_kept_per_run = 64;  // finished ones; the oldest is overwritten
  size_t open_proposals_per_run = 8;
  size_t queue_max = 65536;                 // acks and requests waiting for the thread; more are counted and dropped
  double tick_seconds = 0.2;                // deadline resolution; 0: only Tick() does
  std::function<int64_t()> now_unix_nanos;  // wall clock; null: the system's
};

class Controller : public StepListener, public AckListener, public Actuator {
 public:
  // Loads plans from `store`. One that was in flight when the server ended is finished (after COMMIT) or refused
  // (before it), each with an event. All pointers outlive the controller.
  static absl::StatusOr<std::unique_ptr<Controller>> Create(ControllerOptions options, CommandLink* link,
                                                            EventLog* events, Store* store);

  // NOT_FOUND unknown run; INVALID_ARGUMENT mode or layer; FAILED_PRECONDITION says what stands against it (a plan in
  // flight, a job without --act, ranks missing, mode in force) and what to do. Else the plan, PREPARING.
  virtual absl::StatusOr<v1::Plan> Switch(const v1::SwitchRequest& request) = 0;
  virtual absl::StatusOr<v1::Plan> Rollback(const v1::RollbackRequest& request) = 0;
  virtual absl::StatusOr<v1::Plan> Approve(const v1::ApproveRequest& request) = 0;
  // Ascending ids; "": of all runs.
  virtual absl::StatusOr<std::vector<v1::Plan>> ListPlans(const std::string& run) const = 0;

  // Waits until the plan is decided: committed (or already applied), refused, rejected, or aborted. DEADLINE_EXCEEDED
  // with the plan still open after `timeout`; UNAVAILABLE at shutdown.
  virtual absl::StatusOr<v1::Plan> WaitDecided(uint64_t plan, absl::Duration timeout) = 0;

  // Ends the thread and wakes waiters. Plans in flight stay as stored. Idempotent; the destructor calls it.
  virtual void Shutdown() = 0;
  // Waits until everything handed over before the call has been worked off.
  virtual void Drain() = 0;
  // Looks at deadlines now.
  virtual void Tick() = 0;

  struct Statistics {
    uint64_t plans = 0, applied = 0, refused = 0, aborted = 0, open_proposals = 0;
    uint64_t acks_unknown = 0;  // for plans or ranks that are not waited for
    uint64_t dropped = 0;       // queue full
    uint64_t runs_refused = 0;
    uint64_t event_errors = 0;
  };
  virtual Statistics statistics() const = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_CONTROL_CONTROLLER_H_
