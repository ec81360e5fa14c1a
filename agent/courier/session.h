// One life of the bidirectional stream to the server. Roles, so that the loop does not know gRPC.
#ifndef TRIMTAB_AGENT_COURIER_SESSION_H_
#define TRIMTAB_AGENT_COURIER_SESSION_H_

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::courier {

// Where channels put what they have to say.
class Outbox {
 public:
  virtual ~Outbox() = default;
  // False while kMaxOutboxBytes wait for the transport. Batches must respect it; small messages may pass.
  virtual bool CanSend() const = 0;
  // Queues; never blocks. Silently dropped once the stream has ended (its kClosed event says so).
  virtual void Send(v1::AgentMessage message) = 0;
};

struct SessionEvent {
  bool closed = false;
  v1::ServerMessage message;  // unless closed
  absl::Status status;        // when closed: how the stream ended
};

// Used by one thread. Destruction cancels the stream if it has not ended.
class Session : public Outbox {
 public:
  // Waits until something arrived, at most `timeout`, and moves all of it to `events` in order. The last event of a
  // session has closed = true.
  virtual void Wait(std::chrono::milliseconds timeout, std::vector<SessionEvent>* events) = 0;
  // Ends our side after what was queued is written; the server then ends the stream with its status.
  virtual void HalfClose() = 0;
  // Everything queued so far was handed to the transport.
  virtual bool Flushed() const = 0;
};

using SessionFactory = std::function<std::unique_ptr<Session>()>;

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_SESSION_H_
