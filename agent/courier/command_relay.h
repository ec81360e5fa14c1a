// Commands on their way into one ring, whose slot holds one at a time.
#ifndef TRIMTAB_AGENT_COURIER_COMMAND_RELAY_H_
#define TRIMTAB_AGENT_COURIER_COMMAND_RELAY_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/core/ring_reader.h"
#include "agent/courier/options.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::courier {

// INVALID_ARGUMENT, with a reason for the server's audit log, when the command could not be carried out by any rank.
absl::StatusOr<trimtab_command> CommandFromProto(const v1::Command& command);

class CommandRelay {
 public:
  // A command stays in the slot until the rank took it, at most until its deadline (within these bounds); then the next
  // one may replace it. A later phase of the same plan replaces it at once.
  CommandRelay(Duration min_stay, Duration max_stay) : min_stay_(min_stay), max_stay_(max_stay) {}

  // Writes the command, or queues it. A repetition of the last command is ignored. RESOURCE_EXHAUSTED above
  // kMaxCommandsWaiting.
  absl::Status Give(const trimtab_command& command, agent::RingReader* ring, TimePoint now, int64_t unix_nanos);
  // Writes what has waited when its turn has come. Cheap when nothing waits.
  void Poll(agent::RingReader* ring, TimePoint now, int64_t unix_nanos);
  size_t waiting() const { return waiting_.size(); }

 private:
  void Write(const trimtab_command& command, agent::RingReader* ring, TimePoint now);
  bool MayReplace(const agent::RingReader& ring, TimePoint now, int64_t unix_nanos) const;

  Duration min_stay_, max_stay_;
  std::optional<trimtab_command> written_;
  TimePoint written_at_;
  std::deque<trimtab_command> waiting_;
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_COMMAND_RELAY_H_
