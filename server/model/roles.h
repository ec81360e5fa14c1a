// The roles that the server's rooms play for one another. Each room implements or calls these and knows no other room.
//
//   ingest ──StepListener──▶ registry, policy, control      (after the step is durable)
//   policy ──Actuator─────▶ control ──CommandLink──▶ ingest (to the couriers)
//   anyone ──EventLog─────▶ store   ──EventListener─▶ registry, query tails
//
// Listeners are called from one thread of ingest, in order per rank, and must not block: hand over and return.
#ifndef TRIMTAB_SERVER_MODEL_ROLES_H_
#define TRIMTAB_SERVER_MODEL_ROLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trimtab/v1/common.pb.h"
#include "trimtab/v1/control.pb.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::server {

// One life of one rank of a run.
struct RankKey {
  std::string run;
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  friend bool operator==(const RankKey&, const RankKey&) = default;
  friend auto operator<=>(const RankKey&, const RankKey&) = default;
};

enum class LeaveReason { kFinished, kDied, kDisconnected, kReplaced };

class StepListener {
 public:
  virtual ~StepListener() = default;
  // A rank opened its channel (first Hello of this incarnation, or again after a reconnect).
  virtual void OnRankJoined(const RankKey& rank, const v1::RankInfo& info,
                            const std::vector<v1::MetricDescriptor>& metrics) = 0;
  virtual void OnRankUpdated(const RankKey& rank, const v1::RankInfo& info) = 0;
  // Only new, durable steps; never the same sequence twice.
  virtual void OnSteps(const RankKey& rank, absl::Span<const v1::Step* const> steps) = 0;
  virtual void OnRankLeft(const RankKey& rank, LeaveReason reason, const std::string& detail) = 0;
};

class AckListener {
 public:
  virtual ~AckListener() = default;
  virtual void OnAck(const RankKey& rank, const v1::CommandAck& ack) = 0;
};

// Delivers commands to ranks over their couriers' streams. Thread-safe; never blocks.
class CommandLink {
 public:
  virtual ~CommandLink() = default;
  // UNAVAILABLE when the rank has no open channel. A sent command is redelivered after a reconnect until it is
  // answered or past its deadline.
  virtual absl::Status Send(const RankKey& rank, const v1::Command& command) = 0;
};

// Stores an event and returns it with its id. Thread-safe; durable on return.
class EventLog {
 public:
  virtual ~EventLog() = default;
  virtual absl::StatusOr<uint64_t> Append(v1::Event event) = 0;
};

class EventListener {
 public:
  virtual ~EventListener() = default;
  virtual void OnEvent(const v1::Event& event) = 0;
};

// What the policy may ask for. Thread-safe. Returns the plan; its outcome is in later events.
class Actuator {
 public:
  virtual ~Actuator() = default;
  struct Request {
    std::string run;
    v1::KernelMode mode = v1::KERNEL_MODE_STABILIZED;
    std::vector<uint32_t> layers;  // empty: all
    std::string reason;
    std::string actor;
    std::string evidence_json;
    bool needs_approval = false;  // propose only
    bool rollback = false;
  };
  virtual absl::StatusOr<v1::Plan> Submit(const Request& request) = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_MODEL_ROLES_H_
