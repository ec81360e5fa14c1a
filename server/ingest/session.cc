#include "server/ingest/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/model/limits.h"
#include "server/model/run_name.h"

namespace trimtab::server {

void Session::Start() {
  self_ = shared_from_this();
  ++shared_.counters->streams;
  last_activity_nanos_ = absl::GetCurrentTimeNanos();
  StartRead(&incoming_);
}

bool Session::alive(absl::Duration window) const {
  const int64_t idle = absl::GetCurrentTimeNanos() - last_activity_nanos_;
  return !dead_ && !ended_ && idle < absl::ToInt64Nanoseconds(window);
}

// --- reading ---------------------------------------------------------------------------------------------------

void Session::OnReadDone(bool ok) {
  if (!ok || stopping_) return EndOfStream();
  last_activity_nanos_ = absl::GetCurrentTimeNanos();
  auto message = std::make_unique<v1::AgentMessage>();
  message->Swap(&incoming_);
  Handle(std::move(message));
  ReadNext();
}

void Session::ReadNext() {
  if (shared_.queue->full() && shared_.queue->Pause(shared_from_this())) {
    ++shared_.counters->pauses;
    return;
  }
  ResumeReading();
}

void Session::ResumeReading() {
  if (stopping_) return EndOfStream();
  absl::MutexLock lock(&mutex_);
  if (!finished_) StartRead(&incoming_);
}

void Session::EndOfStream() {
  if (ended_.exchange(true)) return;
  for (auto& [id, channel] : channels_) {
    if (channel != nullptr) shared_.table->Release(channel, LeaveReason::kDisconnected, "the courier's stream ended");
  }
  channels_.clear();
  shared_.queue->Push({.kind = WriteItem::Kind::kStreamEnd, .session = shared_from_this()});
}

void Session::Handle(std::unique_ptr<v1::AgentMessage> message) {
  const size_t bytes = message->ByteSizeLong();
  ++shared_.counters->messages;
  shared_.counters->bytes += bytes;
  switch (message->body_case()) {
    case v1::AgentMessage::kHello:
      return HandleHello(std::move(message), bytes);
    case v1::AgentMessage::kSteps:
      return HandleSteps(std::move(message), bytes);
    case v1::AgentMessage::kUpdate:
      return HandleUpdate(std::move(message), bytes);
    case v1::AgentMessage::kAck: {
      const auto channel = FindChannel(message->ack().channel());
      if (channel == nullptr) return;
      shared_.table->Answered(channel->rank, message->ack());
      return Push(WriteItem::Kind::kAck, channel, std::move(message), bytes);
    }
    case v1::AgentMessage::kGoodbye: {
      const v1::Goodbye& goodbye = message->goodbye();
      const auto channel = FindChannel(goodbye.channel());
      if (channel == nullptr) return;
      channels_[channel->id] = nullptr;
      return shared_.table->Release(channel, goodbye.clean() ? LeaveReason::kFinished : LeaveReason::kDied,
                                    goodbye.reason());
    }
    case v1::AgentMessage::kHeartbeat: {
      const uint64_t dropped = message->heartbeat().spool_dropped_steps();
      if (dropped > spool_dropped_steps_) shared_.counters->spool_dropped_steps += dropped - spool_dropped_steps_;
      spool_dropped_steps_ = std::max(spool_dropped_steps_, dropped);
      return;
    }
    case v1::AgentMessage::BODY_NOT_SET:
      break;
  }
  Refuse(0,
         {RefusalReason::kBadMessage, absl::StatusCode::kInvalidArgument,
          "a message without a known body; install matching versions of trimtab and trimtabd"},
         /*fatal=*/true);
}

void Session::HandleHello(std::unique_ptr<v1::AgentMessage> message, size_t bytes) {
  const v1::Hello& hello = message->hello();
  const uint32_t id = hello.channel();
  const auto known = channels_.find(id);
  if (known != channels_.end() && known->second != nullptr && !known->second->refused) {
    return CloseChannel(known->second, {RefusalReason::kBadMessage, absl::StatusCode::kInvalidArgument,
                                        absl::StrCat("channel ", id, " is open already; number channels uniquely")});
  }
  if (known == channels_.end() && channels_.size() >= kMaxChannelsPerStream) {
    return Refuse(id,
                  {RefusalReason::kTooManyChannels, absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the stream has used ", channels_.size(), " channels, the limit is ",
                                kMaxChannelsPerStream, "; use ids of closed channels again or another stream")},
                  /*fatal=*/false);
  }
  channels_[id] = nullptr;
  if (bytes > kMaxMessageBytes) {
    return Refuse(id,
                  {RefusalReason::kMessageTooLarge, absl::StatusCode::kInvalidArgument,
                   absl::StrCat("Hello of ", bytes, " bytes, the limit is ", kMaxMessageBytes)},
                  /*fatal=*/false);
  }
  if (const auto bad = ValidateHello(hello)) return Refuse(id, *bad, /*fatal=*/false);
  const auto channel = std::make_shared<Channel>(shared_from_this(), hello);
  if (const auto holder = shared_.table->Claim(channel, std::move(message))) {
    const std::string text =
        absl::StrCat("rank ", channel->rank.rank, " of run ", QuoteName(channel->rank.run),
                     " is already reporting: ", *holder, "; this is incarnation ", channel->rank.incarnation,
                     " through ", peer_, ". Give the second job another run name or rank");
    Refuse(id, {RefusalReason::kDuplicateRank, absl::StatusCode::kAlreadyExists, text}, /*fatal=*/false);
    WriteItem item{.kind = WriteItem::Kind::kEvent};
    item.event.set_run(channel->rank.run);
    item.event.set_kind("rank_duplicate");
    item.event.set_severity(v1::SEVERITY_WARNING);
    item.event.set_message(text);
    return shared_.queue->Push(std::move(item));
  }
  channels_[id] = channel;
}

void Session::HandleSteps(std::unique_ptr<v1::AgentMessage> message, size_t bytes) {
  const v1::StepBatch& batch = message->steps();
  const auto channel = FindChannel(batch.channel());
  if (channel == nullptr) return;
  if (bytes > kMaxMessageBytes) {
    return CloseChannel(channel, {RefusalReason::kMessageTooLarge, absl::StatusCode::kInvalidArgument,
                                  absl::StrCat("StepBatch of ", bytes, " bytes, the limit is ", kMaxMessageBytes,
                                               "; send fewer steps a message")});
  }
  if (const auto bad = ValidateSteps(batch, channel->metrics)) return CloseChannel(channel, *bad);
  if (batch.ring_dropped_steps() > channel->ring_dropped_steps) {
    shared_.counters->ring_dropped_steps += batch.ring_dropped_steps() - channel->ring_dropped_steps;
    channel->ring_dropped_steps = batch.ring_dropped_steps();
  }
  Push(WriteItem::Kind::kSteps, channel, std::move(message), bytes);
}

void Session::HandleUpdate(std::unique_ptr<v1::AgentMessage> message, size_t bytes) {
  const auto channel = FindChannel(message->update().channel());
  if (channel == nullptr) return;
  if (const auto bad = ValidateRankInfo(message->update().rank())) return CloseChannel(channel, *bad);
  Push(WriteItem::Kind::kUpdate, channel, std::move(message), bytes);
}

std::shared_ptr<Channel> Session::FindChannel(uint32_t id) {
  const auto found = channels_.find(id);
  if (found != channels_.end()) {
    if (found->second != nullptr && !found->second->refused) return found->second;
    ++shared_.counters->orphan_messages;
    return nullptr;
  }
  Refuse(id,
         {RefusalReason::kBadMessage, absl::StatusCode::kFailedPrecondition,
          absl::StrCat("channel ", id, " has no Hello; send one first")},
         /*fatal=*/false);
  return nullptr;
}

void Session::CloseChannel(std::shared_ptr<Channel> channel, const Rejection& rejection) {
  channels_[channel->id] = nullptr;
  shared_.table->Release(channel, LeaveReason::kDisconnected, rejection.message);
  Refuse(channel->id, rejection, /*fatal=*/false, channel->rank.run);
}

void Session::Push(WriteItem::Kind kind, const std::shared_ptr<Channel>& channel,
                   std::unique_ptr<v1::AgentMessage> message, size_t bytes) {
  shared_.queue->Push({.kind = kind, .channel = channel, .message = std::move(message), .bytes = bytes});
}

// --- writing ---------------------------------------------------------------------------------------------------

void Session::Refuse(uint32_t channel, const Rejection& rejection, bool fatal, const std::string& run) {
  shared_.counters->Refused(rejection.reason);
  v1::ServerMessage message;
  v1::Refusal& refusal = *message.mutable_refusal();
  refusal.set_channel(channel);
  refusal.set_code(static_cast<int>(rejection.code));
  refusal.set_message(rejection.message);
  refusal.set_fatal(fatal);
  Reply(std::move(message));
  WriteItem item{.kind = WriteItem::Kind::kEvent};
  item.event.set_kind("refused");
  item.event.set_run(run);
  item.event.set_severity(v1::SEVERITY_WARNING);
  item.event.set_detector(std::string(RefusalReasonName(rejection.reason)));
  item.event.set_message(rejection.message);
  item.event.set_actor(peer_);
  item.bytes = item.event.ByteSizeLong();
  if (rejection.reason != RefusalReason::kDuplicateRank) shared_.queue->Push(std::move(item));
  if (fatal) FinishAfterFlush(grpc::Status(static_cast<grpc::StatusCode>(rejection.code), rejection.message));
}

void Session::Reply(v1::ServerMessage message) {
  absl::MutexLock lock(&mutex_);
  if (closing_ || dead_) return;
  if (waiting_.size() >= kMaxWaitingReplies) {
    shared_.counters->Refused(RefusalReason::kOverload);
    waiting_.clear();
    closing_ = true;
    final_status_ = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                 absl::StrCat("the courier left ", kMaxWaitingReplies, " answers unread; reconnect"));
    if (!writing_) WriteNext();
    return;
  }
  waiting_.push_back(std::move(message));
  if (!writing_) WriteNext();
}

void Session::AckDurable(uint32_t channel, uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  if (closing_ || dead_) return;
  uint64_t& known = durable_[channel];
  known = std::max(known, sequence);
  if (!writing_) WriteNext();
}

void Session::WriteNext() {
  if (finished_) return;
  if (!waiting_.empty()) {
    outgoing_ = std::move(waiting_.front());
    waiting_.pop_front();
  } else if (!durable_.empty()) {
    outgoing_.Clear();
    outgoing_.mutable_durable()->set_channel(durable_.begin()->first);
    outgoing_.mutable_durable()->set_sequence(durable_.begin()->second);
    durable_.erase(durable_.begin());
  } else {
    if (closing_) {
      finished_ = true;
      Finish(final_status_);
    }
    return;
  }
  writing_ = true;
  StartWrite(&outgoing_);
}

void Session::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  if (!ok) {  // the peer is gone; the reader will see it too
    dead_ = true;
    waiting_.clear();
    durable_.clear();
  }
  WriteNext();
}

void Session::FinishAfterFlush(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (closing_) return;
  closing_ = true;
  final_status_ = status;
  if (!writing_) WriteNext();
}

void Session::BeginShutdown() {
  stopping_ = true;
  shared_.queue->Push({.kind = WriteItem::Kind::kStreamEnd, .session = shared_from_this()});
}

grpc::Status Session::end_status() const {
  if (!stopping_) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down; connect again");
}

void Session::OnDone() {
  dead_ = true;
  EndOfStream();
  --shared_.counters->streams;
  const std::shared_ptr<Session> self = std::move(self_);
  shared_.done(self);
}

}  // namespace trimtab::server
