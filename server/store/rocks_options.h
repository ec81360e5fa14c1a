// RocksDB settings, every one that matters set explicitly so that a version's defaults cannot change behaviour.
#ifndef TRIMTAB_SERVER_STORE_ROCKS_OPTIONS_H_
#define TRIMTAB_SERVER_STORE_ROCKS_OPTIONS_H_

#include <rocksdb/options.h>
#include <rocksdb/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/store/store.h"

namespace trimtab::server {

rocksdb::DBOptions MakeDatabaseOptions(const StoreOptions& options);

// `rows` uses the large memtable; the other families are small.
rocksdb::ColumnFamilyOptions MakeFamilyOptions(const StoreOptions& options, bool rows,
                                               const std::shared_ptr<rocksdb::Cache>& cache);

// WAL synced before the call returns.
rocksdb::WriteOptions DurableWrite();

// `doing` names the operation for the message: "append steps".
absl::Status FromRocks(absl::string_view doing, const rocksdb::Status& status);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_STORE_ROCKS_OPTIONS_H_
