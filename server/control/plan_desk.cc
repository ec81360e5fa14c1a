#include "server/control/plan_desk.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/control/preflight.h"
#include "server/model/run_name.h"
#include "server/policy/describe.h"

namespace trimtab::server {

PlanDesk::PlanDesk(const ControllerOptions& options, RankDirectory* directory, CommandLink* link, EventLog* events,
                   Store* store)
    : options_(options),
      directory_(directory),
      link_(link),
      events_(events),
      plans_(store, std::max<size_t>(4, options.plans_kept_per_run)) {
  phase_options_.lead_steps_min = options.lead_steps_min;
  phase_options_.lead_steps_max = options.lead_steps_max;
  phase_options_.lead_seconds_min = options.lead_seconds_min;
  phase_options_.lead_seconds_max = options.lead_seconds_max;
  phase_options_.applied_grace_nanos = static_cast<int64_t>(options.applied_grace_seconds * 1e9);
}

absl::Status PlanDesk::Start() {
  const absl::StatusOr<size_t> unreadable = plans_.Load();
  if (!unreadable.ok()) return unreadable.status();
  statistics_.event_errors += *unreadable;
  for (PlanRecord* record : plans_.Of("")) {
    changed_.insert(record->plan.id());
    if (record->plan.state() == v1::PLAN_STATE_PROPOSED) ++statistics_.open_proposals;
    if (!record->in_flight()) continue;
    open_.insert(record->plan.id());
    Run(record, [this](TwoPhase& phase) { return phase.Resume(Now()); });
  }
  return absl::OkStatus();
}

// Protocol ------------------------------------------------------------------------------------------------------------

TwoPhase& PlanDesk::PhaseOf(PlanRecord* record) {
  return phases_.try_emplace(record->plan.id(), record, phase_options_).first->second;
}

void PlanDesk::Run(PlanRecord* record, const std::function<Effects(TwoPhase&)>& input) {
  const bool open = record->in_flight() || open_.contains(record->plan.id());
  CarryOut(record, input(PhaseOf(record)));
  changed_.insert(record->plan.id());
  if (open && record->finished()) {
    open_.erase(record->plan.id());
    OnFinished(record);
  }
}

void PlanDesk::CarryOut(PlanRecord* record, Effects effects) {
  // Bounded: every unreachable rank is reported once, and a refused plan takes no more of them.
  std::deque<Effects> todo;
  todo.push_back(std::move(effects));
  while (!todo.empty()) {
    const Effects e = std::move(todo.front());
    todo.pop_front();
    const bool stored = !e.changed || Save(*record).ok();
    for (const v1::Event& event : e.events) Append(event);
    for (const auto& [rank, command] : e.commands) {
      // A switch that would not survive a restart is not asked for; its deadline takes it back.
      if (!stored && command.phase() != v1::COMMAND_PHASE_ABORT) continue;
      const absl::Status sent = link_->Send(rank, command);
      if (sent.ok()) continue;
      Effects more = PhaseOf(record).OnUnreachable(rank, std::string(sent.message()), Now());
      if (more.changed) todo.push_back(std::move(more));
      if (record->finished() && command.phase() == v1::COMMAND_PHASE_PREPARE) break;
    }
  }
}

void PlanDesk::OnFinished(PlanRecord* record) {
  switch (record->plan.state()) {
    case v1::PLAN_STATE_APPLIED:
      ++statistics_.applied;
      directory_->Applied(record->plan.run(), record->plan.mode(), LayersOf(record->plan),
                          record->plan.effective_step());
      GoOn(*record);
      break;
    case v1::PLAN_STATE_ABORTED:
      ++statistics_.aborted;
      UndoForRanks(*record);
      break;
    default:
      ++statistics_.refused;
      break;
  }
}

// The rest of a rollback to several modes; and the note that its plan is undone.
void PlanDesk::GoOn(PlanRecord applied) {
  if (!applied.follow_ups.empty()) {
    const RunView view = ViewOf(applied.plan.run());
    const Ask ask{applied.plan.run(),         applied.plan.reason(),        applied.plan.actor(), applied.evidence_json,
                  applied.follow_ups[0].mode, applied.follow_ups[0].layers, applied.lead_steps,   0};
    const absl::Status ranks = CheckRanks(ask.run, view);
    const absl::StatusOr<PlanRecord*> next = ranks.ok() ? Make(ask, view) : absl::StatusOr<PlanRecord*>(ranks);
    if (!next.ok()) {
      (void)Refused(ask, next.status());
      return;
    }
    (*next)->plan.set_rollback(true);
    (*next)->undoes = applied.undoes;
    (*next)->follow_ups.assign(applied.follow_ups.begin() + 1, applied.follow_ups.end());
    (void)Begin(*next, view, nullptr);
    return;
  }
  if (PlanRecord* target = applied.undoes > 0 ? plans_.Find(applied.undoes) : nullptr) {
    target->undone = true;
    (void)Save(*target);
  }
}

// Ranks that switched alone go back to what they ran before.
void PlanDesk::UndoForRanks(PlanRecord aborted) {
  std::set<uint32_t> switched;
  const RunView view = ViewOf(aborted.plan.run());
  for (int i = 0; i < aborted.plan.ranks_size(); ++i) {
    const v1::RankState& rank = aborted.plan.ranks(i);
    const auto it = view.ranks.find(rank.rank());
    if (rank.state() != "applied" || it == view.ranks.end()) continue;
    if (it->second.connected && it->second.incarnation == aborted.incarnations[i]) switched.insert(rank.rank());
  }
  if (switched.empty() || aborted.plan.rollback()) return;  // a failed rollback is not chased: its event is critical
  std::vector<ModeGroup> groups = GroupsToRestore(aborted.modes_before, view, false);
  if (groups.empty()) groups.push_back({v1::KERNEL_MODE_OBSERVE, LayersOf(aborted.plan)});
  const Ask ask{aborted.plan.run(),
                absl::StrCat("plan ", aborted.plan.id(), " failed after commit"),
                "control",
                aborted.evidence_json,
                groups[0].mode,
                groups[0].layers,
                0,
                0};
  const absl::StatusOr<PlanRecord*> record = Make(ask, view);
  if (!record.ok()) {
    (void)Refused(ask, record.status());
    return;
  }
  (*record)->plan.set_rollback(true);
  (*record)->undoes = aborted.plan.id();
  (void)Begin(*record, view, &switched);
}

void PlanDesk::OnAck(const RankKey& rank, const v1::CommandAck& ack) {
  PlanRecord* record = plans_.Find(ack.plan());
  if (record == nullptr || record->plan.run() != rank.run) {
    ++statistics_.acks_unknown;
    return;
  }
  Run(record, [&](TwoPhase& phase) {
    return phase.OnAck(
        rank, ack, [&] { return ViewOf(rank.run); }, Now());
  });
  record = plans_.Find(ack.plan());
  if (record != nullptr && PhaseOf(record).TakeUnexpected()) ++statistics_.acks_unknown;
}

void PlanDesk::OnJoined(const RankKey& rank) {
  const int64_t now = Now();
  std::vector<uint64_t> concerned;
  for (const PlanRecord* record : plans_.Of(rank.run)) {
    if (record->in_flight() || now < record->abort_until_unix_nanos) concerned.push_back(record->plan.id());
  }
  for (const uint64_t id : concerned) {
    PlanRecord* record = plans_.Find(id);
    if (record != nullptr) Run(record, [&](TwoPhase& phase) { return phase.OnJoined(rank, now); });
  }
}

void PlanDesk::OnLeft(const RankKey& rank, LeaveReason reason, const std::string& detail) {
  if (PlanRecord* record = plans_.InFlight(rank.run)) {
    Run(record, [&](TwoPhase& phase) { return phase.OnLeft(rank, reason, detail, Now()); });
  }
}

void PlanDesk::OnTick() {
  const std::set<uint64_t> open = open_;
  for (const uint64_t id : open) {
    PlanRecord* record = plans_.Find(id);
    if (record == nullptr || !record->in_flight()) continue;
    // A picture of the run is only needed when a deadline passed or a restarted server has to find out.
    const bool look = record->resumed || Now() >= record->deadline_unix_nanos;
    if (!look) continue;
    Run(record, [&](TwoPhase& phase) { return phase.OnTick(ViewOf(record->plan.run()), Now()); });
  }
}

// Records -------------------------------------------------------------------------------------------------------------

std::vector<v1::Plan> PlanDesk::TakeChanged() {
  std::vector<v1::Plan> changed;
  for (const uint64_t id : std::exchange(changed_, {})) {
    if (const PlanRecord* r = plans_.Find(id)) changed.push_back(r->plan);
  }
  return changed;
}

std::vector<uint64_t> PlanDesk::TakeDropped() {
  std::vector<uint64_t> dropped = plans_.TakeDropped();
  for (const uint64_t id : dropped) phases_.erase(id);
  return dropped;
}

absl::Status PlanDesk::Save(const PlanRecord& record) {
  changed_.insert(record.plan.id());
  absl::Status s = plans_.Save(record);
  if (!s.ok()) ++statistics_.event_errors;
  return s;
}

void PlanDesk::Append(v1::Event event) {
  event.set_time_unix_nanos(Now());
  if (!events_->Append(std::move(event)).ok()) ++statistics_.event_errors;
}

void PlanDesk::EmitPlan(const char* kind, v1::Severity severity, const PlanRecord& record, const std::string& actor,
                        std::string message) {
  v1::Event e;
  e.set_run(record.plan.run());
  e.set_kind(kind);
  e.set_severity(severity);
  e.set_message(std::move(message));
  e.set_plan_id(absl::StrCat(record.plan.id()));
  e.set_actor(actor);
  e.set_evidence_json(record.evidence_json);
  Append(std::move(e));
}

}  // namespace trimtab::server
