#include "server/store/rocks_store.h"

#include <rocksdb/cache.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/status/status.h"
#include "server/model/limits.h"
#include "server/model/run_name.h"
#include "server/store/data_folder.h"
#include "server/store/keys.h"
#include "server/store/rocks_options.h"

namespace trimtab::server {
namespace {

rocksdb::Slice Bytes(absl::string_view text) { return {text.data(), text.size()}; }
absl::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// A catalog key is a letter, run(8), then four-byte numbers.
uint64_t RunOf(absl::string_view key) { return ReadBigEndian64(key.substr(1)); }
uint32_t NumberOf(absl::string_view key, size_t index) { return ReadBigEndian32(key.substr(9 + 4 * index)); }

// Table and log files. Files come and go meanwhile: what cannot be read any more counts as nothing.
uint64_t BytesOnDisk(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string extension = at->path().extension().string();
    if (extension != ".sst" && extension != ".log") continue;
    std::error_code gone;
    const uintmax_t size = at->file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  TRIMTAB_RETURN_IF_ERROR(PrepareDataFolder(options.path, kFormatVersion));
  auto store = std::make_unique<RocksStore>(options);
  TRIMTAB_RETURN_IF_ERROR(store->OpenDatabase());
  return store;
}

RocksStore::~RocksStore() {
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* handle : handles_) db_->DestroyColumnFamilyHandle(handle);
  db_->Close();
}

absl::Status RocksStore::OpenDatabase() {
  const auto cache = rocksdb::NewLRUCache(options_.block_cache_bytes);
  const auto small = MakeFamilyOptions(options_, /*rows=*/false, cache);
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {{rocksdb::kDefaultColumnFamilyName, small},
                                                                 {"catalog", small},
                                                                 {"rows", MakeFamilyOptions(options_, true, cache)},
                                                                 {"events", small},
                                                                 {"cursors", small},
                                                                 {"state", small}};
  const std::string folder = options_.path + "/rocksdb";
  rocksdb::DB* db = nullptr;
  rocksdb::DBOptions settings = MakeDatabaseOptions(options_);
  settings.listeners.push_back(background_error_);
  const rocksdb::Status opened = rocksdb::DB::Open(settings, folder, families, &handles_, &db);
  if (!opened.ok()) {
    const std::string text = opened.ToString();
    if (!absl::StrContains(text, "LOCK")) return FromRocks(absl::StrCat("open the store in ", options_.path), opened);
    const bool own = absl::StrContains(text, "current process");
    const std::string holder = own ? std::string("this process") : LockHolder(folder + "/LOCK");
    return absl::FailedPreconditionError(absl::StrCat("data folder ", options_.path, " is in use by ", holder,
                                                      "; stop it or give another folder with --data-dir"));
  }
  db_.reset(db);
  catalog_ = handles_[1];
  rows_ = handles_[2];
  events_ = handles_[3];
  cursors_ = handles_[4];
  state_ = handles_[5];
  {
    absl::MutexLock lock(&event_mutex_);
    std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions(), events_));
    at->SeekForPrev(Bytes(EventKey(UINT64_MAX)));
    if (at->Valid() && at->key().size() == 9 && at->key()[0] == 'E') last_event_id_ = RunOf(View(at->key()));
    event_count_ = last_event_id_;
  }
  absl::MutexLock lock(&catalog_mutex_);
  return LoadCatalog();
}

absl::Status RocksStore::LoadCatalog() {
  catalog_data_ = Catalog();
  std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions(), catalog_));
  for (at->Seek("R"); at->Valid() && at->key()[0] == 'R'; at->Next()) {
    TRIMTAB_RETURN_IF_ERROR(LoadRun(View(at->key()), View(at->value())));
  }
  return FromRocks("read the catalog", at->status());
}

absl::Status RocksStore::LoadRun(absl::string_view key, absl::string_view value) {
  std::string name;
  CatalogRun run;
  run.id = RunOf(key);
  TRIMTAB_RETURN_IF_ERROR(DecodeRunRecord(value, &name, &run.first_seen_unix_nanos));
  catalog_data_.last_run_id = std::max(catalog_data_.last_run_id, run.id);
  std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions(), catalog_));
  const std::string metrics = CatalogPrefix('M', run.id);
  for (at->Seek(metrics); at->Valid() && absl::StartsWith(View(at->key()), metrics); at->Next()) {
    v1::MetricDescriptor metric;
    if (!metric.ParseFromArray(at->value().data(), static_cast<int>(at->value().size()))) {
      return absl::DataLossError("metric record is damaged");
    }
    run.metrics[metric.id()] = std::move(metric);
  }
  const std::string incarnations = CatalogPrefix('I', run.id);
  for (at->Seek(incarnations); at->Valid() && absl::StartsWith(View(at->key()), incarnations); at->Next()) {
    const uint32_t rank = NumberOf(View(at->key()), 0), order = NumberOf(View(at->key()), 1);
    auto& list = run.ranks[rank];
    if (order != list.size() || at->value().size() != 8) return absl::DataLossError("incarnation record is damaged");
    CatalogIncarnation entry{.incarnation = ReadBigEndian64(View(at->value()))};
    std::string cursor;
    const auto read = db_->Get(rocksdb::ReadOptions(), cursors_, Bytes(CursorKey(run.id, rank, order)), &cursor);
    if (read.ok() && cursor.size() == 8) entry.last_sequence = ReadBigEndian64(cursor);
    if (!read.ok() && !read.IsNotFound()) return FromRocks("read a cursor", read);
    list.push_back(entry);
  }
  TRIMTAB_RETURN_IF_ERROR(FromRocks("read the catalog", at->status()));
  catalog_data_.runs[name] = std::move(run);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RocksStore::StageRank(const RankRegistration& rank, int64_t now, rocksdb::WriteBatch* batch) {
  const v1::RankInfo& info = *rank.info;
  TRIMTAB_RETURN_IF_ERROR(ValidateRunName(info.run()));
  if (const auto known = catalog_data_.runs.find(info.run()); known != catalog_data_.runs.end()) {
    for (const v1::MetricDescriptor& metric : rank.metrics) {
      const auto found = known->second.metrics.find(metric.id());
      if (found != known->second.metrics.end()) TRIMTAB_RETURN_IF_ERROR(CheckSameMetric(found->second, metric));
    }
  }
  // Nothing below fails, so a refused rank leaves no trace.
  CatalogRun& run = catalog_data_.runs[info.run()];
  if (run.id == 0) {
    run.id = ++catalog_data_.last_run_id;
    run.first_seen_unix_nanos = now;
    batch->Put(catalog_, Bytes(RunRecordKey(run.id)), Bytes(EncodeRunRecord(info.run(), now)));
  }
  for (const v1::MetricDescriptor& metric : rank.metrics) {
    if (!run.metrics.try_emplace(metric.id(), metric).second) continue;
    batch->Put(catalog_, Bytes(MetricRecordKey(run.id, metric.id())), Bytes(metric.SerializeAsString()));
  }
  uint32_t order = 0;
  const CatalogIncarnation* found = run.Find(info.rank(), info.incarnation(), &order);
  if (found == nullptr) {
    auto& list = run.ranks[info.rank()];
    order = static_cast<uint32_t>(list.size());
    found = &list.emplace_back(CatalogIncarnation{.incarnation = info.incarnation()});
    std::string value;
    AppendBigEndian64(&value, info.incarnation());
    batch->Put(catalog_, Bytes(IncarnationRecordKey(run.id, info.rank(), order)), Bytes(value));
  }
  batch->Put(catalog_, Bytes(RankRecordKey(run.id, info.rank())), Bytes(info.SerializeAsString()));
  return found->last_sequence;
}

std::vector<absl::StatusOr<uint64_t>> RocksStore::RegisterRanks(absl::Span<const RankRegistration> ranks) {
  const int64_t now = absl::GetCurrentTimeNanos();
  std::vector<absl::StatusOr<uint64_t>> answers;
  answers.reserve(ranks.size());
  rocksdb::WriteBatch batch;
  absl::MutexLock lock(&catalog_mutex_);
  for (const RankRegistration& rank : ranks) answers.push_back(StageRank(rank, now, &batch));
  const absl::Status written = batch.Count() == 0 ? absl::OkStatus() : Write("register ranks", &batch);
  if (written.ok()) return answers;
  // The catalog in memory is ahead of the disk: read it back.
  const absl::Status reloaded = LoadCatalog();
  for (auto& answer : answers) {
    if (answer.ok()) answer = reloaded.ok() ? written : reloaded;
  }
  return answers;
}

absl::Status RocksStore::UpdateRanks(absl::Span<const v1::RankInfo* const> infos) {
  rocksdb::WriteBatch batch;
  absl::MutexLock lock(&catalog_mutex_);
  for (const v1::RankInfo* info : infos) {
    const auto found = catalog_data_.runs.find(info->run());
    if (found == catalog_data_.runs.end()) return catalog_data_.UnknownRun(info->run());
    const auto rank = found->second.ranks.find(info->rank());
    if (rank == found->second.ranks.end() || rank->second.back().incarnation != info->incarnation()) continue;
    batch.Put(catalog_, Bytes(RankRecordKey(found->second.id, info->rank())), Bytes(info->SerializeAsString()));
  }
  return batch.Count() == 0 ? absl::OkStatus() : Write("update ranks", &batch);
}

absl::StatusOr<StoredRun> RocksStore::ReadRun(const std::string& name, const CatalogRun& run) const {
  StoredRun stored;
  stored.run = name;
  stored.id = run.id;
  stored.first_seen_unix_nanos = run.first_seen_unix_nanos;
  for (const auto& [id, metric] : run.metrics) stored.metrics.push_back(metric);
  std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions(), catalog_));
  const std::string ranks = CatalogPrefix('K', run.id);
  for (at->Seek(ranks); at->Valid() && absl::StartsWith(View(at->key()), ranks); at->Next()) {
    v1::RankInfo info;
    if (!info.ParseFromArray(at->value().data(), static_cast<int>(at->value().size()))) {
      return absl::DataLossError(absl::StrCat("rank record of run ", QuoteName(name), " is damaged"));
    }
    stored.ranks.push_back(std::move(info));
  }
  TRIMTAB_RETURN_IF_ERROR(FromRocks("read the catalog", at->status()));
  return stored;
}

absl::StatusOr<std::vector<StoredRun>> RocksStore::ListRuns() {
  absl::ReaderMutexLock lock(&catalog_mutex_);
  std::vector<StoredRun> runs;
  for (const auto& [name, run] : catalog_data_.runs) {
    TRIMTAB_ASSIGN_OR_RETURN(StoredRun stored, ReadRun(name, run));
    runs.push_back(std::move(stored));
  }
  return runs;
}

absl::StatusOr<StoredRun> RocksStore::GetRun(const std::string& run) {
  absl::ReaderMutexLock lock(&catalog_mutex_);
  const auto found = catalog_data_.runs.find(run);
  if (found == catalog_data_.runs.end()) return catalog_data_.UnknownRun(run);
  return ReadRun(run, found->second);
}

absl::Status RocksStore::Write(absl::string_view doing, rocksdb::WriteBatch* batch) {
  if (failed_) {
    const rocksdb::Status resumed = db_->Resume();
    if (!resumed.ok() && resumed.severity() >= rocksdb::Status::Severity::kFatalError) {
      return absl::AbortedError(
          absl::StrCat("the store is broken until it is opened again: cannot ", doing, ": ", resumed.ToString()));
    }
    TRIMTAB_RETURN_IF_ERROR(FromRocks(doing, background_error_->Explain(resumed)));
    failed_ = false;
  }
  const absl::Time start = absl::Now();
  const rocksdb::Status status = db_->Write(DurableWrite(), batch);
  last_sync_seconds_ = absl::ToDoubleSeconds(absl::Now() - start);
  failed_ = !status.ok();
  if (status.ok()) ++synced_batches_;
  return FromRocks(doing, background_error_->Explain(status));
}

absl::Status RocksStore::PutState(const std::string& key, const std::string& value) {
  if (key.empty() || key.size() > kMaxStateKeyBytes) return absl::InvalidArgumentError("state key length");
  rocksdb::WriteBatch batch;
  batch.Put(state_, key, value);
  return Write("put state", &batch);
}

absl::StatusOr<std::string> RocksStore::GetState(const std::string& key) {
  std::string value;
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), state_, key, &value);
  if (status.IsNotFound()) return absl::NotFoundError(absl::StrCat("no state ", QuoteName(key)));
  TRIMTAB_RETURN_IF_ERROR(FromRocks("get state", status));
  return value;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> RocksStore::ListState(const std::string& prefix) {
  std::vector<std::pair<std::string, std::string>> found;
  std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions(), state_));
  for (at->Seek(prefix); at->Valid() && absl::StartsWith(View(at->key()), prefix); at->Next()) {
    found.emplace_back(at->key().ToString(), at->value().ToString());
  }
  TRIMTAB_RETURN_IF_ERROR(FromRocks("list state", at->status()));
  return found;
}

absl::Status RocksStore::Compact() {
  rocksdb::CompactRangeOptions options;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  for (rocksdb::ColumnFamilyHandle* family : handles_) {
    TRIMTAB_RETURN_IF_ERROR(FromRocks("flush", db_->Flush(rocksdb::FlushOptions(), family)));
    TRIMTAB_RETURN_IF_ERROR(FromRocks("compact", db_->CompactRange(options, family, nullptr, nullptr)));
  }
  return absl::OkStatus();
}

Store::Statistics RocksStore::statistics() const {
  Statistics s;
  s.rows = rows_written_;
  s.values = values_written_;
  s.events = event_count_;
  s.synced_batches = synced_batches_;
  s.last_sync_seconds = last_sync_seconds_;
  s.bytes_on_disk = BytesOnDisk(options_.path + "/rocksdb");
  return s;
}

}  // namespace trimtab::server
