// The durable state of a server: RocksDB with the families catalog, rows, events. On-disk format: docs/store.md.
//
// Thread-safe. Every call that writes has synced its WAL when it returns OK, so a kill -9 or power loss afterwards
// loses nothing. Reads see all writes that returned. Third-party exceptions and statuses stop here.
#ifndef TRIMTAB_SERVER_STORE_STORE_H_
#define TRIMTAB_SERVER_STORE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/model/roles.h"
#include "trimtab/v1/common.pb.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::server {

struct StoreOptions {
  std::string path;  // made if absent; locked: a second server gets FAILED_PRECONDITION naming the holder
  size_t block_cache_bytes = size_t{64} << 20;
  size_t memtable_bytes = size_t{64} << 20;
  int max_open_files = 256;
};

struct StoredRun {
  std::string run;
  uint64_t id = 0;
  int64_t first_seen_unix_nanos = 0;
  std::vector<v1::MetricDescriptor> metrics;
  std::vector<v1::RankInfo> ranks;  // newest incarnation of each rank
};

// One rank that opens a channel.
struct RankRegistration {
  const v1::RankInfo* info = nullptr;
  absl::Span<const v1::MetricDescriptor> metrics;
};

// Steps of one rank to be written together.
struct RankSteps {
  RankKey rank;
  std::vector<const v1::Step*> steps;  // ascending sequence, all > last durable sequence
};

class Store : public EventLog {
 public:
  static constexpr uint32_t kFormatVersion = 1;

  // FAILED_PRECONDITION: locked, or written by a newer format (says which version and what to do).
  static absl::StatusOr<std::unique_ptr<Store>> Open(const StoreOptions& options);

  // Creates run, rank and metrics in the catalog as needed. Returns the last durable sequence of this incarnation.
  // INVALID_ARGUMENT: a bad run name, or a metric id that means something else in this run.
  absl::StatusOr<uint64_t> RegisterRank(const v1::RankInfo& info, absl::Span<const v1::MetricDescriptor> metrics) {
    return std::move(RegisterRanks({{&info, metrics}}).front());
  }
  // The same for many ranks with one sync; one answer each, in order.
  virtual std::vector<absl::StatusOr<uint64_t>> RegisterRanks(absl::Span<const RankRegistration> ranks) = 0;

  absl::Status UpdateRank(const v1::RankInfo& info) {
    const v1::RankInfo* const one = &info;
    return UpdateRanks({&one, 1});
  }
  // Replaces the stored RankInfo of ranks whose newest incarnation this is; ignores others. One sync.
  virtual absl::Status UpdateRanks(absl::Span<const v1::RankInfo* const> infos) = 0;

  // One synced write batch: rows of all ranks and their new last durable sequences. All or nothing.
  // A step that comes twice in one incarnation keeps its last values. RESOURCE_EXHAUSTED: the disk is full; call again.
  virtual absl::Status AppendSteps(absl::Span<const RankSteps> batch) = 0;

  virtual absl::StatusOr<std::vector<StoredRun>> ListRuns() = 0;
  virtual absl::StatusOr<StoredRun> GetRun(const std::string& run) = 0;  // NOT_FOUND names the known runs

  struct Row {
    uint64_t incarnation = 0;
    uint64_t step = 0;
    int64_t time_unix_nanos = 0;
    v1::Block block;
  };
  // Rows of one metric of one rank, by incarnation in the order they joined, then by step. `visit` returns false to
  // stop. to_step is inclusive, 0 means the end. NOT_FOUND names what there is. A rank without rows is not an error.
  virtual absl::Status ReadRows(const std::string& run, const std::string& metric, uint32_t rank, uint64_t from_step,
                                uint64_t to_step, const std::function<bool(const Row&)>& visit) = 0;
  // How many rows ReadRows would visit; reads keys only.
  virtual absl::StatusOr<uint64_t> CountRows(const std::string& run, const std::string& metric, uint32_t rank,
                                             uint64_t from_step, uint64_t to_step) = 0;

  // The last row of the newest incarnation that has one; nothing when there is none.
  virtual absl::StatusOr<std::optional<Row>> LastRow(const std::string& run, const std::string& metric,
                                                     uint32_t rank) = 0;

  // Events with id > after_id, ascending, of one run or of all ("").
  virtual absl::StatusOr<std::vector<v1::Event>> ReadEvents(const std::string& run, uint64_t after_id,
                                                            uint64_t max_events, bool newest) = 0;
  // Called after each Append, on the appending thread, without a lock held: events of two threads may arrive in either
  // order (a tail that needs order reads the store). Listeners outlive the store's last Append.
  virtual void AddEventListener(EventListener* listener) = 0;

  // Small durable values of other rooms (plans, policy states), key at most 256 bytes.
  virtual absl::Status PutState(const std::string& key, const std::string& value) = 0;
  virtual absl::StatusOr<std::string> GetState(const std::string& key) = 0;  // NOT_FOUND when absent
  virtual absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ListState(const std::string& prefix) = 0;

  // Rewrites everything at its final compression. For benchmarks and before a backup; takes minutes on a large store.
  virtual absl::Status Compact() = 0;

  // rows, values, synced_batches: since open. events: highest id.
  struct Statistics {
    uint64_t rows = 0, values = 0, events = 0, bytes_on_disk = 0, synced_batches = 0;
    double last_sync_seconds = 0;
  };
  virtual Statistics statistics() const = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_STORE_STORE_H_
