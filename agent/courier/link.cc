#include "agent/courier/link.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <thread>
#include <utility>

namespace trimtab::courier {
namespace {

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Link::Link(SessionFactory factory, std::string server, const Timings& timings, TimePoint now)
    : factory_(std::move(factory)),
      server_(std::move(server)),
      timings_(timings),
      backoff_(timings.backoff_min, timings.backoff_max,
               static_cast<uint64_t>(getpid()) ^ static_cast<uint64_t>(now.time_since_epoch().count())),
      next_open_(now),
      away_since_(now) {}

void Link::Open(LinkListener* listener, TimePoint now) {
  session_ = factory_();
  opened_at_ = now;
  up_ = false;
  half_closed_ = false;
  listener->OnStreamOpened();
}

void Link::Close(const absl::Status& status, LinkListener* listener, TimePoint now) {
  const bool was_up = up_;
  const bool orderly = half_closed_ && status.ok();
  session_.reset();
  up_ = false;
  half_closed_ = false;
  if (was_up) {
    away_since_ = now;
    backoff_.Reset();
  }
  next_open_ = now + backoff_.Next();
  if (!orderly) {
    // One line per state, not per attempt; the text of a failed attempt may differ in its address only.
    const std::string problem = status.ok() ? "the server ended the stream" : std::string(status.message());
    if (was_up || last_problem_.empty()) {
      spdlog::warn("{}: {}; trying again, unsent steps are kept", server_, problem);
    } else {
      spdlog::debug("{}: {}", server_, problem);
    }
    last_problem_ = problem;
  }
  listener->OnStreamClosed(orderly);
}

void Link::HalfClose(TimePoint now) {
  if (session_ == nullptr || half_closed_) return;
  half_closed_ = true;
  opened_at_ = now;  // the server has timings_.answer to agree
  session_->HalfClose();
}

void Link::Turn(bool wanted, std::chrono::milliseconds wait, LinkListener* listener, TimePoint now) {
  if (session_ == nullptr && wanted && now >= next_open_) Open(listener, now);
  if (session_ == nullptr) {
    std::this_thread::sleep_for(wait);
    return;
  }
  events_.clear();
  session_->Wait(wait, &events_);
  const TimePoint then = Clock::now();
  for (const SessionEvent& event : events_) {
    if (event.closed) {
      Close(event.status, listener, then);
      return;
    }
    if (!up_) {
      up_ = true;
      backoff_.Reset();
      if (last_problem_.empty()) {
        spdlog::info("{}: connected", server_);
      } else {
        spdlog::info("{}: connected again after {:.1f} s", server_, Seconds(then - away_since_));
      }
      last_problem_.clear();
    }
    listener->OnMessage(event.message, session_.get());
  }
  if ((!up_ || half_closed_) && then - opened_at_ > timings_.answer) {
    Close(absl::DeadlineExceededError("no answer"), listener, then);
  }
}

}  // namespace trimtab::courier
