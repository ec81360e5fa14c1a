// The Store on RocksDB. Split over rocks_store.cc (opening, catalog, state), rocks_rows.cc and rocks_events.cc.
#ifndef TRIMTAB_SERVER_STORE_ROCKS_STORE_H_
#define TRIMTAB_SERVER_STORE_ROCKS_STORE_H_

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/store/background_error.h"
#include "server/store/catalog.h"
#include "server/store/store.h"

namespace trimtab::server {

class RocksStore final : public Store {
 public:
  explicit RocksStore(StoreOptions options) : options_(std::move(options)) {}
  ~RocksStore() override;
  absl::Status OpenDatabase();

  std::vector<absl::StatusOr<uint64_t>> RegisterRanks(absl::Span<const RankRegistration> ranks) override;
  absl::Status UpdateRanks(absl::Span<const v1::RankInfo* const> infos) override;
  absl::Status AppendSteps(absl::Span<const RankSteps> batch) override;
  absl::StatusOr<std::vector<StoredRun>> ListRuns() override;
  absl::StatusOr<StoredRun> GetRun(const std::string& run) override;
  absl::Status ReadRows(const std::string& run, const std::string& metric, uint32_t rank, uint64_t from_step,
                        uint64_t to_step, const std::function<bool(const Row&)>& visit) override;
  absl::StatusOr<uint64_t> CountRows(const std::string& run, const std::string& metric, uint32_t rank,
                                     uint64_t from_step, uint64_t to_step) override;
  absl::StatusOr<std::optional<Row>> LastRow(const std::string& run, const std::string& metric, uint32_t rank) override;
  absl::StatusOr<uint64_t> Append(v1::Event event) override;
  absl::StatusOr<std::vector<v1::Event>> ReadEvents(const std::string& run, uint64_t after_id, uint64_t max_events,
                                                    bool newest) override;
  void AddEventListener(EventListener* listener) override;
  absl::Status PutState(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> GetState(const std::string& key) override;
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ListState(const std::string& prefix) override;
  absl::Status Compact() override;
  Statistics statistics() const override;

 private:
  // Which keys of `rows` hold one series.
  struct SeriesRange {
    uint64_t run = 0;
    uint32_t metric = 0;
    uint32_t rank = 0;
    std::vector<uint64_t> incarnations;  // by order
  };

  absl::Status LoadCatalog() ABSL_EXCLUSIVE_LOCKS_REQUIRED(catalog_mutex_);
  absl::Status LoadRun(absl::string_view key, absl::string_view value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(catalog_mutex_);
  // Stages the records that `rank` needs into `batch` and the catalog.
  absl::StatusOr<uint64_t> StageRank(const RankRegistration& rank, int64_t now, rocksdb::WriteBatch* batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(catalog_mutex_);
  absl::StatusOr<StoredRun> ReadRun(const std::string& name, const CatalogRun& run) const
      ABSL_SHARED_LOCKS_REQUIRED(catalog_mutex_);
  absl::Status StageSteps(const RankSteps& steps, rocksdb::WriteBatch* batch, uint64_t* rows, uint64_t* values)
      ABSL_SHARED_LOCKS_REQUIRED(catalog_mutex_);
  absl::StatusOr<SeriesRange> FindSeries(const std::string& run, const std::string& metric, uint32_t rank) const;
  // Calls visit(order, key, value) for each row in range until it returns false.
  absl::Status ScanRows(
      const SeriesRange& series, uint64_t from_step, uint64_t to_step,
      const std::function<absl::StatusOr<bool>(uint32_t, uint64_t, absl::string_view, absl::string_view)>& visit) const;
  // Writes and syncs; tries to bring the database back first when an earlier write failed (disk full).
  absl::Status Write(absl::string_view doing, rocksdb::WriteBatch* batch);

  const StoreOptions options_;
  const std::shared_ptr<BackgroundError> background_error_ = std::make_shared<BackgroundError>();
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;
  rocksdb::ColumnFamilyHandle* catalog_ = nullptr;
  rocksdb::ColumnFamilyHandle* rows_ = nullptr;
  rocksdb::ColumnFamilyHandle* events_ = nullptr;
  rocksdb::ColumnFamilyHandle* cursors_ = nullptr;
  rocksdb::ColumnFamilyHandle* state_ = nullptr;

  mutable absl::Mutex catalog_mutex_;
  Catalog catalog_data_ ABSL_GUARDED_BY(catalog_mutex_);
  absl::Mutex append_mutex_ ABSL_ACQUIRED_BEFORE(catalog_mutex_);  // one AppendSteps at a time

  absl::Mutex event_mutex_;
  uint64_t last_event_id_ ABSL_GUARDED_BY(event_mutex_) = 0;
  std::vector<EventListener*> listeners_ ABSL_GUARDED_BY(event_mutex_);

  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> rows_written_{0}, values_written_{0}, event_count_{0}, synced_batches_{0};
  std::atomic<double> last_sync_seconds_{0};
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_STORE_ROCKS_STORE_H_
