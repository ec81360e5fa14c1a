#include "server/store/rocks_options.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace trimtab::server {
namespace {

constexpr size_t kSmallMemtableBytes = size_t{4} << 20;
constexpr size_t kBlockBytes = size_t{16} << 10;
constexpr int kZstdLevel = 3;

bool Supports(rocksdb::CompressionType type) {
  const auto known = rocksdb::GetSupportedCompressions();
  return std::find(known.begin(), known.end(), type) != known.end();
}

}  // namespace

rocksdb::DBOptions MakeDatabaseOptions(const StoreOptions& options) {
  rocksdb::DBOptions db;
  db.create_if_missing = true;
  db.create_missing_column_families = true;
  db.paranoid_checks = true;
  // Acknowledged writes are synced, so damage before the tail of a log is a fault to report, not to skip.
  db.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  db.recycle_log_file_num = 0;
  db.max_open_files = options.max_open_files;
  db.max_background_jobs = 2;
  db.max_total_wal_size = 4 * options.memtable_bytes;
  db.bytes_per_sync = size_t{1} << 20;
  db.keep_log_file_num = 4;
  db.max_log_file_size = size_t{4} << 20;
  db.db_host_id = "";  // table files do not name the machine
  db.stats_dump_period_sec = 0;
  db.stats_persist_period_sec = 0;
  db.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  return db;
}

rocksdb::ColumnFamilyOptions MakeFamilyOptions(const StoreOptions& options, bool rows,
                                               const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions family;
  family.write_buffer_size = rows ? options.memtable_bytes : kSmallMemtableBytes;
  family.max_write_buffer_number = 3;
  family.compaction_style = rocksdb::kCompactionStyleLevel;
  family.level_compaction_dynamic_level_bytes = true;
  // Nothing ages out by itself: implicit defaults of these two differ between versions.
  family.ttl = 0;
  family.periodic_compaction_seconds = 0;
  family.compression = Supports(rocksdb::kLZ4Compression) ? rocksdb::kLZ4Compression : rocksdb::kNoCompression;
  if (Supports(rocksdb::kZSTD)) {
    family.bottommost_compression = rocksdb::kZSTD;
    family.bottommost_compression_opts.enabled = true;
    family.bottommost_compression_opts.level = kZstdLevel;
  } else {
    family.bottommost_compression = family.compression;
  }
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.block_size = kBlockBytes;
  table.format_version = 5;
  table.checksum = rocksdb::kCRC32c;
  table.cache_index_and_filter_blocks = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return family;
}

rocksdb::WriteOptions DurableWrite() {
  rocksdb::WriteOptions options;
  options.sync = true;
  return options;
}

absl::Status FromRocks(absl::string_view doing, const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat("cannot ", doing, ": ", status.ToString());
  if (status.IsNotFound()) return absl::NotFoundError(message);
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message + "; free space on the data folder's disk");
  if (status.IsInvalidArgument()) return absl::InvalidArgumentError(message);
  if (status.IsNotSupported()) return absl::UnimplementedError(message);
  if (status.IsBusy() || status.IsTryAgain() || status.IsTimedOut()) return absl::UnavailableError(message);
  return absl::InternalError(message);
}

}  // namespace trimtab::server
