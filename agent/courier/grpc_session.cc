#include "agent/courier/grpc_session.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/courier/limits.h"
#include "proto/status/status.h"
#include "trimtab/v1/telemetry.grpc.pb.h"

namespace trimtab::courier {
namespace {

constexpr int kKeepaliveMillis = 10'000;
constexpr int kKeepaliveTimeoutMillis = 5'000;

std::shared_ptr<grpc::Channel> Connect(const std::string& target) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMillis);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A connection of its own: gRPC's shared back-off must not delay ours.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), args);
}

// Reactions run on gRPC's threads, everything else on the loop's. Must be destroyed there too, not in a reaction: the
// last channel of a process joins the threads that run reactions.
class Stream final : public grpc::ClientBidiReactor<v1::AgentMessage, v1::ServerMessage> {
 public:
  explicit Stream(const std::string& target) : stub_(v1::TelemetryService::NewStub(Connect(target))) {
    stub_->async()->Session(&context_, this);
    AddHold();  // Send starts writes from outside of reactions
    StartRead(&incoming_);
    StartCall();
  }

  bool CanSend() const {
    absl::MutexLock lock(&mutex_);
    return queued_bytes_ < kMaxOutboxBytes;
  }

  bool Flushed() const {
    absl::MutexLock lock(&mutex_);
    return queue_.empty();
  }

  void Send(v1::AgentMessage message) {
    absl::MutexLock lock(&mutex_);
    if (read_ended_ || write_failed_ || half_close_) return;
    const size_t bytes = message.ByteSizeLong();
    queued_bytes_ += bytes;
    queue_.push_back({std::move(message), bytes});
    if (queue_.size() == 1) StartWrite(&queue_.front().message);
  }

  void HalfClose() {
    absl::MutexLock lock(&mutex_);
    if (half_close_ || read_ended_ || write_failed_) return;
    half_close_ = true;
    if (queue_.empty()) StartWritesDone();
  }

  void Wait(std::chrono::milliseconds timeout, std::vector<SessionEvent>* events) {
    absl::MutexLock lock(&mutex_);
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&ready), absl::FromChrono(timeout));
    for (SessionEvent& event : events_) events->push_back(std::move(event));
    events_.clear();
    if (read_paused_ && !read_ended_) {
      read_paused_ = false;
      StartRead(&incoming_);
    }
  }

  // Gives up the stream. A cancelled one ends at once, whatever the network does.
  ~Stream() override {
    context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    abandoned_ = true;
    if (read_paused_ && !read_ended_) {
      read_paused_ = false;
      StartRead(&incoming_);
    }
    mutex_.Await(absl::Condition(&done_));
  }

 private:
  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    if (!ok) {
      read_ended_ = true;
      RemoveHold();
      return;
    }
    if (!abandoned_) {
      events_.emplace_back();
      events_.back().message = std::move(incoming_);
      incoming_.Clear();
    }
    if (events_.size() >= kMaxInbox) {
      read_paused_ = true;
    } else {
      StartRead(&incoming_);
    }
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    if (!ok) {
      write_failed_ = true;
      queue_.clear();
      queued_bytes_ = 0;
      return;
    }
    queued_bytes_ -= queue_.front().bytes;
    queue_.pop_front();
    if (read_ended_) return;  // the hold is gone: no further operation may start
    if (!queue_.empty()) {
      StartWrite(&queue_.front().message);
    } else if (half_close_) {
      StartWritesDone();
    }
  }

  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    events_.emplace_back();
    events_.back().closed = true;
    events_.back().status = FromGrpc(status);
    done_ = true;
  }

  struct Queued {
    v1::AgentMessage message;
    size_t bytes;
  };

  mutable absl::Mutex mutex_;
  std::unique_ptr<v1::TelemetryService::Stub> stub_;
  grpc::ClientContext context_;
  v1::ServerMessage incoming_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);  // front is being written
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<SessionEvent> events_ ABSL_GUARDED_BY(mutex_);
  bool read_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool read_paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_close_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

class GrpcSession final : public Session {
 public:
  explicit GrpcSession(const std::string& target) : stream_(target) {}

  bool CanSend() const override { return stream_.CanSend(); }
  bool Flushed() const override { return stream_.Flushed(); }
  void Send(v1::AgentMessage message) override { stream_.Send(std::move(message)); }
  void HalfClose() override { stream_.HalfClose(); }
  void Wait(std::chrono::milliseconds timeout, std::vector<SessionEvent>* events) override {
    stream_.Wait(timeout, events);
  }

 private:
  Stream stream_;
};

}  // namespace

std::unique_ptr<Session> OpenGrpcSession(const std::string& target) { return std::make_unique<GrpcSession>(target); }

}  // namespace trimtab::courier
