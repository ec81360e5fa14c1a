#include "server/ingest/channel_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/ingest/session.h"
#include "server/model/run_name.h"

namespace trimtab::server {
namespace {

bool Answers(v1::AckState state, v1::CommandPhase phase) {
  switch (state) {
    case v1::ACK_STATE_PREPARED:
      return phase == v1::COMMAND_PHASE_PREPARE;
    case v1::ACK_STATE_COMMITTED:
    case v1::ACK_STATE_APPLIED:
      return phase == v1::COMMAND_PHASE_PREPARE || phase == v1::COMMAND_PHASE_COMMIT;
    case v1::ACK_STATE_REFUSED:
      return true;
    case v1::ACK_STATE_ABORTED:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<std::string> ChannelTable::Claim(const std::shared_ptr<Channel>& channel,
                                               std::unique_ptr<v1::AgentMessage> hello) {
  WriteItem item{.kind = WriteItem::Kind::kHello, .channel = channel, .bytes = hello->ByteSizeLong()};
  const v1::RankInfo& info = hello->hello().rank();
  absl::MutexLock lock(&mutex_);
  Holder& holder = holders_[{info.run(), info.rank()}];
  if (holder.channel != nullptr && holder.incarnation != info.incarnation()) {
    const Session& session = *holder.channel->session;
    if (session.alive(alive_window_)) {
      return absl::StrCat("incarnation ", holder.incarnation, " through ", session.peer());
    }
    item.replaced = holder.channel;
  }
  holder = {info.incarnation(), channel};
  item.message = std::move(hello);
  queue_->Push(std::move(item));
  return std::nullopt;
}

void ChannelTable::Release(const std::shared_ptr<Channel>& channel, LeaveReason reason, const std::string& detail) {
  absl::MutexLock lock(&mutex_);
  const auto found = holders_.find({channel->rank.run, channel->rank.rank});
  if (found == holders_.end() || found->second.channel != channel) return;
  holders_.erase(found);
  if (reason != LeaveReason::kDisconnected) pending_.erase(channel->rank);  // this life will not come back
  queue_->Push({.kind = WriteItem::Kind::kLeft, .channel = channel, .reason = reason, .detail = detail});
}

absl::Status ChannelTable::Send(const RankKey& rank, const v1::Command& command) {
  absl::MutexLock lock(&mutex_);
  const auto found = holders_.find({rank.run, rank.rank});
  if (found == holders_.end() || found->second.incarnation != rank.incarnation) {
    return absl::UnavailableError(
        absl::StrCat("rank ", rank.rank, " of run ", QuoteName(rank.run), " has no open channel"));
  }
  auto& pending = pending_[rank];
  // A later phase of a plan replaces the earlier ones.
  std::erase_if(pending, [&](const v1::Command& known) { return known.plan() == command.plan(); });
  if (pending.size() >= kMaxPendingCommandsPerRank) {
    return absl::ResourceExhaustedError(absl::StrCat("rank ", rank.rank, " of run ", QuoteName(rank.run), " has ",
                                                     pending.size(), " unanswered commands"));
  }
  pending.push_back(command);
  pending.back().set_channel(0);  // not sent yet
  if (found->second.channel->welcomed) Deliver(*found->second.channel, &pending.back());
  return absl::OkStatus();  // without a Welcome yet it goes out right after it
}

void ChannelTable::Welcomed(const std::shared_ptr<Channel>& channel) {
  const int64_t now = absl::GetCurrentTimeNanos();
  absl::MutexLock lock(&mutex_);
  channel->welcomed = true;
  const auto found = pending_.find(channel->rank);
  if (found == pending_.end()) return;
  for (v1::Command& command : found->second) {
    if (command.deadline_unix_nanos() != 0 && command.deadline_unix_nanos() < now) continue;
    Deliver(*channel, &command);
  }
}

void ChannelTable::Deliver(const Channel& channel, v1::Command* command) {
  ++(command->channel() == 0 ? counters_->commands_sent : counters_->commands_redelivered);
  command->set_channel(channel.id);
  v1::ServerMessage message;
  *message.mutable_command() = *command;
  channel.session->Reply(std::move(message));
}

void ChannelTable::Answered(const RankKey& rank, const v1::CommandAck& ack) {
  absl::MutexLock lock(&mutex_);
  const auto found = pending_.find(rank);
  if (found == pending_.end()) return;
  std::erase_if(found->second, [&](const v1::Command& command) {
    return command.plan() == ack.plan() && Answers(ack.state(), command.phase());
  });
  if (found->second.empty()) pending_.erase(found);
}

void ChannelTable::Expire(int64_t now_unix_nanos) {
  absl::MutexLock lock(&mutex_);
  for (auto at = pending_.begin(); at != pending_.end();) {
    counters_->commands_expired += std::erase_if(at->second, [&](const v1::Command& command) {
      return command.deadline_unix_nanos() != 0 && command.deadline_unix_nanos() < now_unix_nanos;
    });
    at = at->second.empty() ? pending_.erase(at) : std::next(at);
  }
}

size_t ChannelTable::channels() const {
  absl::ReaderMutexLock lock(&mutex_);
  return holders_.size();
}

}  // namespace trimtab::server
