// One courier's stream: a gRPC callback reactor, since a server holds thousands of streams and must not hold a thread
// for each. Reads one message at a time, checks it, hands it to the writer's queue, and stops reading while that queue
// is full. Answers leave through a queue of their own with one write in flight.
#ifndef TRIMTAB_SERVER_INGEST_SESSION_H_
#define TRIMTAB_SERVER_INGEST_SESSION_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/ingest/channel_table.h"
#include "server/ingest/counters.h"
#include "server/ingest/write_queue.h"
#include "trimtab/v1/telemetry.grpc.pb.h"

namespace trimtab::server {

// Answers that wait for a courier to read them; above this the stream is closed. Durable acks are merged by channel
// and do not count.
inline constexpr size_t kMaxWaitingReplies = 1024;

class Session final : public grpc::ServerBidiReactor<v1::AgentMessage, v1::ServerMessage>,
                      public std::enable_shared_from_this<Session> {
 public:
  struct Shared {
    WriteQueue* queue;
    ChannelTable* table;
    IngestCounters* counters;
    std::function<void(const std::shared_ptr<Session>&)> done;  // called once, from OnDone
  };

  Session(Shared shared, std::string peer) : shared_(std::move(shared)), peer_(std::move(peer)) {}
  // Starts reading. The session keeps itself alive until gRPC is done with it.
  void Start();

  // Thread-safe, never block, do nothing once the stream is closing.
  void Reply(v1::ServerMessage message);
  void AckDurable(uint32_t channel, uint64_t sequence);
  void ResumeReading();
  // Counts and sends a Refusal for `channel`, queues an event about it (of `run`, if it is known), and ends the stream
  // after it when `fatal`.
  void Refuse(uint32_t channel, const Rejection& rejection, bool fatal, const std::string& run = "");
  // Writes what waits, then ends the stream with `status`.
  void FinishAfterFlush(const grpc::Status& status);
  // Reads no further; the stream ends once the writer has answered what was read.
  void BeginShutdown();

  bool alive(absl::Duration window) const;
  const std::string& peer() const { return peer_; }
  // The status with which the stream ends after the writer answered everything.
  grpc::Status end_status() const;
  bool server_stopped() const { return stopping_; }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { dead_ = true; }
  void OnDone() override;

 private:
  void Handle(std::unique_ptr<v1::AgentMessage> message);
  void HandleHello(std::unique_ptr<v1::AgentMessage> message, size_t bytes);
  void HandleSteps(std::unique_ptr<v1::AgentMessage> message, size_t bytes);
  void HandleUpdate(std::unique_ptr<v1::AgentMessage> message, size_t bytes);
  // The open channel, or nullptr after counting, and answering, a message for one that is not open.
  std::shared_ptr<Channel> FindChannel(uint32_t id);
  // Refuses and closes an open channel.
  void CloseChannel(std::shared_ptr<Channel> channel, const Rejection& rejection);
  void Push(WriteItem::Kind kind, const std::shared_ptr<Channel>& channel, std::unique_ptr<v1::AgentMessage> message,
            size_t bytes);
  void ReadNext();
  void EndOfStream();
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Shared shared_;
  const std::string peer_;
  std::shared_ptr<Session> self_;  // until OnDone

  // Reader side: one reaction at a time.
  v1::AgentMessage incoming_;
  std::map<uint32_t, std::shared_ptr<Channel>> channels_;  // nullptr: was open once
  uint64_t spool_dropped_steps_ = 0;
  std::atomic<int64_t> last_activity_nanos_{0};
  std::atomic<bool> dead_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> ended_{false};  // EndOfStream ran

  mutable absl::Mutex mutex_;
  std::deque<v1::ServerMessage> waiting_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, uint64_t> durable_ ABSL_GUARDED_BY(mutex_);  // channel → sequence to acknowledge
  v1::ServerMessage outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status final_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_INGEST_SESSION_H_
