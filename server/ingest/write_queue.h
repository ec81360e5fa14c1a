// The bounded queue between the streams' readers and the one writer.
//
// Push never refuses: a stream may finish the message that it holds. Back-pressure comes from full(): a reader that
// sees it does not ask for its next message. So the queue holds at most its limit and one message a stream.
#ifndef TRIMTAB_SERVER_INGEST_WRITE_QUEUE_H_
#define TRIMTAB_SERVER_INGEST_WRITE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/ingest/channel.h"
#include "server/model/roles.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::server {

struct WriteItem {
  enum class Kind { kHello, kSteps, kAck, kUpdate, kLeft, kStreamEnd, kEvent };
  Kind kind = Kind::kEvent;
  std::shared_ptr<Channel> channel;
  std::shared_ptr<Channel> replaced;          // kHello: the dead channel of another incarnation it took over from
  std::shared_ptr<Session> session;           // kStreamEnd
  std::unique_ptr<v1::AgentMessage> message;  // kHello, kSteps, kAck, kUpdate
  LeaveReason reason = LeaveReason::kDisconnected;
  std::string detail;  // kLeft
  v1::Event event;
  size_t bytes = 0;
};

class WriteQueue {
 public:
  explicit WriteQueue(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  void Push(WriteItem item);
  bool full() const;
  // Moves items of at most about `max_bytes` (at least one) to *items; they count as held until Release. Waits up to
  // `timeout` for the first. False when closed and empty.
  bool Pop(size_t max_bytes, absl::Duration timeout, std::vector<WriteItem>* items);
  void Release(const std::vector<WriteItem>& items);
  // Pop returns what is left and then false.
  void Close();

  // Sessions that stopped reading. TakePaused returns them once the queue is below half of its limit.
  // Returns false, and does not remember the session, when the queue is not full any more.
  bool Pause(const std::shared_ptr<Session>& session);
  std::vector<std::shared_ptr<Session>> TakePaused();

  size_t bytes() const;
  size_t messages() const;

 private:
  const size_t limit_bytes_;
  mutable absl::Mutex mutex_;
  std::deque<WriteItem> items_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Session>> paused_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_INGEST_WRITE_QUEUE_H_
