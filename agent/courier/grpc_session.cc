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

// Reactions run on gRPC's threads, calls on the loop's. gRPC keeps the object alive until OnDone through self_.
class Stream final : public grpc::ClientBidiReactor<v1::AgentMessage, v1::ServerMessage> {
 public:
  static std::shared_ptr<Stream> Start(const std::string& target) {
    auto stream = std::make_shared<Stream>();
    stream->channel_ = Connect(target);
    stream->stub_ = v1::TelemetryService::NewStub(stream->channel_);
    {
      absl::MutexLock lock(&stream->mutex_);
      stream->self_ = stream;
    }
    stream->stub_->async()->Session(&stream->context_, stream.get());
    stream->AddHold();  // Send starts writes from outside of reactions
    stream->StartRead(&stream->incoming_);
    stream->StartCall();
    return stream;
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

  // Gives up the stream; waits for its end, but not for ever: gRPC holds the object anyway.
  void Abandon() {
    context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    abandoned_ = true;
    if (read_paused_ && !read_ended_) {
      read_paused_ = false;
      StartRead(&incoming_);
    }
    mutex_.AwaitWithTimeout(absl::Condition(&done_), absl::Seconds(2));
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
    std::shared_ptr<Stream> self;  // outlives the lock below
    {
      absl::MutexLock lock(&mutex_);
      events_.emplace_back();
      events_.back().closed = true;
      events_.back().status = FromGrpc(status);
      done_ = true;
      self = std::move(self_);
    }
  }

  struct Queued {
    v1::AgentMessage message;
    size_t bytes;
  };

  mutable absl::Mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_;
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
  std::shared_ptr<Stream> self_ ABSL_GUARDED_BY(mutex_);
};

class GrpcSession final : public Session {
 public:
  explicit GrpcSession(const std::string& target) : stream_(Stream::Start(target)) {}
  ~GrpcSession() override { stream_->Abandon(); }

  bool CanSend() const override { return stream_->CanSend(); }
  bool Flushed() const override { return stream_->Flushed(); }
  void Send(v1::AgentMessage message) override { stream_->Send(std::move(message)); }
  void HalfClose() override { stream_->HalfClose(); }
  void Wait(std::chrono::milliseconds timeout, std::vector<SessionEvent>* events) override {
    stream_->Wait(timeout, events);
  }

 private:
  std::shared_ptr<Stream> stream_;
};

}  // namespace

std::unique_ptr<Session> OpenGrpcSession(const std::string& target) { return std::make_unique<GrpcSession>(target); }

}  // namespace trimtab::courier
