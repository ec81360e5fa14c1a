#include "server/export/server_families.h"

#include <string>

namespace trimtab::server {

void AddIngestFamilies(const IngestStatistics& s, SeriesBudget* budget) {
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    budget->Counter(name, help, {}, static_cast<double>(value));
  };
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    budget->Gauge(name, help, {}, static_cast<double>(value));
  };
  counter("trimtab_ingest_messages_total", "Messages received from couriers.", s.messages);
  counter("trimtab_ingest_bytes_total", "Bytes of those messages.", s.bytes);
  counter("trimtab_ingest_steps_total", "Steps of single ranks made durable.", s.steps);
  counter("trimtab_ingest_values_total", "Values made durable.", s.values);
  counter("trimtab_ingest_duplicate_steps_total", "Steps received again and not stored again.", s.duplicate_steps);
  counter("trimtab_ingest_orphan_messages_total", "Messages for a closed or refused channel.", s.orphan_messages);
  counter("trimtab_ingest_ring_dropped_steps_total", "Steps overwritten in a ring before its courier read them.",
          s.ring_dropped_steps);
  counter("trimtab_ingest_spool_dropped_steps_total", "Steps that couriers dropped from full spools.",
          s.spool_dropped_steps);
  counter("trimtab_ingest_pauses_total", "Times a stream was not read because the queue was full.", s.pauses);
  counter("trimtab_ingest_commit_failures_total", "Commits that failed and were tried again.", s.commit_failures);
  counter("trimtab_commands_sent_total", "Commands sent to ranks.", s.commands_sent);
  counter("trimtab_commands_redelivered_total", "Commands sent again after a reconnect.", s.commands_redelivered);
  counter("trimtab_commands_expired_total", "Commands whose deadline passed unanswered.", s.commands_expired);
  for (size_t i = 0; i < s.refusals.size(); ++i) {
    budget->Counter("trimtab_ingest_refusals_total", "Messages, channels and streams refused.",
                    {{"reason", std::string(RefusalReasonName(static_cast<RefusalReason>(i)))}},
                    static_cast<double>(s.refusals[i]));
  }
  gauge("trimtab_ingest_queue_messages", "Messages waiting for the writer.", s.queue_messages);
  gauge("trimtab_ingest_queue_bytes", "Bytes waiting for the writer or being written.", s.queue_bytes);
  gauge("trimtab_ingest_streams", "Open courier streams.", s.streams);
  gauge("trimtab_ingest_channels", "Ranks with an open channel.", s.channels);
  budget->Histogram("trimtab_ingest_sync_seconds", "Time of a durable commit.", {}, kCommitBounds.data(),
                    s.commit_buckets.data(), kCommitBounds.size(), s.commit_seconds_sum);
}

void AddStoreFamilies(const Store::Statistics& s, SeriesBudget* budget) {
  budget->Counter("trimtab_store_rows_total", "Rows written.", {}, static_cast<double>(s.rows));
  budget->Counter("trimtab_store_values_total", "Values written.", {}, static_cast<double>(s.values));
  budget->Counter("trimtab_store_synced_batches_total", "Write batches synced.", {},
                  static_cast<double>(s.synced_batches));
  budget->Gauge("trimtab_store_events", "Events in the audit log.", {}, static_cast<double>(s.events));
  budget->Gauge("trimtab_store_bytes", "Bytes of table and log files on disk.", {},
                static_cast<double>(s.bytes_on_disk));
}

}  // namespace trimtab::server
