// The unacknowledged steps of one channel, oldest first: what is in the spool, then what is in memory.
//
//   acked ≤ … in flight … ≤ sent < … waiting … ≤ last       (sequences)
//
// Together with the ring it keeps the courier's one promise: a step that was read and is not yet durable at the server
// is here, and a step that is here leaves only by an acknowledgement or by a counted drop. One thread.
#ifndef TRIMTAB_AGENT_COURIER_STEP_QUEUE_H_
#define TRIMTAB_AGENT_COURIER_STEP_QUEUE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "agent/courier/spool.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::courier {

class StepQueue {
 public:
  explicit StepQueue(std::unique_ptr<SpoolLog> log);

  // Appends a serialised v1.Step; `sequence` must be above last().
  void Push(uint64_t sequence, std::string bytes);
  // Moves everything in memory to the spool, oldest first. RESOURCE_EXHAUSTED when the disk is full: what was not moved
  // stays in memory.
  absl::Status Spill();

  // The server's Welcome: everything up to `durable` is stored there; sending starts over behind it.
  void Resume(uint64_t durable);
  // DurableAck. Numbers beyond what was sent are ignored.
  void Ack(uint64_t durable);
  // Adds the next steps to `batch`, within the bounds of a batch and of the window in flight. False when there is
  // nothing to send now. Call only between Resume and the end of the stream.
  bool FillBatch(v1::StepBatch* batch);

  // Nothing is left that could be delivered. Steps that damage made unreadable are counted and removed by this call, so
  // call it only between Resume and the end of the stream.
  bool Delivered();
  // Nothing is in memory: what is left is in the spool.
  bool OnDisk() const { return memory_.empty(); }

  uint64_t acked() const { return acked_; }
  uint64_t last() const { return last_; }  // newest step ever taken in
  size_t memory_bytes() const { return memory_bytes_; }
  uint64_t dropped() const { return log_->meta().dropped_steps(); }  // by the spool's bound or damage, surely lost
  SpoolLog& log() { return *log_; }
  const SpoolLog& log() const { return *log_; }

 private:
  struct Queued {
    uint64_t sequence;
    std::string bytes;
  };
  struct InFlight {
    uint64_t last;
    size_t bytes;
  };
  void OnDropped(absl::Span<const uint64_t> sequences);
  void CountDropped(uint64_t steps) { log_->meta().set_dropped_steps(log_->meta().dropped_steps() + steps); }
  void ForgetMemoryTo(uint64_t sequence);
  const Queued* PeekNext();

  std::unique_ptr<SpoolLog> log_;
  std::deque<Queued> memory_;
  size_t memory_bytes_ = 0;
  std::deque<InFlight> in_flight_;
  size_t in_flight_bytes_ = 0;
  std::optional<Queued> from_disk_;  // read ahead: did not fit into the last batch
  uint64_t acked_ = 0;
  uint64_t sent_ = 0;
  uint64_t last_ = 0;
  uint64_t damage_counted_to_ = 0;
  bool sent_known_ = false;  // false until the first Resume: an earlier courier may have sent anything
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_STEP_QUEUE_H_
