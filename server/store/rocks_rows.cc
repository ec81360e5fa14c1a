#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/status/status.h"
#include "server/model/run_name.h"
#include "server/store/block_codec.h"
#include "server/store/keys.h"
#include "server/store/rocks_options.h"
#include "server/store/rocks_store.h"

namespace trimtab::server {

absl::Status RocksStore::StageSteps(const RankSteps& steps, rocksdb::WriteBatch* batch, uint64_t* rows,
                                    uint64_t* values) {
  const auto found = catalog_data_.runs.find(steps.rank.run);
  if (found == catalog_data_.runs.end()) return catalog_data_.UnknownRun(steps.rank.run);
  CatalogRun& run = found->second;
  uint32_t order = 0;
  const CatalogIncarnation* incarnation = run.Find(steps.rank.rank, steps.rank.incarnation, &order);
  if (incarnation == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", steps.rank.rank, " of run ", QuoteName(steps.rank.run), " is not registered"));
  }
  uint64_t last = incarnation->last_sequence;
  std::string key, value;
  for (const v1::Step* step : steps.steps) {
    if (step->sequence() <= last) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", step->sequence(), " does not follow ", last));
    }
    last = step->sequence();
    for (const v1::Block& block : step->blocks()) {
      const auto metric = run.metrics.find(block.metric());
      if (metric == run.metrics.end()) {
        return absl::InvalidArgumentError(absl::StrCat("metric ", block.metric(), " is not registered"));
      }
      EncodeRowKey({run.id, block.metric(), steps.rank.rank, order, step->step()}, &key);
      TRIMTAB_RETURN_IF_ERROR(EncodeBlock(key, block, metric->second.dtype(), step->time_unix_nanos(), &value));
      batch->Put(rows_, key, value);
      ++*rows;
      *values += block.float32_size() + block.uint64_size();
    }
  }
  if (last == incarnation->last_sequence) return absl::OkStatus();
  value.clear();
  AppendBigEndian64(&value, last);
  batch->Put(cursors_, CursorKey(run.id, steps.rank.rank, order), value);
  return absl::OkStatus();
}

absl::Status RocksStore::AppendSteps(absl::Span<const RankSteps> batch) {
  absl::MutexLock append(&append_mutex_);
  rocksdb::WriteBatch writes;
  uint64_t rows = 0, values = 0;
  {
    absl::ReaderMutexLock lock(&catalog_mutex_);
    for (const RankSteps& steps : batch) TRIMTAB_RETURN_IF_ERROR(StageSteps(steps, &writes, &rows, &values));
  }
  if (writes.Count() == 0) return absl::OkStatus();
  TRIMTAB_RETURN_IF_ERROR(Write("append steps", &writes));
  rows_written_ += rows;
  values_written_ += values;
  absl::MutexLock lock(&catalog_mutex_);
  for (const RankSteps& steps : batch) {
    if (steps.steps.empty()) continue;
    uint32_t order = 0;
    const auto run = catalog_data_.runs.find(steps.rank.run);
    if (run == catalog_data_.runs.end()) continue;
    CatalogIncarnation* incarnation = run->second.Find(steps.rank.rank, steps.rank.incarnation, &order);
    if (incarnation != nullptr) incarnation->last_sequence = steps.steps.back()->sequence();
  }
  return absl::OkStatus();
}

absl::StatusOr<RocksStore::SeriesRange> RocksStore::FindSeries(const std::string& run, const std::string& metric,
                                                               uint32_t rank) const {
  absl::ReaderMutexLock lock(&catalog_mutex_);
  const auto found = catalog_data_.runs.find(run);
  if (found == catalog_data_.runs.end()) return catalog_data_.UnknownRun(run);
  const v1::MetricDescriptor* descriptor = found->second.FindMetric(metric);
  if (descriptor == nullptr) {
    const auto& known = found->second.metrics;
    return absl::NotFoundError(absl::StrCat(
        "run ", QuoteName(run), " has no metric ", QuoteName(metric), "; it has ",
        absl::StrJoin(known, ", ", [](std::string* out, const auto& m) { out->append(m.second.name()); })));
  }
  SeriesRange range{.run = found->second.id, .metric = descriptor->id(), .rank = rank};
  const auto ranks = found->second.ranks.find(rank);
  if (ranks == found->second.ranks.end()) return range;
  for (const CatalogIncarnation& entry : ranks->second) range.incarnations.push_back(entry.incarnation);
  return range;
}

absl::Status RocksStore::ScanRows(
    const SeriesRange& series, uint64_t from_step, uint64_t to_step,
    const std::function<absl::StatusOr<bool>(uint32_t, uint64_t, absl::string_view, absl::string_view)>& visit) const {
  if (to_step == 0) to_step = std::numeric_limits<uint64_t>::max();
  std::string lower, upper;
  for (uint32_t order = 0; order < series.incarnations.size(); ++order) {
    EncodeRowKey({series.run, series.metric, series.rank, order, from_step}, &lower);
    EncodeRowKey({series.run, series.metric, series.rank, order, to_step}, &upper);
    upper.push_back('\0');  // to_step itself belongs to the range
    const rocksdb::Slice bound(upper);
    rocksdb::ReadOptions options;
    options.iterate_upper_bound = &bound;
    options.fill_cache = false;
    options.readahead_size = size_t{1} << 20;
    std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(options, rows_));
    for (at->Seek(lower); at->Valid(); at->Next()) {
      const absl::string_view key(at->key().data(), at->key().size());
      RowKey row;
      if (!DecodeRowKey(key, &row)) return absl::DataLossError("row key has a wrong length");
      TRIMTAB_ASSIGN_OR_RETURN(const bool more, visit(order, row.step, key, {at->value().data(), at->value().size()}));
      if (!more) return absl::OkStatus();
    }
    TRIMTAB_RETURN_IF_ERROR(FromRocks("read rows", at->status()));
  }
  return absl::OkStatus();
}

absl::Status RocksStore::ReadRows(const std::string& run, const std::string& metric, uint32_t rank, uint64_t from_step,
                                  uint64_t to_step, const std::function<bool(const Row&)>& visit) {
  TRIMTAB_ASSIGN_OR_RETURN(const SeriesRange series, FindSeries(run, metric, rank));
  Row row;
  return ScanRows(
      series, from_step, to_step,
      [&](uint32_t order, uint64_t step, absl::string_view key, absl::string_view value) -> absl::StatusOr<bool> {
        row.incarnation = series.incarnations[order];
        row.step = step;
        TRIMTAB_RETURN_IF_ERROR(DecodeBlock(key, value, &row.block, &row.time_unix_nanos));
        row.block.set_metric(series.metric);
        return visit(row);
      });
}

absl::StatusOr<uint64_t> RocksStore::CountRows(const std::string& run, const std::string& metric, uint32_t rank,
                                               uint64_t from_step, uint64_t to_step) {
  TRIMTAB_ASSIGN_OR_RETURN(const SeriesRange series, FindSeries(run, metric, rank));
  uint64_t count = 0;
  TRIMTAB_RETURN_IF_ERROR(
      ScanRows(series, from_step, to_step,
               [&](uint32_t, uint64_t, absl::string_view, absl::string_view) -> absl::StatusOr<bool> {
                 ++count;
                 return true;
               }));
  return count;
}

absl::StatusOr<std::optional<Store::Row>> RocksStore::LastRow(const std::string& run, const std::string& metric,
                                                              uint32_t rank) {
  TRIMTAB_ASSIGN_OR_RETURN(const SeriesRange series, FindSeries(run, metric, rank));
  if (series.incarnations.empty()) return std::nullopt;
  std::string first, last;
  const auto newest = static_cast<uint32_t>(series.incarnations.size() - 1);
  EncodeRowKey({series.run, series.metric, series.rank, 0, 0}, &first);
  EncodeRowKey({series.run, series.metric, series.rank, newest, std::numeric_limits<uint64_t>::max()}, &last);
  std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions(), rows_));
  at->SeekForPrev(last);
  TRIMTAB_RETURN_IF_ERROR(FromRocks("read rows", at->status()));
  if (!at->Valid() || at->key().compare(first) < 0) return std::nullopt;
  const absl::string_view key(at->key().data(), at->key().size());
  RowKey position;
  if (!DecodeRowKey(key, &position) || position.order > newest) return absl::DataLossError("row key is damaged");
  Row row{.incarnation = series.incarnations[position.order], .step = position.step};
  TRIMTAB_RETURN_IF_ERROR(DecodeBlock(key, {at->value().data(), at->value().size()}, &row.block, &row.time_unix_nanos));
  row.block.set_metric(series.metric);
  return row;
}

}  // namespace trimtab::server
