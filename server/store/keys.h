// Keys of the on-disk format (docs/store.md). All integers are big-endian, so byte order is numeric order.
#ifndef TRIMTAB_SERVER_STORE_KEYS_H_
#define TRIMTAB_SERVER_STORE_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace trimtab::server {

void AppendBigEndian32(std::string* out, uint32_t value);
void AppendBigEndian64(std::string* out, uint64_t value);
// The caller has checked the length.
uint32_t ReadBigEndian32(absl::string_view bytes);
uint64_t ReadBigEndian64(absl::string_view bytes);

// rows: run(8) metric(4) rank(4) order(4) step(8). `order` numbers the incarnations of one rank, from 0.
struct RowKey {
  uint64_t run = 0;
  uint32_t metric = 0;
  uint32_t rank = 0;
  uint32_t order = 0;
  uint64_t step = 0;
};
inline constexpr size_t kRowKeyBytes = 28;
// Replaces *out, so that one buffer serves a whole batch.
void EncodeRowKey(const RowKey& key, std::string* out);
bool DecodeRowKey(absl::string_view bytes, RowKey* key);

// catalog: a letter, then integers.
std::string RunRecordKey(uint64_t run);                                         // 'R' run(8)
std::string MetricRecordKey(uint64_t run, uint32_t metric);                     // 'M' run(8) metric(4)
std::string RankRecordKey(uint64_t run, uint32_t rank);                         // 'K' run(8) rank(4)
std::string IncarnationRecordKey(uint64_t run, uint32_t rank, uint32_t order);  // 'I' run(8) rank(4) order(4)
// The prefix that holds all records of one letter and run.
std::string CatalogPrefix(char letter, uint64_t run);

// cursors: run(8) rank(4) order(4) → last durable sequence(8)
std::string CursorKey(uint64_t run, uint32_t rank, uint32_t order);

// events: 'E' id(8) → event; 'X' hash of the run name(8) id(8) → nothing, the index by run
std::string EventKey(uint64_t id);
std::string EventIndexPrefix(absl::string_view run);
std::string EventIndexKey(absl::string_view run, uint64_t id);

// The smallest string above every string with this prefix. The prefix must have a byte below 0xFF.
std::string AfterPrefix(std::string prefix);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_STORE_KEYS_H_
