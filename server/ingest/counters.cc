#include "server/ingest/counters.h"

#include <algorithm>

namespace trimtab::server {

absl::string_view RefusalReasonName(RefusalReason reason) {
  switch (reason) {
    case RefusalReason::kMessageTooLarge:
      return "message_too_large";
    case RefusalReason::kBadMessage:
      return "bad_message";
    case RefusalReason::kTooManyChannels:
      return "too_many_channels";
    case RefusalReason::kProtocolVersion:
      return "protocol_version";
    case RefusalReason::kBadRunName:
      return "bad_run_name";
    case RefusalReason::kBadRank:
      return "bad_rank";
    case RefusalReason::kBadRankInfo:
      return "bad_rank_info";
    case RefusalReason::kBadMetric:
      return "bad_metric";
    case RefusalReason::kBadShape:
      return "bad_shape";
    case RefusalReason::kBadSequence:
      return "bad_sequence";
    case RefusalReason::kDuplicateRank:
      return "duplicate_rank";
    case RefusalReason::kOverload:
      return "overload";
    case RefusalReason::kStore:
      return "store";
    case RefusalReason::kCount:
      break;
  }
  return "unknown";
}

void IngestCounters::Committed(double seconds) {
  const auto at = std::lower_bound(kCommitBounds.begin(), kCommitBounds.end(), seconds) - kCommitBounds.begin();
  ++buckets_[static_cast<size_t>(at)];
  ++commits;
  seconds_.store(seconds_.load() + seconds);  // one writer thread
}

IngestStatistics IngestCounters::Read() const {
  IngestStatistics s;
  s.messages = messages;
  s.bytes = bytes;
  s.steps = steps;
  s.values = values;
  s.duplicate_steps = duplicate_steps;
  s.orphan_messages = orphan_messages;
  s.ring_dropped_steps = ring_dropped_steps;
  s.spool_dropped_steps = spool_dropped_steps;
  s.commits = commits;
  s.commit_failures = commit_failures;
  s.pauses = pauses;
  s.commands_sent = commands_sent;
  s.commands_redelivered = commands_redelivered;
  s.commands_expired = commands_expired;
  s.streams = streams;
  for (size_t i = 0; i < refusals_.size(); ++i) s.refusals[i] = refusals_[i];
  for (size_t i = 0; i < buckets_.size(); ++i) s.commit_buckets[i] = buckets_[i];
  s.commit_seconds_sum = seconds_;
  return s;
}

}  // namespace trimtab::server
