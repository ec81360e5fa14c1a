// The half of a channel that faces the server.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "agent/courier/channel.h"
#include "agent/courier/limits.h"

namespace trimtab::courier {
namespace {

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Refusals that the same Hello may not meet again later. ALREADY_EXISTS: another process reports as this rank; it may
// be the life before this one, of which the server does not know yet that it is over.
bool MayPass(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted ||
         code == absl::StatusCode::kAborted || code == absl::StatusCode::kDeadlineExceeded ||
         code == absl::StatusCode::kAlreadyExists;
}

}  // namespace

void Channel::SendHello(Outbox* outbox) {
  v1::AgentMessage message;
  *message.mutable_hello() = hello_;
  outbox->Send(std::move(message));
  state_ = State::kGreeted;
  update_due_ = false;
}

void Channel::OnStreamClosed(bool orderly) {
  if (state_ == State::kDeparting && orderly) {
    Finish();
  } else if (state_ != State::kDone && state_ != State::kRefused) {
    state_ = State::kNew;
  }
}

void Channel::OnWelcome(const v1::Welcome& welcome, TimePoint now) {
  if (state_ != State::kGreeted) return;
  state_ = State::kOpen;
  other_life_ = false;
  last_refusal_.clear();
  retry_after_ = timings_.refused_retry;
  last_progress_ = now;
  last_update_ = now;
  ack_index_ = 0;  // answers are given again: the server may have lost them with the stream before
  const uint64_t durable = welcome.last_durable_sequence();
  if (first_after_gap_ > 0) {
    const uint64_t known = std::max(gap_base_, durable);
    if (first_after_gap_ > known + 1) ring_dropped_ += first_after_gap_ - known - 1;
    first_after_gap_ = 0;
  }
  welcomed_ = true;
  queue_.Resume(durable);
  if (ring_ != nullptr && reading_ && durable > last_read_) {
    last_read_ = durable;
    ring_->SeekAfter(durable);
  }
  spdlog::debug("{}: welcome, durable up to {}", Name(), durable);
}

void Channel::OnDurable(const v1::DurableAck& ack, TimePoint now) {
  if (state_ != State::kOpen && state_ != State::kDeparting) return;
  const uint64_t before = queue_.acked();
  queue_.Ack(ack.sequence());
  if (queue_.acked() > before) last_progress_ = now;
}

bool Channel::Answered(const v1::Command& command) const {
  for (const agent::RingAck& ack : ring_->ReadAcks(0)) {
    if (ack.plan != command.plan()) continue;
    switch (command.phase()) {
      case v1::COMMAND_PHASE_PREPARE:
        return true;
      case v1::COMMAND_PHASE_COMMIT:
        if (ack.state != TRIMTAB_ACK_PREPARED) return true;
        break;
      default:
        if (ack.state == TRIMTAB_ACK_ABORTED) return true;
    }
  }
  return false;
}

void Channel::OnCommand(const v1::Command& command, Outbox* outbox, TimePoint now) {
  absl::Status status;
  if (ring_ == nullptr || ended_) {
    status = absl::UnavailableError("the process has ended");
  } else if (Answered(command)) {
    ack_index_ = 0;  // a repetition: give the answers again
    return;
  } else if (absl::StatusOr<trimtab_command> parsed = CommandFromProto(command); parsed.ok()) {
    status = commands_.Give(*parsed, ring_.get(), now, UnixNanos());
  } else {
    status = parsed.status();
  }
  if (status.ok()) return;
  v1::AgentMessage message;
  v1::CommandAck* ack = message.mutable_ack();
  ack->set_channel(id_);
  ack->set_plan(command.plan());
  ack->set_state(v1::ACK_STATE_REFUSED);
  ack->set_reason(std::string(status.message()));
  outbox->Send(std::move(message));
}

void Channel::OnRefusal(const v1::Refusal& refusal, TimePoint now) {
  const auto code = static_cast<absl::StatusCode>(refusal.code());
  may_retry_ = MayPass(code);
  other_life_ = code == absl::StatusCode::kAlreadyExists;
  if (refusal.message() != last_refusal_) {
    last_refusal_ = refusal.message();
    spdlog::error("{}: the server refused: {}{}", Name(), last_refusal_, may_retry_ ? "; asking again later" : "");
  }
  state_ = State::kRefused;
  retry_at_ = now + retry_after_;
  retry_after_ = std::min(retry_after_ * 2, timings_.refused_retry_max);
  if (may_retry_) return;
  queue_.Resume(queue_.last());  // nobody will take these
  queue_.log().Remove();
  if (ring_ == nullptr) Finish();
}

void Channel::Pump(Outbox* outbox, TimePoint now) {
  if (wants_hello(now)) {
    SendHello(outbox);
  } else if (state_ == State::kOpen) {
    SendUpdate(outbox, now);
    if (ring_ != nullptr) SendAcks(outbox);
    SendBatches(outbox);
    if (quiet()) last_progress_ = now;
    if (ended_ && queue_.Delivered()) {
      v1::AgentMessage message;
      v1::Goodbye* goodbye = message.mutable_goodbye();
      goodbye->set_channel(id_);
      goodbye->set_clean(queue_.log().meta().clean());
      goodbye->set_reason(queue_.log().meta().end_reason());
      outbox->Send(std::move(message));
      state_ = State::kDeparting;
      departed_at_ = now;
    }
  } else if (state_ == State::kDeparting && now - departed_at_ > timings_.depart_linger) {
    Finish();
  }
}

void Channel::SendUpdate(Outbox* outbox, TimePoint now) {
  if (!update_due_ || (!ended_ && now - last_update_ < timings_.update_min)) return;
  update_due_ = false;
  last_update_ = now;
  v1::AgentMessage message;
  message.mutable_update()->set_channel(id_);
  *message.mutable_update()->mutable_rank() = hello_.rank();
  outbox->Send(std::move(message));
}

void Channel::SendAcks(Outbox* outbox) {
  for (const agent::RingAck& answer : ring_->ReadAcks(ack_index_)) {
    ack_index_ = answer.index;
    v1::AgentMessage message;
    v1::CommandAck* ack = message.mutable_ack();
    ack->set_channel(id_);
    ack->set_plan(answer.plan);
    ack->set_state(static_cast<v1::AckState>(answer.state));
    ack->set_step(answer.step);
    ack->set_reason(answer.reason);
    outbox->Send(std::move(message));
  }
}

void Channel::SendBatches(Outbox* outbox) {
  for (int i = 0; i < kMaxBatchesPerTurn && outbox->CanSend(); ++i) {
    v1::AgentMessage message;
    v1::StepBatch* batch = message.mutable_steps();
    if (!queue_.FillBatch(batch)) return;
    batch->set_channel(id_);
    batch->set_ring_dropped_steps(ring_dropped_);
    outbox->Send(std::move(message));
  }
}

// All is delivered, or refused for good: nothing of this channel stays on this machine.
void Channel::Finish() {
  state_ = State::kDone;
  queue_.log().Remove();
  if (ring_ != nullptr && corrupt_.empty()) RemoveRing(file_);
  ring_.reset();
}

}  // namespace trimtab::courier
