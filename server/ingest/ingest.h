// The telemetry service. Couriers connect, say Hello for each ring, and send steps; every step that the store has
// synced is acknowledged once and then told to the listeners. See docs/wire.md.
//
// Thread-safe. Bounds: server/model/limits.h, and a queue of queue_bytes plus one message a stream.
#ifndef TRIMTAB_SERVER_INGEST_INGEST_H_
#define TRIMTAB_SERVER_INGEST_INGEST_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "server/ingest/counters.h"
#include "server/model/roles.h"
#include "server/store/store.h"

namespace trimtab::server {

struct IngestOptions {
  size_t queue_bytes = size_t{64} << 20;
  size_t max_commit_bytes = size_t{8} << 20;  // steps that share one sync
  double alive_window_seconds = 30;           // a rank whose courier sent nothing for so long may be taken over
  uint32_t sample_every_steps = 0;            // probe plan for Welcome; 0 leaves the agent's own
  double retry_seconds = 1;                   // after a failed commit
  double refusal_event_gap_seconds = 10;
  // Told once, from the writer's thread, when no retry can mend the store: the process should end, with an error, and
  // start again. Nothing is acknowledged from then on. May be null.
  std::function<void(const absl::Status&)> on_store_broken;
};

class Ingest : public CommandLink {
 public:
  // `store` outlives the ingest.
  static std::unique_ptr<Ingest> Create(const IngestOptions& options, Store* store);

  // Before Start only; listeners outlive the ingest's Shutdown.
  virtual void AddStepListener(StepListener* listener) = 0;
  virtual void AddAckListener(AckListener* listener) = 0;

  // Register with the gRPC server, whose receive limit must be kMaxTransportMessageBytes.
  virtual grpc::Service* service() = 0;

  virtual void Start() = 0;
  // Stops reading, makes durable and acknowledges what was read, ends the streams with UNAVAILABLE. Call before the
  // gRPC server's Shutdown, which then waits for the last answers to leave.
  virtual void Shutdown() = 0;

  virtual IngestStatistics statistics() const = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_INGEST_INGEST_H_
