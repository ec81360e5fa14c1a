#include "server/ingest/ingest.h"

#include <set>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "server/ingest/session.h"
#include "server/ingest/writer.h"
#include "trimtab/v1/telemetry.grpc.pb.h"

namespace trimtab::server {
namespace {

using SessionPointer = std::shared_ptr<Session>;

// Ends a stream that came after the shutdown began.
class RefusedStream final : public grpc::ServerBidiReactor<v1::AgentMessage, v1::ServerMessage> {
 public:
  RefusedStream() { Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down; connect again")); }
  void OnDone() override { delete this; }
};

class IngestImpl final : public Ingest, private v1::TelemetryService::CallbackService {
 public:
  IngestImpl(const IngestOptions& options, Store* store)
      : queue_(options.queue_bytes),
        table_(&queue_, &counters_, absl::Seconds(options.alive_window_seconds)),
        writer_({.max_commit_bytes = options.max_commit_bytes,
                 .sample_every_steps = options.sample_every_steps,
                 .retry_seconds = options.retry_seconds,
                 .event_gap_seconds = options.refusal_event_gap_seconds,
                 .on_store_broken = options.on_store_broken},
                &queue_, &table_, &counters_, store) {}

  ~IngestImpl() override { Shutdown(); }

  void AddStepListener(StepListener* listener) override { writer_.AddStepListener(listener); }
  void AddAckListener(AckListener* listener) override { writer_.AddAckListener(listener); }
  grpc::Service* service() override { return this; }
  void Start() override { writer_.Start(); }

  void Shutdown() override {
    std::set<SessionPointer> sessions;
    {
      absl::MutexLock lock(&mutex_);
      if (std::exchange(stopping_, true)) return;
      sessions = sessions_;
    }
    for (const auto& session : sessions) session->BeginShutdown();
    writer_.Stop();
    // Streams that were paused read no more; what they still queue is not acknowledged and will be sent again.
    for (const auto& session : queue_.TakePaused()) session->ResumeReading();
  }

  absl::Status Send(const RankKey& rank, const v1::Command& command) override { return table_.Send(rank, command); }

  IngestStatistics statistics() const override {
    IngestStatistics s = counters_.Read();
    s.queue_bytes = queue_.bytes();
    s.queue_messages = queue_.messages();
    s.channels = table_.channels();
    return s;
  }

 private:
  grpc::ServerBidiReactor<v1::AgentMessage, v1::ServerMessage>* Session(grpc::CallbackServerContext* context) override {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return new RefusedStream();
    auto session = std::make_shared<server::Session>(
        server::Session::Shared{&queue_, &table_, &counters_, [this](const auto& done) { Forget(done); }},
        context->peer());
    sessions_.insert(session);
    session->Start();
    return session.get();
  }

  void Forget(const SessionPointer& session) {
    absl::MutexLock lock(&mutex_);
    sessions_.erase(session);
  }

  IngestCounters counters_;
  WriteQueue queue_;
  ChannelTable table_;
  Writer writer_;
  absl::Mutex mutex_;
  std::set<SessionPointer> sessions_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<Ingest> Ingest::Create(const IngestOptions& options, Store* store) {
  return std::make_unique<IngestImpl>(options, store);
}

}  // namespace trimtab::server
