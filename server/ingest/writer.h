// The one thread that writes: takes what the streams queued, commits it with one sync, then acknowledges and tells the
// listeners, in the order in which things arrived. A commit that fails (disk full) is tried again until it succeeds or
// the server stops; nothing is acknowledged meanwhile and the full queue stops the reading. A store that must be opened
// again (a failed write to its log) ends the server: see IngestOptions::on_store_broken.
#ifndef TRIMTAB_SERVER_INGEST_WRITER_H_
#define TRIMTAB_SERVER_INGEST_WRITER_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/ingest/channel_table.h"
#include "server/ingest/counters.h"
#include "server/ingest/write_queue.h"
#include "server/store/store.h"

namespace trimtab::server {

class Writer {
 public:
  struct Options {
    size_t max_commit_bytes = size_t{8} << 20;
    uint32_t sample_every_steps = 0;                           // for Welcome
    double retry_seconds = 1;                                  // after a failed commit
    double event_gap_seconds = 10;                             // between two events about refusals of one kind and run
    std::function<void(const absl::Status&)> on_store_broken;  // see IngestOptions
  };

  Writer(const Options& options, WriteQueue* queue, ChannelTable* table, IngestCounters* counters, Store* store)
      : options_(options), queue_(queue), table_(table), counters_(counters), store_(store) {}
  ~Writer() { Stop(); }

  // Before Start only.
  void AddStepListener(StepListener* listener) { step_listeners_.push_back(listener); }
  void AddAckListener(AckListener* listener) { ack_listeners_.push_back(listener); }

  void Start();
  // Writes what is queued, then ends the thread.
  void Stop();

 private:
  using Steps = std::vector<const v1::Step*>;
  // The progress of one entry of a batch, to be put back if the entry cannot be stored.
  struct Staged {
    RankProgress* progress;
    uint64_t sequence_before;
  };

  void Loop();
  void Process(std::vector<WriteItem>* items);
  void RegisterRanks(std::vector<WriteItem>* items);
  void UpdateRanks(const std::vector<WriteItem>& items);
  // Fills (*fresh)[i] with the steps of items[i] that are new, and makes all of them durable.
  void CommitSteps(const std::vector<WriteItem>& items, std::vector<Steps>* fresh);
  bool CommitBatch(const std::vector<RankSteps>& batch);
  // After a status that no retry can mend: finds the rank that caused it and refuses its channels.
  void CommitOneByOne(const std::vector<RankSteps>& batch, const std::vector<Staged>& staged,
                      const std::vector<WriteItem>& items, std::vector<Steps>* fresh);
  // Closes a channel that its session still holds open.
  void RefuseChannel(Channel& channel, const Rejection& rejection, bool fatal);
  void Announce(const WriteItem& item, const Steps& fresh);
  void AnnounceHello(const WriteItem& item);
  void AnnounceLeft(const WriteItem& item);
  void AppendEvent(const WriteItem& item);
  std::shared_ptr<RankProgress> FindProgress(const RankKey& rank, uint64_t last_sequence);

  const Options options_;
  WriteQueue* const queue_;
  ChannelTable* const table_;
  IngestCounters* const counters_;
  Store* const store_;
  std::vector<StepListener*> step_listeners_;
  std::vector<AckListener*> ack_listeners_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};

  // Of the writer thread.
  std::map<RankKey, std::weak_ptr<RankProgress>> progress_;
  size_t sweep_at_ = 1024;
  bool told_broken_ = false;
  std::map<std::pair<std::string, std::string>, int64_t> last_event_nanos_;  // (kind or reason, run)
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_INGEST_WRITER_H_
