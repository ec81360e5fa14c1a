// The catalog in memory: which runs, metrics, ranks and incarnations there are. Loaded at open, kept in step by the
// store. Not thread-safe; the store guards it. Costs about 100 bytes an incarnation and 200 bytes a metric.
#ifndef TRIMTAB_SERVER_STORE_CATALOG_H_
#define TRIMTAB_SERVER_STORE_CATALOG_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "trimtab/v1/common.pb.h"

namespace trimtab::server {

struct CatalogIncarnation {
  uint64_t incarnation = 0;
  uint64_t last_sequence = 0;  // durable; 0: nothing yet
};

struct CatalogRun {
  uint64_t id = 0;
  int64_t first_seen_unix_nanos = 0;
  std::map<uint32_t, v1::MetricDescriptor> metrics;
  absl::flat_hash_map<uint32_t, std::vector<CatalogIncarnation>> ranks;  // index: order of joining

  // nullptr when the incarnation is not known; sets *order otherwise.
  CatalogIncarnation* Find(uint32_t rank, uint64_t incarnation, uint32_t* order);
  const v1::MetricDescriptor* FindMetric(const std::string& name) const;
};

struct Catalog {
  std::map<std::string, CatalogRun> runs;  // by name
  uint64_t last_run_id = 0;

  // The first few run names, for a NOT_FOUND message.
  absl::Status UnknownRun(const std::string& run) const;
};

// "R" records: version byte, first seen (8), name.
std::string EncodeRunRecord(const std::string& name, int64_t first_seen_unix_nanos);
absl::Status DecodeRunRecord(absl::string_view value, std::string* name, int64_t* first_seen_unix_nanos);

// INVALID_ARGUMENT when the two cannot share an id in one run: another name, dtype or axes.
absl::Status CheckSameMetric(const v1::MetricDescriptor& known, const v1::MetricDescriptor& offered);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_STORE_CATALOG_H_
