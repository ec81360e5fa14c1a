#include "server/control/two_phase.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/policy/describe.h"

namespace trimtab::server {
namespace {

constexpr char kWaiting[] = "waiting";
constexpr char kPrepared[] = "prepared";
constexpr char kCommitted[] = "committed";
constexpr char kApplied[] = "applied";
constexpr char kRefused[] = "refused";
constexpr char kAborted[] = "aborted";
constexpr char kSilent[] = "silent";
constexpr char kGone[] = "gone";

constexpr size_t kMaxReasonBytes = 300;

const char* LeftText(LeaveReason reason) {
  switch (reason) {
    case LeaveReason::kFinished:
      return "ended";
    case LeaveReason::kDied:
      return "died";
    case LeaveReason::kReplaced:
      return "was replaced by a new process";
    case LeaveReason::kDisconnected:
      return "lost its connection";
  }
  return "left";
}

}  // namespace

TwoPhase::TwoPhase(PlanRecord* record, const TwoPhaseOptions& options) : r_(record), options_(options) {
  for (const v1::RankState& rank : r_->plan.ranks()) Tally(rank, 1);
}

// Parts ---------------------------------------------------------------------------------------------------------------

v1::RankState* TwoPhase::Find(const RankKey& key) {
  auto* ranks = r_->plan.mutable_ranks();
  const auto it = std::lower_bound(ranks->begin(), ranks->end(), key.rank,
                                   [](const v1::RankState& s, uint32_t rank) { return s.rank() < rank; });
  if (it == ranks->end() || it->rank() != key.rank) return nullptr;
  if (r_->incarnations[it - ranks->begin()] != key.incarnation) return nullptr;
  return &*it;
}

void TwoPhase::Set(v1::RankState* rank, const char* state, uint64_t step, const std::string& reason) {
  Tally(*rank, -1);
  rank->set_state(state);
  Tally(*rank, 1);
  if (step > 0) rank->set_step(step);
  if (!reason.empty()) rank->set_reason(ClipUtf8(reason, kMaxReasonBytes));
}

void TwoPhase::Tally(const v1::RankState& rank, int by) {
  if (rank.state() == kPrepared) prepared_ += by;
  if (rank.state() == kApplied) applied_ += by;
  if (Decided(rank)) decided_ += by;
}

RankKey TwoPhase::KeyOf(int index) const {
  return {r_->plan.run(), r_->plan.ranks(index).rank(), r_->incarnations[index]};
}

v1::Command TwoPhase::CommandOf(v1::CommandPhase phase) const {
  v1::Command c;
  c.set_plan(r_->plan.id());
  c.set_phase(phase);
  c.set_mode(r_->plan.mode());
  *c.mutable_layers() = r_->plan.layers();
  if (phase != v1::COMMAND_PHASE_PREPARE) c.set_effective_step(r_->plan.effective_step());
  c.set_deadline_unix_nanos(phase == v1::COMMAND_PHASE_ABORT ? r_->abort_until_unix_nanos : r_->deadline_unix_nanos);
  return c;
}

void TwoPhase::SendTo(int index, v1::CommandPhase phase, Effects* out) const {
  out->commands.emplace_back(KeyOf(index), CommandOf(phase));
}

std::string TwoPhase::What() const {
  return absl::StrCat("Plan ", r_->plan.id(), " (", LayersText(LayersOf(r_->plan)), " to ", ModeName(r_->plan.mode()),
                      ")");
}

void TwoPhase::Emit(const char* kind, v1::Severity severity, uint64_t step, std::string message, Effects* out) const {
  v1::Event e;
  e.set_run(r_->plan.run());
  e.set_kind(kind);
  e.set_severity(severity);
  e.set_step(step);
  e.set_message(std::move(message));
  e.set_plan_id(absl::StrCat(r_->plan.id()));
  e.set_actor(r_->plan.actor());
  e.set_evidence_json(r_->evidence_json);
  out->events.push_back(std::move(e));
}

// Has this rank said its last word on a commit that is being undone?
bool TwoPhase::Decided(const v1::RankState& rank) {
  return rank.state() == kApplied || rank.state() == kAborted || rank.state() == kRefused || rank.state() == kGone ||
         rank.state() == kSilent;
}

// Transitions ---------------------------------------------------------------------------------------------------------

Effects TwoPhase::Begin(int64_t now) {
  Effects out;
  out.changed = true;
  r_->plan.set_state(v1::PLAN_STATE_PREPARING);
  r_->deadline_unix_nanos = now + r_->deadline_nanos;
  for (int i = 0; i < r_->plan.ranks_size(); ++i) {
    Set(r_->plan.mutable_ranks(i), kWaiting, 0, "");
    SendTo(i, v1::COMMAND_PHASE_PREPARE, &out);
  }
  Emit(r_->plan.rollback() ? "rollback_planned" : "switch_planned", v1::SEVERITY_INFO, 0,
       absl::StrCat(What(), r_->plan.rollback() ? " rolls back" : " planned", " on ", r_->plan.ranks_size(),
                    r_->plan.ranks_size() == 1 ? " rank" : " ranks", r_->plan.actor().empty() ? "" : ", asked by ",
                    r_->plan.actor(), r_->plan.reason().empty() ? "" : ": ", r_->plan.reason()),
       &out);
  return out;
}

Effects TwoPhase::Resume(int64_t now) {
  Effects out;
  r_->resumed = true;
  if (r_->plan.state() == v1::PLAN_STATE_PREPARING) {
    Refuse("the server restarted before every rank was prepared", now, &out);
    out.commands.clear();  // nobody is connected yet; ranks that come back are told then
  } else if (r_->plan.state() == v1::PLAN_STATE_COMMITTING) {
    r_->deadline_unix_nanos = std::max(r_->deadline_unix_nanos, now) + options_.applied_grace_nanos;
    out.changed = true;
  }
  return out;
}

void TwoPhase::Commit(const RunView& view, int64_t now, Effects* out) {
  uint64_t highest = view.highest_step();
  for (const v1::RankState& rank : r_->plan.ranks()) highest = std::max(highest, rank.step());
  const int64_t begun = r_->deadline_unix_nanos - r_->deadline_nanos;
  const double prepare_seconds = static_cast<double>(now - begun) / 1e9;
  const double seconds = std::max(options_.lead_seconds_min,
                                  std::min(options_.lead_round_trips * prepare_seconds, options_.lead_seconds_max));
  const double by_rate =
      std::min(std::ceil(view.steps_per_second * seconds), static_cast<double>(options_.lead_steps_max));
  const uint64_t lead =
      r_->lead_steps > 0 ? r_->lead_steps : std::max<uint64_t>(options_.lead_steps_min, static_cast<uint64_t>(by_rate));
  const double lead_seconds =
      view.steps_per_second > 0 ? std::min(static_cast<double>(lead) / view.steps_per_second, 86400.0) : 0;
  r_->plan.set_effective_step(highest + lead);
  r_->plan.set_state(v1::PLAN_STATE_COMMITTING);
  // An unknown step rate gets the deadline of a phase on top.
  r_->deadline_unix_nanos = now + static_cast<int64_t>(lead_seconds * 1e9) + options_.applied_grace_nanos +
                            (lead_seconds > 0 ? 0 : r_->deadline_nanos);
  out->changed = true;
  Emit("switch_prepared", v1::SEVERITY_INFO, highest, absl::StrCat(What(), ": every rank is prepared."), out);
  Emit("switch_committed", v1::SEVERITY_INFO, r_->plan.effective_step(),
       absl::StrCat(What(), " takes effect at step ", r_->plan.effective_step(), ", ", lead, " steps ahead."), out);
  for (int i = 0; i < r_->plan.ranks_size(); ++i) SendTo(i, v1::COMMAND_PHASE_COMMIT, out);
}

void TwoPhase::Refuse(const std::string& why, int64_t now, Effects* out) {
  r_->plan.set_state(v1::PLAN_STATE_REFUSED);
  r_->plan.set_finished_unix_nanos(now);
  r_->plan.set_outcome(absl::StrCat("Nobody switched: ", why, "."));
  r_->abort_until_unix_nanos = std::max(now, r_->deadline_unix_nanos) + r_->deadline_nanos;
  out->changed = true;
  Emit("switch_refused", v1::SEVERITY_WARNING, 0, absl::StrCat(What(), " refused. ", r_->plan.outcome()), out);
  for (int i = 0; i < r_->plan.ranks_size(); ++i) {
    const std::string& state = r_->plan.ranks(i).state();
    if (state != kRefused && state != kGone) SendTo(i, v1::COMMAND_PHASE_ABORT, out);
  }
}

void TwoPhase::Undo(const std::string& why, int64_t now, Effects* out) {
  if (r_->undoing) return;
  r_->undoing = true;
  r_->deadline_unix_nanos = now + options_.applied_grace_nanos;
  r_->abort_until_unix_nanos = r_->deadline_unix_nanos + r_->deadline_nanos;
  r_->plan.set_outcome(why);
  out->changed = true;
  for (int i = 0; i < r_->plan.ranks_size(); ++i) {
    if (!Decided(r_->plan.ranks(i)) || r_->plan.ranks(i).state() == kSilent) SendTo(i, v1::COMMAND_PHASE_ABORT, out);
  }
}

void TwoPhase::FinishUndo(int64_t now, Effects* out) {
  const auto& ranks = r_->plan.ranks();
  const size_t switched =
      std::count_if(ranks.begin(), ranks.end(), [](const v1::RankState& s) { return s.state() == kApplied; });
  r_->undoing = false;
  r_->plan.set_state(v1::PLAN_STATE_ABORTED);
  r_->plan.set_finished_unix_nanos(now);
  const std::string why = r_->plan.outcome();
  r_->plan.set_outcome(switched > 0 ? absl::StrCat("Aborted after commit: ", why, "; ", switched, " of ", ranks.size(),
                                                   " ranks had switched and are rolled back.")
                                    : absl::StrCat("Aborted after commit: ", why, "; no rank had switched."));
  out->changed = true;
  Emit("switch_refused", switched > 0 ? v1::SEVERITY_CRITICAL : v1::SEVERITY_WARNING, r_->plan.effective_step(),
       absl::StrCat(What(), ": ", r_->plan.outcome()), out);
}

void TwoPhase::FinishApplied(int64_t now, Effects* out) {
  r_->plan.set_state(v1::PLAN_STATE_APPLIED);
  r_->plan.set_finished_unix_nanos(now);
  r_->plan.set_outcome(
      absl::StrCat(r_->plan.ranks_size() == 1 ? "The only rank runs" : absl::StrCat("All ", r_->plan.ranks_size(), " ranks run"),
                   " ", LayersText(LayersOf(r_->plan)), " in ", ModeName(r_->plan.mode()), " from step ",
                   r_->plan.effective_step(), "."));
  out->changed = true;
  Emit("switch_applied", v1::SEVERITY_INFO, r_->plan.effective_step(),
       absl::StrCat(What(), " applied. ", r_->plan.outcome()), out);
}

void TwoPhase::Fail(v1::RankState* rank, const char* state, const std::string& why, int64_t now, Effects* out) {
  Set(rank, state, 0, why);
  const std::string text = absl::StrCat("rank ", rank->rank(), " ", why);
  if (r_->plan.state() == v1::PLAN_STATE_PREPARING) {
    Refuse(text, now, out);
  } else {
    Undo(text, now, out);
    Advance(nullptr, now, out);
  }
}

void TwoPhase::Advance(const Look& look, int64_t now, Effects* out) {
  const int ranks = r_->plan.ranks_size();
  if (r_->plan.state() == v1::PLAN_STATE_PREPARING) {
    if (prepared_ == ranks) Commit(look(), now, out);
  } else if (r_->undoing) {
    if (decided_ == ranks) FinishUndo(now, out);
  } else if (r_->plan.state() == v1::PLAN_STATE_COMMITTING && applied_ == ranks) {
    FinishApplied(now, out);
  }
}

// An answer that was under way when the plan ended, or comes twice: nothing to do. But a rank that switched although
// the plan is off runs another kernel than the rest of its run, and a person has to know.
void TwoPhase::AfterTheEnd(v1::RankState* rank, const v1::CommandAck& ack, Effects* out) {
  const bool switched_alone = ack.state() == v1::ACK_STATE_APPLIED && r_->plan.state() != v1::PLAN_STATE_APPLIED;
  if (!switched_alone || rank->state() == kApplied) return;
  Set(rank, kApplied, ack.step(), "switched although the plan was off");
  out->changed = true;
  Emit("switch_refused", v1::SEVERITY_CRITICAL, ack.step(),
       absl::StrCat(What(), ": rank ", rank->rank(), " switched at step ", ack.step(),
                    " although the plan was off, the other ranks did not; bring the run to one mode by a switch."),
       out);
}

// Inputs --------------------------------------------------------------------------------------------------------------

Effects TwoPhase::OnAck(const RankKey& key, const v1::CommandAck& ack, const Look& look, int64_t now) {
  Effects out;
  v1::RankState* rank = Find(key);
  if (rank == nullptr || !r_->in_flight()) {
    unexpected_ = rank == nullptr || !r_->finished();
    if (!unexpected_) AfterTheEnd(rank, ack, &out);
    return out;
  }
  const bool preparing = r_->plan.state() == v1::PLAN_STATE_PREPARING;
  switch (ack.state()) {
    case v1::ACK_STATE_PREPARED:
      if (preparing) Set(rank, kPrepared, ack.step(), "");
      break;
    case v1::ACK_STATE_COMMITTED:
      if (preparing)
        unexpected_ = true;
      else if (rank->state() == kPrepared || rank->state() == kWaiting)
        Set(rank, kCommitted, ack.step(), "");
      break;
    case v1::ACK_STATE_APPLIED:
      if (preparing) {
        unexpected_ = true;
      } else if (ack.step() != r_->plan.effective_step()) {
        Set(rank, kApplied, ack.step(), "");
        Undo(absl::StrCat("rank ", rank->rank(), " switched at step ", ack.step(), " instead of ",
                          r_->plan.effective_step()),
             now, &out);
      } else {
        Set(rank, kApplied, ack.step(), "");
      }
      break;
    case v1::ACK_STATE_REFUSED: {
      const std::string reason = ack.reason().empty() ? "without a reason" : ClipUtf8(ack.reason(), kMaxReasonBytes);
      rank->set_step(ack.step());
      Fail(rank, kRefused, absl::StrCat("refused: ", reason), now, &out);
      return out;
    }
    case v1::ACK_STATE_ABORTED:
      if (r_->undoing)
        Set(rank, kAborted, ack.step(), "");
      else
        Fail(rank, kAborted, "dropped the plan", now, &out);
      break;
    default:
      unexpected_ = true;
      break;
  }
  Advance(look, now, &out);
  return out;
}

Effects TwoPhase::OnJoined(const RankKey& key, int64_t now) {
  Effects out;
  auto* ranks = r_->plan.mutable_ranks();
  for (int i = 0; i < ranks->size(); ++i) {
    v1::RankState* rank = ranks->Mutable(i);
    if (rank->rank() != key.rank) continue;
    if (r_->incarnations[i] != key.incarnation) {
      if (r_->in_flight() && !Decided(*rank)) Fail(rank, kGone, "came back as a new process", now, &out);
      return out;
    }
    // The same process over a new connection: the link repeats what it took, not what it refused.
    if (r_->finished() || r_->undoing) {
      const bool told = rank->state() == kAborted || rank->state() == kRefused || rank->state() == kApplied;
      if (now < r_->abort_until_unix_nanos && !told) SendTo(i, v1::COMMAND_PHASE_ABORT, &out);
    } else if (r_->plan.state() == v1::PLAN_STATE_PREPARING) {
      if (rank->state() == kWaiting) SendTo(i, v1::COMMAND_PHASE_PREPARE, &out);
    } else if (r_->plan.state() == v1::PLAN_STATE_COMMITTING && rank->state() != kApplied) {
      SendTo(i, v1::COMMAND_PHASE_COMMIT, &out);
    }
    return out;
  }
  if (r_->plan.state() == v1::PLAN_STATE_PREPARING && !r_->partial) {
    Refuse(absl::StrCat("rank ", key.rank, " joined the run while the plan was prepared"), now, &out);
  }
  return out;
}

Effects TwoPhase::OnLeft(const RankKey& key, LeaveReason reason, const std::string& detail, int64_t now) {
  Effects out;
  v1::RankState* rank = r_->in_flight() ? Find(key) : nullptr;
  if (rank == nullptr || Decided(*rank)) return out;
  if (reason == LeaveReason::kDisconnected) return out;  // it may come back before the deadline
  Fail(rank, kGone, absl::StrCat(LeftText(reason), detail.empty() ? "" : ": ", ClipUtf8(detail, kMaxReasonBytes)), now,
       &out);
  return out;
}

Effects TwoPhase::OnUnreachable(const RankKey& key, const std::string& why, int64_t now) {
  Effects out;
  v1::RankState* rank = r_->in_flight() ? Find(key) : nullptr;
  // After COMMIT it may come back before the deadline; before, a rank that cannot be told cannot be prepared.
  if (rank == nullptr || r_->plan.state() != v1::PLAN_STATE_PREPARING) return out;
  Fail(rank, kSilent, absl::StrCat("cannot be reached: ", why), now, &out);
  return out;
}

Effects TwoPhase::OnTick(const RunView& view, int64_t now) {
  Effects out;
  if (!r_->in_flight()) return out;
  const bool late = now >= r_->deadline_unix_nanos;
  if (r_->plan.state() == v1::PLAN_STATE_PREPARING) {
    if (!late) return out;
    std::string silent;
    size_t count = 0;
    for (v1::RankState& rank : *r_->plan.mutable_ranks()) {
      if (rank.state() != kWaiting) continue;
      Set(&rank, kSilent, 0, "no answer by the deadline");
      if (++count <= 8) absl::StrAppend(&silent, silent.empty() ? "" : ", ", rank.rank());
    }
    Refuse(absl::StrCat(count == 1 ? "rank " : "ranks ", silent, count > 8 ? ", …" : "",
                        " did not answer by the deadline"),
           now, &out);
    return out;
  }
  if (!late && !r_->resumed) return out;
  for (int i = 0; i < r_->plan.ranks_size(); ++i) {
    v1::RankState* rank = r_->plan.mutable_ranks(i);
    if (Decided(*rank)) continue;
    const auto seen = view.ranks.find(rank->rank());
    if (seen == view.ranks.end() || seen->second.incarnation != r_->incarnations[i]) continue;
    const RankView& v = seen->second;
    if (!v.modes_step || *v.modes_step < r_->plan.effective_step()) continue;
    bool in_force = !v.modes.empty();
    for (const auto& [layer, before] : r_->modes_before) {
      in_force &= layer < v.modes.size() && v.modes[layer] == r_->plan.mode();
    }
    if (in_force) Set(rank, kApplied, r_->plan.effective_step(), "seen in its telemetry");
  }
  Advance(nullptr, now, &out);
  if (!late || !r_->in_flight()) return out;
  std::string silent;
  for (v1::RankState& rank : *r_->plan.mutable_ranks()) {
    if (Decided(rank)) continue;
    Set(&rank, kSilent, 0, "did not confirm the switch in time");
    if (silent.empty()) silent = absl::StrCat("rank ", rank.rank(), " did not confirm the switch in time");
  }
  if (r_->undoing) {
    FinishUndo(now, &out);
  } else {
    Undo(silent, now, &out);
    Advance(nullptr, now, &out);
  }
  return out;
}

}  // namespace trimtab::server
