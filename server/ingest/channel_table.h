// Which channel speaks for each rank, and the commands that still wait for its answer.
//
// Claims, releases and the queue items that announce them happen under one lock, so the writer sees joins and leaves
// in the order in which they took effect. Thread-safe.
#ifndef TRIMTAB_SERVER_INGEST_CHANNEL_TABLE_H_
#define TRIMTAB_SERVER_INGEST_CHANNEL_TABLE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/ingest/channel.h"
#include "server/ingest/counters.h"
#include "server/ingest/write_queue.h"

namespace trimtab::server {

inline constexpr size_t kMaxPendingCommandsPerRank = 16;

class ChannelTable {
 public:
  // A rank whose stream was silent for `alive_window` may be taken over by another incarnation.
  ChannelTable(WriteQueue* queue, IngestCounters* counters, absl::Duration alive_window)
      : queue_(queue), counters_(counters), alive_window_(alive_window) {}

  // Makes `channel` the one of its rank and queues its Hello. Returns who holds the rank when another incarnation
  // does, whose stream is alive; nothing is queued then. The same incarnation is always taken over: it reconnected.
  std::optional<std::string> Claim(const std::shared_ptr<Channel>& channel, std::unique_ptr<v1::AgentMessage> hello);

  // Gives up the channel's claim, if it has one, and queues the leave.
  void Release(const std::shared_ptr<Channel>& channel, LeaveReason reason, const std::string& detail);

  // See CommandLink::Send.
  absl::Status Send(const RankKey& rank, const v1::Command& command);
  // The channel got its Welcome: sends it the commands that still wait for an answer.
  void Welcomed(const std::shared_ptr<Channel>& channel);
  // Forgets the command that this answers.
  void Answered(const RankKey& rank, const v1::CommandAck& ack);
  // Drops commands past their deadline.
  void Expire(int64_t now_unix_nanos);

  size_t channels() const;

 private:
  struct Holder {
    uint64_t incarnation = 0;
    std::shared_ptr<Channel> channel;
  };

  // Sends under the lock, so that a later phase of a plan never overtakes an earlier one.
  void Deliver(const Channel& channel, v1::Command* command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  WriteQueue* const queue_;
  IngestCounters* const counters_;
  const absl::Duration alive_window_;
  mutable absl::Mutex mutex_;
  std::map<std::pair<std::string, uint32_t>, Holder> holders_ ABSL_GUARDED_BY(mutex_);
  std::map<RankKey, std::vector<v1::Command>> pending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_INGEST_CHANNEL_TABLE_H_
