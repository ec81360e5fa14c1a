// Keeps one stream to the server: opens it, notices its end, waits, opens the next. Logs once per change of state.
#ifndef TRIMTAB_AGENT_COURIER_LINK_H_
#define TRIMTAB_AGENT_COURIER_LINK_H_

#include <memory>
#include <string>
#include <vector>

#include "agent/courier/backoff.h"
#include "agent/courier/options.h"
#include "agent/courier/session.h"

namespace trimtab::courier {

class LinkListener {
 public:
  virtual ~LinkListener() = default;
  virtual void OnStreamOpened() = 0;  // outbox() is there now
  virtual void OnMessage(const v1::ServerMessage& message, Outbox* outbox) = 0;
  // `orderly`: the server ended the stream with OK after our half-close, so it has handled everything.
  virtual void OnStreamClosed(bool orderly) = 0;
};

class Link {
 public:
  Link(SessionFactory factory, std::string server, const Timings& timings, TimePoint now);

  // Handles what arrived, waiting at most `wait` for it. Opens a stream when `wanted` and its time has come.
  void Turn(bool wanted, std::chrono::milliseconds wait, LinkListener* listener, TimePoint now);

  // Ends the stream in order; the listener hears when the server agreed.
  void HalfClose(TimePoint now);
  bool open() const { return session_ != nullptr; }
  bool half_closed() const { return half_closed_; }
  // The server has spoken in this stream.
  bool up() const { return session_ != nullptr && up_; }
  // The last stream, or the attempt to open one, failed, and no other one is up yet.
  bool failed() const { return !last_problem_.empty(); }
  Outbox* outbox() { return session_.get(); }
  // How long the server has been away; 0 while up.
  Duration away(TimePoint now) const { return up() ? Duration::zero() : now - away_since_; }

 private:
  void Open(LinkListener* listener, TimePoint now);
  void Close(const absl::Status& status, LinkListener* listener, TimePoint now);

  SessionFactory factory_;
  std::string server_;
  const Timings& timings_;
  Backoff backoff_;
  std::unique_ptr<Session> session_;
  std::vector<SessionEvent> events_;
  TimePoint opened_at_, next_open_, away_since_;
  bool up_ = false;
  bool half_closed_ = false;
  std::string last_problem_;  // logged; "" while all is well
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_LINK_H_
