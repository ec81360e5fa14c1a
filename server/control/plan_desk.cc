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
    : options_(options), directory_(directory), link_(link), events_(events),
      plans_(store, std::max<size_t>(4, options.plans_kept_per_run)) {
  phase_options_.lead_steps_min = options.lead_steps_min;
  phase_options_.lead_steps_max = options.lead_steps_max;
  phase_options_.lead_seconds = options.lead_seconds;
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

// Checks --------------------------------------------------------------------------------------------------------------

RunView PlanDesk::ViewOf(const std::string& run) const { return directory_->View(run).value_or(RunView()); }

absl::StatusOr<RunView> PlanDesk::Known(const std::string& run) const {
  std::optional<RunView> view = directory_->View(run);
  if (view) return *std::move(view);
  std::string known;
  for (const std::string& name : directory_->Runs(5)) absl::StrAppend(&known, known.empty() ? "" : ", ", QuoteName(name));
  return absl::NotFoundError(absl::StrCat("No rank of a run ", QuoteName(run), " has connected since the server started; ",
                                          known.empty() ? "no run has." : absl::StrCat("runs: ", known, ".")));
}

absl::Status PlanDesk::CheckNoneInFlight(const std::string& run) {
  const PlanRecord* other = plans_.InFlight(run);
  if (other == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Plan ", other->plan.id(), " (", LayersText(LayersOf(other->plan)), " to ", ModeName(other->plan.mode()),
                   ") of run ", QuoteName(run), " is in flight; wait until it is applied or refused."));
}

absl::Status PlanDesk::Check(const Ask& ask, const RunView& view) {
  for (const absl::Status& s : {CheckTarget(view, ask.mode, ask.layers), CheckRanks(ask.run, view),
                                CheckNoneInFlight(ask.run), CheckChanges(view, ask.mode, ask.layers)}) {
    if (!s.ok()) return s;
  }
  if (!(ask.deadline_seconds >= 0) || ask.deadline_seconds > options_.deadline_seconds_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("The deadline must lie between 0 and ", options_.deadline_seconds_max, " seconds."));
  }
  if (ask.lead_steps > options_.lead_steps_max) {
    return absl::InvalidArgumentError(absl::StrCat("The lead is at most ", options_.lead_steps_max, " steps."));
  }
  return absl::OkStatus();
}

void PlanDesk::Clean(Ask* ask) {
  std::sort(ask->layers.begin(), ask->layers.end());
  ask->layers.erase(std::unique(ask->layers.begin(), ask->layers.end()), ask->layers.end());
  ask->reason = ClipUtf8(ask->reason, kMaxReasonBytes);
  ask->actor = ask->actor.empty() ? "an operator" : ClipUtf8(ask->actor, kMaxActorBytes);
}

absl::Status PlanDesk::Refused(const Ask& ask, const absl::Status& why) {
  if (last_refusals_.size() > options_.runs_max) last_refusals_.clear();
  LastRefusal& last = last_refusals_[ask.run];
  const int64_t now = Now();
  const std::string message(why.message());
  if (last.message == message && now - last.unix_nanos < kRepeatedRefusalNanos) return why;
  last = {message, now};
  ++statistics_.refused;
  v1::Event e;
  e.set_run(ask.run);
  e.set_kind("switch_refused");
  e.set_severity(v1::SEVERITY_WARNING);
  e.set_message(absl::StrCat("A switch of ", LayersText(ask.layers), " to ", ModeName(ask.mode), " was refused: ", message));
  e.set_actor(ask.actor);
  e.set_evidence_json(ask.evidence_json);
  Append(std::move(e));
  return why;
}

// Requests ------------------------------------------------------------------------------------------------------------

absl::StatusOr<PlanRecord*> PlanDesk::Make(const Ask& ask, const RunView& view) {
  absl::StatusOr<PlanRecord*> made = plans_.Add(ask.run);
  if (!made.ok()) return made;
  PlanRecord* r = *made;
  r->plan.set_mode(ask.mode);
  r->plan.mutable_layers()->Add(ask.layers.begin(), ask.layers.end());
  r->plan.set_reason(ask.reason);
  r->plan.set_actor(ask.actor);
  r->plan.set_created_unix_nanos(Now());
  r->lead_steps = ask.lead_steps;
  r->deadline_nanos =
      static_cast<int64_t>((ask.deadline_seconds > 0 ? ask.deadline_seconds : options_.deadline_seconds) * 1e9);
  r->modes_before = ModesNow(view, ask.layers);
  r->evidence_json = ask.evidence_json;
  ++statistics_.plans;
  return r;
}

absl::StatusOr<v1::Plan> PlanDesk::Begin(PlanRecord* r, const RunView& view, const std::set<uint32_t>* only) {
  r->plan.clear_ranks();
  r->incarnations.clear();
  r->partial = only != nullptr;
  for (const auto& [rank, state] : view.ranks) {
    if (!state.connected || (only != nullptr && !only->contains(rank))) continue;
    r->plan.add_ranks()->set_rank(rank);
    r->incarnations.push_back(state.incarnation);
  }
  phases_.erase(r->plan.id());  // its tallies are of other ranks
  open_.insert(r->plan.id());
  Run(r, [this](TwoPhase& phase) { return phase.Begin(Now()); });
  return r->plan;
}

absl::StatusOr<v1::Plan> PlanDesk::Switch(Ask ask) {
  Clean(&ask);
  absl::StatusOr<RunView> view = Known(ask.run);
  if (!view.ok()) return view.status();
  if (const absl::Status s = Check(ask, *view); !s.ok()) return Refused(ask, s);
  absl::StatusOr<PlanRecord*> record = Make(ask, *view);
  if (!record.ok()) return Refused(ask, record.status());
  return Begin(*record, *view, nullptr);
}

absl::StatusOr<v1::Plan> PlanDesk::Propose(Ask ask) {
  Clean(&ask);
  absl::StatusOr<RunView> view = Known(ask.run);
  if (!view.ok()) return view.status();
  if (const absl::Status s = CheckTarget(*view, ask.mode, ask.layers); !s.ok()) return Refused(ask, s);
  size_t open = 0;
  for (PlanRecord* r : plans_.Of(ask.run)) {
    if (r->plan.state() != v1::PLAN_STATE_PROPOSED) continue;
    if (r->plan.mode() == ask.mode && LayersOf(r->plan) == ask.layers) return r->plan;  // it waits already
    ++open;
  }
  if (open >= options_.open_proposals_per_run) {
    return Refused(ask, absl::ResourceExhaustedError(
                            absl::StrCat("The run has ", open, " open proposals; approve or reject some.")));
  }
  absl::StatusOr<PlanRecord*> record = Make(ask, *view);
  if (!record.ok()) return Refused(ask, record.status());
  PlanRecord* r = *record;
  r->plan.set_state(v1::PLAN_STATE_PROPOSED);
  if (const absl::Status s = Save(*r); !s.ok()) {
    r->plan.set_state(v1::PLAN_STATE_REFUSED);
    return s;
  }
  ++statistics_.open_proposals;
  EmitPlan("proposal", v1::SEVERITY_WARNING, *r, ask.actor,
           absl::StrCat("Proposal ", r->plan.id(), ": switch ", LayersText(ask.layers), " to ", ModeName(ask.mode),
                        " (", ask.reason, "). Approve with `trimtab approve ", QuoteName(ask.run), "`."));
  return r->plan;
}

absl::StatusOr<v1::Plan> PlanDesk::Rollback(Ask ask) {
  Clean(&ask);
  absl::StatusOr<RunView> view = Known(ask.run);
  if (!view.ok()) return view.status();
  for (const absl::Status& s : {CheckRanks(ask.run, *view), CheckNoneInFlight(ask.run)}) {
    if (!s.ok()) return Refused(ask, s);
  }
  std::vector<PlanRecord*> plans = plans_.Of(ask.run);
  for (auto it = plans.rbegin(); it != plans.rend(); ++it) {
    PlanRecord* target = *it;
    if (target->plan.state() != v1::PLAN_STATE_APPLIED || target->plan.rollback() || target->undone) continue;
    std::vector<ModeGroup> groups = GroupsToRestore(target->modes_before, *view, true);
    if (target->modes_before.empty()) groups.push_back({v1::KERNEL_MODE_OBSERVE, LayersOf(target->plan)});
    if (groups.empty()) {  // the job started anew since, or someone switched back by hand
      target->undone = true;
      if (const absl::Status s = Save(*target); !s.ok()) return s;
      continue;
    }
    ask.mode = groups[0].mode;
    ask.layers = groups[0].layers;
    absl::StatusOr<PlanRecord*> record = Make(ask, *view);
    if (!record.ok()) return Refused(ask, record.status());
    (*record)->plan.set_rollback(true);
    (*record)->undoes = target->plan.id();
    (*record)->follow_ups.assign(groups.begin() + 1, groups.end());
    if (ask.reason.empty()) (*record)->plan.set_reason(absl::StrCat("undoes plan ", target->plan.id()));
    return Begin(*record, *view, nullptr);
  }
  return Refused(ask, absl::FailedPreconditionError(absl::StrCat(
                          "There is nothing to roll back: no applied switch of run ", QuoteName(ask.run), " is in force.")));
}

absl::StatusOr<v1::Plan> PlanDesk::Approve(const v1::ApproveRequest& request) {
  std::vector<PlanRecord*> open;
  for (PlanRecord* r : plans_.Of(request.run())) {
    if (r->plan.state() == v1::PLAN_STATE_PROPOSED && (request.plan() == 0 || r->plan.id() == request.plan())) {
      open.push_back(r);
    }
  }
  if (open.empty()) {
    return absl::NotFoundError(request.plan() == 0
                                   ? absl::StrCat("Run ", QuoteName(request.run()), " has no open proposal.")
                                   : absl::StrCat("Plan ", request.plan(), " is no open proposal of run ",
                                                  QuoteName(request.run()), "."));
  }
  if (open.size() > 1) {
    std::string ids;
    for (const PlanRecord* r : open) absl::StrAppend(&ids, ids.empty() ? "" : ", ", r->plan.id());
    return absl::FailedPreconditionError(absl::StrCat("There are several open proposals; name one of ", ids, "."));
  }
  PlanRecord* r = open[0];
  const std::string actor = request.actor().empty() ? "an operator" : ClipUtf8(request.actor(), kMaxActorBytes);
  if (request.reject()) {
    r->plan.set_state(v1::PLAN_STATE_REJECTED);
    r->plan.set_finished_unix_nanos(Now());
    r->plan.set_outcome(absl::StrCat("Rejected by ", actor, "."));
    if (const absl::Status s = Save(*r); !s.ok()) return s;
    --statistics_.open_proposals;
    EmitPlan("rejected", v1::SEVERITY_INFO, *r, actor, absl::StrCat("Proposal ", r->plan.id(), " rejected by ", actor, "."));
    return r->plan;
  }
  absl::StatusOr<RunView> view = Known(r->plan.run());
  if (!view.ok()) return view.status();
  const Ask ask{r->plan.run(), r->plan.reason(), actor, r->evidence_json, r->plan.mode(), LayersOf(r->plan), 0, 0};
  if (const absl::Status s = Check(ask, *view); !s.ok()) return Refused(ask, s);  // the proposal stays open
  r->modes_before = ModesNow(*view, ask.layers);
  --statistics_.open_proposals;
  EmitPlan("approved", v1::SEVERITY_INFO, *r, actor, absl::StrCat("Proposal ", r->plan.id(), " approved by ", actor, "."));
  return Begin(r, *view, nullptr);
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
      directory_->Applied(record->plan.run(), record->plan.mode(), LayersOf(record->plan), record->plan.effective_step());
      GoOn(*record);
      break;
    case v1::PLAN_STATE_ABORTED:
      ++statistics_.aborted;
      UndoForRanks(*record);
      break;
    default: ++statistics_.refused; break;
  }
}

// The rest of a rollback to several modes; and the note that its plan is undone.
void PlanDesk::GoOn(PlanRecord applied) {
  if (!applied.follow_ups.empty()) {
    const RunView view = ViewOf(applied.plan.run());
    const Ask ask{applied.plan.run(), applied.plan.reason(), applied.plan.actor(), applied.evidence_json,
                  applied.follow_ups[0].mode, applied.follow_ups[0].layers, applied.lead_steps, 0};
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
  const Ask ask{aborted.plan.run(), absl::StrCat("plan ", aborted.plan.id(), " failed after commit"), "control",
                aborted.evidence_json, groups[0].mode, groups[0].layers, 0, 0};
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
    return phase.OnAck(rank, ack, [&] { return ViewOf(rank.run); }, Now());
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
