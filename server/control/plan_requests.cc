// What people and the policy ask for: checks first, then a plan.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/control/plan_desk.h"
#include "server/control/preflight.h"
#include "server/model/run_name.h"
#include "server/policy/describe.h"

namespace trimtab::server {

// Checks --------------------------------------------------------------------------------------------------------------

RunView PlanDesk::ViewOf(const std::string& run) const { return directory_->View(run).value_or(RunView()); }

absl::StatusOr<RunView> PlanDesk::Known(const std::string& run) const {
  std::optional<RunView> view = directory_->View(run);
  if (view) return *std::move(view);
  std::string known;
  for (const std::string& name : directory_->Runs(5))
    absl::StrAppend(&known, known.empty() ? "" : ", ", QuoteName(name));
  return absl::NotFoundError(absl::StrCat("No rank of a run ", QuoteName(run),
                                          " has connected since the server started; ",
                                          known.empty() ? "no run has." : absl::StrCat("runs: ", known, ".")));
}

absl::Status PlanDesk::CheckNoneInFlight(const std::string& run) {
  const PlanRecord* other = plans_.InFlight(run);
  if (other == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("Plan ", other->plan.id(), " (", LayersText(LayersOf(other->plan)),
                                                    " to ", ModeName(other->plan.mode()), ") of run ", QuoteName(run),
                                                    " is in flight; wait until it is applied or refused."));
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
  e.set_step(ViewOf(ask.run).highest_step());
  const std::string what = ask.mode == v1::KERNEL_MODE_UNSPECIFIED
                               ? "A rollback"
                               : absl::StrCat("A switch of ", LayersText(ask.layers), " to ", ModeName(ask.mode));
  e.set_message(absl::StrCat(what, " was refused: ", message));
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
                        " (", ask.reason, "). Approve with `trimtab approve ", QuoteName(ask.run), " --plan ",
                        r->plan.id(), "`."));
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
  return Refused(ask,
                 absl::FailedPreconditionError(absl::StrCat("There is nothing to roll back: no applied switch of run ",
                                                            QuoteName(ask.run), " is in force.")));
}

absl::StatusOr<v1::Plan> PlanDesk::Approve(const v1::ApproveRequest& request) {
  std::vector<PlanRecord*> open;
  for (PlanRecord* r : plans_.Of(request.run())) {
    if (r->plan.state() == v1::PLAN_STATE_PROPOSED && (request.plan() == 0 || r->plan.id() == request.plan())) {
      open.push_back(r);
    }
  }
  if (open.empty()) {
    return absl::NotFoundError(
        request.plan() == 0
            ? absl::StrCat("Run ", QuoteName(request.run()), " has no open proposal.")
            : absl::StrCat("Plan ", request.plan(), " is no open proposal of run ", QuoteName(request.run()), "."));
  }
  if (open.size() > 1) {
    std::string ids;
    for (const PlanRecord* r : open) absl::StrAppend(&ids, ids.empty() ? "" : ", ", r->plan.id());
    return absl::FailedPreconditionError(
        absl::StrCat("There are several open proposals: ", ids, "; name one with --plan."));
  }
  PlanRecord* r = open[0];
  const std::string actor = request.actor().empty() ? "an operator" : ClipUtf8(request.actor(), kMaxActorBytes);
  if (request.reject()) {
    r->plan.set_state(v1::PLAN_STATE_REJECTED);
    r->plan.set_finished_unix_nanos(Now());
    r->plan.set_outcome(absl::StrCat("Rejected by ", actor, "."));
    if (const absl::Status s = Save(*r); !s.ok()) return s;
    --statistics_.open_proposals;
    EmitPlan("rejected", v1::SEVERITY_INFO, *r, actor,
             absl::StrCat("Proposal ", r->plan.id(), " rejected by ", actor, "."));
    return r->plan;
  }
  absl::StatusOr<RunView> view = Known(r->plan.run());
  if (!view.ok()) return view.status();
  const Ask ask{r->plan.run(), r->plan.reason(), actor, r->evidence_json, r->plan.mode(), LayersOf(r->plan), 0, 0};
  if (const absl::Status s = Check(ask, *view); !s.ok()) return Refused(ask, s);  // the proposal stays open
  r->modes_before = ModesNow(*view, ask.layers);
  --statistics_.open_proposals;
  EmitPlan("approved", v1::SEVERITY_INFO, *r, actor,
           absl::StrCat("Proposal ", r->plan.id(), " approved by ", actor, "."));
  return Begin(r, *view, nullptr);
}

}  // namespace trimtab::server
