// Runs the policy on live runs: folds steps over ranks, evaluates the rules, writes events, asks for switches.
//
// Thread-safe. Listener calls copy what the rules need into a bounded queue and return; one own thread does the rest.
// When the queue is full the steps are dropped and counted (statistics().steps_dropped): ingest never waits.
#ifndef TRIMTAB_SERVER_POLICY_ENGINE_H_
#define TRIMTAB_SERVER_POLICY_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/model/roles.h"
#include "server/policy/policy.h"
#include "server/store/store.h"

namespace trimtab::server {

struct PolicyEngineOptions {
  size_t queue_bytes_max = size_t{64} << 20;  // over all runs
  size_t runs_max = 1000;                     // further runs are counted and not watched
  size_t fold_wait_steps_max = 256;  // how far the fastest rank may lead before a step is folded without the rest
  double tick_seconds = 1;           // how often stall and missing_rank look at the clock; 0: only Tick() does
  std::function<int64_t()> now_unix_nanos;  // wall clock; null: the system's
};

class PolicyEngine : public StepListener, public EventListener {
 public:
  // Restores alarms from `store` (so that a restart does not repeat them), writes the event policy_loaded, registers
  // itself as an event listener of `store` (guards start at switch_applied) and starts its thread. `events` is usually
  // `store` itself. All pointers outlive the engine; the store's last Append happens before the engine is destroyed.
  static absl::StatusOr<std::unique_ptr<PolicyEngine>> Create(Policy policy, EventLog* events, Actuator* actuator,
                                                              Store* store, PolicyEngineOptions options = {});

  // Evaluates what is queued and stops. Later listener calls do nothing. Idempotent; the destructor calls it.
  virtual void Shutdown() = 0;
  // Waits until everything handed over before the call is evaluated and its events are written.
  virtual void Drain() = 0;
  // Looks at the clock now (for tests and for tick_seconds = 0); returns when done.
  virtual void Tick() = 0;

  virtual const Policy& policy() const = 0;

  struct Statistics {
    uint64_t steps_evaluated = 0;  // folded steps
    uint64_t steps_dropped = 0;    // rank steps refused by the full queue
    uint64_t steps_late = 0;       // rank steps that came after their step was folded
    uint64_t runs_refused = 0;
    uint64_t alerts = 0, resolved = 0, switches_asked = 0, proposals = 0, rollbacks_asked = 0;
    uint64_t event_errors = 0;  // events or states that the store refused
    uint64_t active_alarms = 0;
  };
  virtual Statistics statistics() const = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_ENGINE_H_
