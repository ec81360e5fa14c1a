#include "agent/courier/channel.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/courier/limits.h"
#include "agent/courier/rank_info.h"

namespace trimtab::courier {
namespace {

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Refusals that the same Hello may not meet again later.
bool MayPass(int32_t code) {
  switch (static_cast<absl::StatusCode>(code)) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

}  // namespace

Channel::Channel(uint32_t id, v1::Hello hello, std::unique_ptr<SpoolLog> log, const Timings& timings, TimePoint now)
    : id_(id),
      timings_(timings),
      hello_(std::move(hello)),
      queue_(std::move(log)),
      commands_(timings.command_min, timings.command_max),
      opened_at_(now) {
  hello_.set_channel(id);
  last_read_ = queue_.last();
  const SpoolMeta& meta = queue_.log().meta();
  ring_dropped_ = meta.ring_dropped_steps();
  ended_ = meta.ended();
  parked_ = ended_;
}

std::string Channel::Name() const { return absl::StrCat("run \"", rank().run(), "\" rank ", rank().rank()); }

void Channel::AttachRing(std::unique_ptr<agent::RingReader> ring, RingFile file) {
  ring_ = std::move(ring);
  file_ = std::move(file);
  ended_ = false;
  parked_ = false;
  queue_.log().meta().set_ended(false);
  ReadInfo();
}

void Channel::EndWithoutRing() {
  if (!ended_) End(false, "the courier and the ring ended before all was delivered");
  parked_ = true;
}

// --- ring side ---------------------------------------------------------------------------------------------------

void Channel::PollRing(const ChannelLimits& limits, TimePoint now) {
  if (ring_ == nullptr || state_ == State::kDone) return;
  if (state_ == State::kRefused && !may_retry_) {
    CheckEnd(now, true);
    if (ended_) Finish();
    return;
  }
  if (!reading_ && (welcomed_ || limits.server_away > timings_.spill_after || now - opened_at_ > timings_.spill_after)) {
    StartReading();
  }
  if (!reading_ || ended_) {
    if (ended_ && limits.server_away > timings_.park_after && !parked_) Park(now);
    return;
  }
  if (now >= next_info_) {
    next_info_ = now + timings_.info;
    ReadInfo();
  }
  commands_.Poll(ring_.get(), now, UnixNanos());
  ReadSteps(limits, now);
  const bool away = limits.server_away > timings_.spill_after;
  if ((away || RingMayOverwrite()) && queue_.memory_bytes() > 0) TrySpill(now);
}

void Channel::StartReading() {
  reading_ = true;
  last_read_ = queue_.last();
  gap_base_ = last_read_;
  ring_->SeekAfter(last_read_);
}

void Channel::ReadSteps(const ChannelLimits& limits, TimePoint now) {
  for (int i = 0; i < kMaxReadsPerTurn; ++i) {
    if (queue_.memory_bytes() >= limits.memory_bytes && !MakeRoom(limits, now)) break;
    switch (ring_->Next(&scratch_)) {
      case agent::ReadResult::kStep:
        Accept(scratch_);
        break;
      case agent::ReadResult::kSkipped:
        break;  // counted by the gap in sequences
      case agent::ReadResult::kEmpty:
        CheckEnd(now, true);
        return;
      case agent::ReadResult::kCorrupt:
        corrupt_ = ring_->error();
        End(false, absl::StrCat("ring corrupt: ", corrupt_));
        return;
    }
  }
  CheckEnd(now, false);
}

void Channel::Accept(const agent::RingStep& step) {
  if (step.sequence <= last_read_) return;
  const uint64_t gap = step.sequence - last_read_ - 1;
  if (gap > 0 && !welcomed_ && last_read_ == gap_base_) {
    first_after_gap_ = step.sequence;
  } else {
    ring_dropped_ += gap;
  }
  last_read_ = step.sequence;
  std::string bytes;
  const absl::Status encoded = encoder_.Encode(step, &bytes);
  if (encoder_.bad_blocks() > 0 && logged_bad_blocks_ == 0) {
    spdlog::warn("{}: a block was left out: {}", Name(), encoder_.bad_block_reason());
  }
  logged_bad_blocks_ = encoder_.bad_blocks();
  if (!encoded.ok()) {
    ++ring_dropped_;
    spdlog::warn("{}: {}", Name(), std::string(encoded.message()));
    return;
  }
  step_bytes_ = step_bytes_ == 0 ? static_cast<double>(bytes.size()) : 0.9 * step_bytes_ + 0.1 * static_cast<double>(bytes.size());
  queue_.Push(step.sequence, std::move(bytes));
}

// Memory is full. Either the spool takes it, or the rest stays in the ring until the server has caught up.
bool Channel::MakeRoom(const ChannelLimits& limits, TimePoint now) {
  if (limits.server_away <= timings_.spill_after && !RingMayOverwrite()) return false;
  return TrySpill(now);
}

// Steps that are neither acknowledged nor spooled have come to fill half of the ring: the writer will soon overwrite
// them, and what is in memory would be lost with this process.
bool Channel::RingMayOverwrite() const {
  const uint64_t safe = std::max(queue_.acked(), queue_.log().last_sequence());
  const uint64_t newest = ring_->last_sequence();
  return newest > safe && static_cast<double>(newest - safe) * step_bytes_ > static_cast<double>(file_.bytes) / 2;
}

bool Channel::TrySpill(TimePoint now) {
  if (spool_failing_ && now < next_spill_) return false;
  queue_.log().meta().set_ring_dropped_steps(ring_dropped_);
  const absl::Status status = queue_.Spill();
  if (!status.ok()) {
    if (!spool_failing_) spdlog::error("{}: spool: {}; steps stay in the ring while it holds them", Name(), std::string(status.message()));
    next_spill_ = now + std::chrono::seconds(1);
  } else if (spool_failing_) {
    spdlog::info("{}: the spool takes steps again", Name());
  }
  spool_failing_ = !status.ok();
  return status.ok();
}

bool Channel::SpillAll() { return queue_.OnDisk() || (queue_.Spill().ok() && queue_.log().Seal().ok()); }

void Channel::ReadInfo() {
  std::string json;
  if (!ring_->ReadInfo(&json)) return;
  absl::StatusOr<v1::RankInfo> info = RankInfoFromJson(hello_.rank(), json);
  if (!info.ok()) {
    if (!info_failing_) spdlog::warn("{}: {}; the info before it stays", Name(), std::string(info.status().message()));
    info_failing_ = true;
    return;
  }
  info_failing_ = false;
  *hello_.mutable_rank() = *std::move(info);
  update_due_ = true;
  *queue_.log().meta().mutable_hello() = hello_;
  queue_.log().SaveMeta().IgnoreError();  // the meta of before will do
}

void Channel::CheckEnd(TimePoint now, bool drained) {
  // Only a turn that began with the writer gone and found the ring empty has seen its last step.
  if (writer_gone_ && drained) {
    if (state_ != State::kRefused) ReadInfo();
    const bool clean = ring_->closed();
    const uint64_t newest = ring_->last_sequence();
    if (newest > last_read_ && welcomed_) ring_dropped_ += newest - last_read_;
    End(clean, clean ? "the trainer closed its ring"
                     : absl::StrCat("process ", rank().pid(), " ended without closing its ring"));
    return;
  }
  if (ring_->closed()) {
    writer_gone_ = true;
  } else if (now >= next_liveness_) {
    next_liveness_ = now + timings_.liveness;
    writer_gone_ = !ring_->writer_alive();
  }
}

void Channel::End(bool clean, std::string reason) {
  ended_ = true;
  SpoolMeta& meta = queue_.log().meta();
  meta.set_clean(clean);
  meta.set_end_reason(std::move(reason));
}

// Moves an ended ring wholly into the spool, so that its memory can be given back while the server is away.
void Channel::Park(TimePoint now) {
  if (!TrySpill(now)) return;
  queue_.log().meta().set_ended(true);
  if (absl::Status status = queue_.log().Seal(); !status.ok()) {
    queue_.log().meta().set_ended(false);
    return;
  }
  parked_ = true;
  if (corrupt_.empty()) RemoveRing(file_);
  ring_.reset();
  spdlog::info("{}: ended; what the server has not taken is in {}", Name(), queue_.log().folder());
}

// --- server side -------------------------------------------------------------------------------------------------

void Channel::OnStreamOpened(Outbox* outbox) {
  if (state_ == State::kDone || state_ == State::kRefused) return;
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

void Channel::OnDurable(const v1::DurableAck& ack) {
  if (state_ == State::kOpen || state_ == State::kDeparting) queue_.Ack(ack.sequence());
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
  may_retry_ = MayPass(refusal.code());
  spdlog::error("{}: the server refused: {}{}", Name(), refusal.message(), may_retry_ ? "; asking again later" : "");
  state_ = State::kRefused;
  retry_at_ = now + timings_.refused_retry;
  if (!may_retry_) {
    queue_.Resume(queue_.last());  // nobody will take these
    queue_.log().Remove();
    if (ring_ == nullptr) Finish();
  }
}

void Channel::Pump(Outbox* outbox, TimePoint now) {
  if (state_ == State::kNew || (state_ == State::kRefused && may_retry_ && now >= retry_at_)) {
    state_ = State::kNew;
    OnStreamOpened(outbox);
  } else if (state_ == State::kOpen) {
    SendUpdate(outbox, now);
    if (ring_ != nullptr) SendAcks(outbox);
    SendBatches(outbox);
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
