// The two-phase protocol of one plan as a state machine without clock, thread or link: inputs in, effects out.
//
//   PREPARING --all PREPARED--> COMMITTING --all APPLIED at the same step--> APPLIED
//       | refused, died, deadline      | late, died, deadline: "undoing": ABORT to the rest, wait for what they did
//       v ABORT to all                 v
//    REFUSED                        ABORTED (the controller plans a rollback for the ranks that switched)
//
// Acks of ranks or phases that are not waited for change nothing. Cost of an input: O(log ranks), of a phase: O(ranks).
#ifndef TRIMTAB_SERVER_CONTROL_TWO_PHASE_H_
#define TRIMTAB_SERVER_CONTROL_TWO_PHASE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/control/plan_record.h"
#include "server/model/roles.h"

namespace trimtab::server {

struct TwoPhaseOptions {
  uint32_t lead_steps_min = 20;
  uint32_t lead_steps_max = 100000;
  double lead_seconds_min = 0.5;
  double lead_seconds_max = 10;
  double lead_round_trips = 4;  // of the PREPARE phase, which went the way that COMMIT will go
  int64_t applied_grace_nanos = 30'000'000'000;
};

// To be carried out in this order: store the record (if changed), append the events, send the commands.
struct Effects {
  bool changed = false;
  std::vector<v1::Event> events;
  std::vector<std::pair<RankKey, v1::Command>> commands;
};

class TwoPhase {
 public:
  // Makes a picture of the run; called once a plan, at COMMIT.
  using Look = std::function<RunView()>;

  // `record` outlives this and holds a plan with its ranks filled in.
  TwoPhase(PlanRecord* record, const TwoPhaseOptions& options);

  // PREPARE to every rank.
  Effects Begin(int64_t now_unix_nanos);
  // After a restart of the server: refuses what was not committed, goes on with what was.
  Effects Resume(int64_t now_unix_nanos);

  Effects OnAck(const RankKey& rank, const v1::CommandAck& ack, const Look& look, int64_t now_unix_nanos);
  Effects OnJoined(const RankKey& rank, int64_t now_unix_nanos);
  Effects OnLeft(const RankKey& rank, LeaveReason reason, const std::string& detail, int64_t now_unix_nanos);
  // The link refused a command for this rank.
  Effects OnUnreachable(const RankKey& rank, const std::string& why, int64_t now_unix_nanos);
  // Deadlines. After a deadline (or a restart) the telemetry of a rank is taken for its word: its modes at a step from
  // the effective one on.
  Effects OnTick(const RunView& view, int64_t now_unix_nanos);

  // An ack that was waited for by nobody.
  bool TakeUnexpected() { return std::exchange(unexpected_, false); }

 private:
  v1::RankState* Find(const RankKey& rank);
  void Set(v1::RankState* rank, const char* state, uint64_t step, const std::string& reason);
  // Adds `by` to the tallies that `rank` counts in.
  void Tally(const v1::RankState& rank, int by);
  RankKey KeyOf(int index) const;
  v1::Command CommandOf(v1::CommandPhase phase) const;
  void SendTo(int index, v1::CommandPhase phase, Effects* out) const;
  void Emit(const char* kind, v1::Severity severity, uint64_t step, std::string message, Effects* out) const;

  void Commit(const RunView& view, int64_t now, Effects* out);
  void Refuse(const std::string& why, int64_t now, Effects* out);
  // After COMMIT: `why` goes into the outcome.
  void Undo(const std::string& why, int64_t now, Effects* out);
  void FinishUndo(int64_t now, Effects* out);
  void FinishApplied(int64_t now, Effects* out);
  void AfterTheEnd(v1::RankState* rank, const v1::CommandAck& ack, Effects* out);
  // One rank cannot go on, in any phase.
  void Fail(v1::RankState* rank, const char* state, const std::string& why, int64_t now, Effects* out);
  // Goes to the next phase when all ranks are there.
  void Advance(const Look& look, int64_t now, Effects* out);
  std::string What() const;
  static bool Decided(const v1::RankState& rank);

  PlanRecord* r_;
  TwoPhaseOptions options_;
  int prepared_ = 0, applied_ = 0, decided_ = 0;  // ranks
  bool unexpected_ = false;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_CONTROL_TWO_PHASE_H_
