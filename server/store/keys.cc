#include "server/store/keys.h"

#include <cassert>

namespace trimtab::server {
namespace {

uint64_t Fnv1a(absl::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return hash;
}

std::string Letter(char letter, uint64_t first) {
  std::string key(1, letter);
  AppendBigEndian64(&key, first);
  return key;
}

}  // namespace

void AppendBigEndian32(std::string* out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out->push_back(static_cast<char>(value >> shift));
}

void AppendBigEndian64(std::string* out, uint64_t value) {
  for (int shift = 56; shift >= 0; shift -= 8) out->push_back(static_cast<char>(value >> shift));
}

uint32_t ReadBigEndian32(absl::string_view bytes) {
  assert(bytes.size() >= 4);
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = (value << 8) | static_cast<uint8_t>(bytes[i]);
  return value;
}

uint64_t ReadBigEndian64(absl::string_view bytes) {
  assert(bytes.size() >= 8);
  return (uint64_t{ReadBigEndian32(bytes)} << 32) | ReadBigEndian32(bytes.substr(4));
}

void EncodeRowKey(const RowKey& key, std::string* out) {
  out->clear();
  AppendBigEndian64(out, key.run);
  AppendBigEndian32(out, key.metric);
  AppendBigEndian32(out, key.rank);
  AppendBigEndian32(out, key.order);
  AppendBigEndian64(out, key.step);
}

bool DecodeRowKey(absl::string_view bytes, RowKey* key) {
  if (bytes.size() != kRowKeyBytes) return false;
  key->run = ReadBigEndian64(bytes);
  key->metric = ReadBigEndian32(bytes.substr(8));
  key->rank = ReadBigEndian32(bytes.substr(12));
  key->order = ReadBigEndian32(bytes.substr(16));
  key->step = ReadBigEndian64(bytes.substr(20));
  return true;
}

std::string RunRecordKey(uint64_t run) { return Letter('R', run); }

std::string MetricRecordKey(uint64_t run, uint32_t metric) {
  std::string key = Letter('M', run);
  AppendBigEndian32(&key, metric);
  return key;
}

std::string RankRecordKey(uint64_t run, uint32_t rank) {
  std::string key = Letter('K', run);
  AppendBigEndian32(&key, rank);
  return key;
}

std::string IncarnationRecordKey(uint64_t run, uint32_t rank, uint32_t order) {
  std::string key = Letter('I', run);
  AppendBigEndian32(&key, rank);
  AppendBigEndian32(&key, order);
  return key;
}

std::string CatalogPrefix(char letter, uint64_t run) { return Letter(letter, run); }

std::string CursorKey(uint64_t run, uint32_t rank, uint32_t order) {
  std::string key;
  AppendBigEndian64(&key, run);
  AppendBigEndian32(&key, rank);
  AppendBigEndian32(&key, order);
  return key;
}

std::string EventKey(uint64_t id) { return Letter('E', id); }
std::string EventIndexPrefix(absl::string_view run) { return Letter('X', Fnv1a(run)); }

std::string EventIndexKey(absl::string_view run, uint64_t id) {
  std::string key = EventIndexPrefix(run);
  AppendBigEndian64(&key, id);
  return key;
}

std::string AfterPrefix(std::string prefix) {
  while (!prefix.empty() && static_cast<uint8_t>(prefix.back()) == 0xFF) prefix.pop_back();
  assert(!prefix.empty());
  ++prefix.back();
  return prefix;
}

}  // namespace trimtab::server
