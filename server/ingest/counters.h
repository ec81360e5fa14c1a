// What ingest counts. All counters only rise and may be read from any thread.
#ifndef TRIMTAB_SERVER_INGEST_COUNTERS_H_
#define TRIMTAB_SERVER_INGEST_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace trimtab::server {

// Why something was refused; each is one value of the label `reason`.
enum class RefusalReason : size_t {
  kMessageTooLarge,
  kBadMessage,  // no body, a channel used before its Hello
  kTooManyChannels,
  kProtocolVersion,
  kBadRunName,
  kBadRank,      // rank ≥ world size, world size out of range, incarnation 0
  kBadRankInfo,  // layers, heads or size over the limit; not the rank that said Hello
  kBadMetric,    // schema rows over the limit or malformed, unknown id in a step
  kBadShape,     // axes, extents or value count
  kBadSequence,
  kDuplicateRank,
  kOverload,  // the peer does not read its answers
  kStore,     // the store refused the rank (a metric id that means something else) or failed
  kCount,
};
absl::string_view RefusalReasonName(RefusalReason reason);

// Upper bounds of the commit time histogram, seconds; one more bucket holds the rest.
inline constexpr std::array<double, 12> kCommitBounds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                                         0.05,   0.1,   0.25,   0.5,   1,    2.5};

struct IngestStatistics {
  uint64_t messages = 0, bytes = 0, steps = 0, values = 0;
  uint64_t duplicate_steps = 0;                              // below the durable sequence: answered, not stored again
  uint64_t orphan_messages = 0;                              // for a channel that had been refused or closed
  uint64_t ring_dropped_steps = 0, spool_dropped_steps = 0;  // as couriers report them
  uint64_t commits = 0, commit_failures = 0;
  uint64_t pauses = 0;  // a stream was not read because the queue was full
  uint64_t commands_sent = 0, commands_redelivered = 0, commands_expired = 0;
  uint64_t queue_messages = 0, queue_bytes = 0, streams = 0, channels = 0;  // now
  std::array<uint64_t, static_cast<size_t>(RefusalReason::kCount)> refusals{};
  std::array<uint64_t, kCommitBounds.size() + 1> commit_buckets{};  // not cumulative
  double commit_seconds_sum = 0;
};

class IngestCounters {
 public:
  std::atomic<uint64_t> messages{0}, bytes{0}, steps{0}, values{0}, duplicate_steps{0}, orphan_messages{0},
      ring_dropped_steps{0}, spool_dropped_steps{0}, commits{0}, commit_failures{0}, pauses{0}, commands_sent{0},
      commands_redelivered{0}, commands_expired{0}, streams{0};

  void Refused(RefusalReason reason) { ++refusals_[static_cast<size_t>(reason)]; }
  void Committed(double seconds);
  // Everything but queue_messages, queue_bytes and channels.
  IngestStatistics Read() const;

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(RefusalReason::kCount)> refusals_{};
  std::array<std::atomic<uint64_t>, kCommitBounds.size() + 1> buckets_{};
  std::atomic<double> seconds_{0};
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_INGEST_COUNTERS_H_
