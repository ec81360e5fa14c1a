#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/status/status.h"
#include "server/store/crc32c.h"
#include "server/store/keys.h"
#include "server/store/rocks_options.h"
#include "server/store/rocks_store.h"

namespace trimtab::server {
namespace {

constexpr char kEventVersion = 1;
constexpr size_t kEventHeaderBytes = 5;  // version, CRC-32C of the rest (big-endian)
constexpr size_t kMaxEventBytes = size_t{1} << 20;

absl::Status DecodeEvent(absl::string_view value, v1::Event* event) {
  if (value.size() < kEventHeaderBytes || value[0] != kEventVersion) return absl::DataLossError("event is damaged");
  const absl::string_view body = value.substr(kEventHeaderBytes);
  if (ReadBigEndian32(value.substr(1)) != ExtendCrc32c(0, body)) return absl::DataLossError("event fails its checksum");
  if (!event->ParseFromArray(body.data(), static_cast<int>(body.size())))
    return absl::DataLossError("event is damaged");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> RocksStore::Append(v1::Event event) {
  if (event.time_unix_nanos() == 0) event.set_time_unix_nanos(absl::GetCurrentTimeNanos());
  if (event.ByteSizeLong() > kMaxEventBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("event of ", event.ByteSizeLong(), " bytes; the limit is ", kMaxEventBytes));
  }
  std::vector<EventListener*> listeners;
  {
    absl::MutexLock lock(&event_mutex_);
    event.set_id(last_event_id_ + 1);
    const std::string body = event.SerializeAsString();
    std::string value(1, kEventVersion);
    AppendBigEndian32(&value, ExtendCrc32c(0, body));
    value += body;
    rocksdb::WriteBatch batch;
    batch.Put(events_, EventKey(event.id()), value);
    batch.Put(events_, EventIndexKey(event.run(), event.id()), "");
    TRIMTAB_RETURN_IF_ERROR(Write("append an event", &batch));
    last_event_id_ = event.id();
    event_count_ = event.id();
    listeners = listeners_;
  }
  for (EventListener* listener : listeners) listener->OnEvent(event);
  return event.id();
}

void RocksStore::AddEventListener(EventListener* listener) {
  absl::MutexLock lock(&event_mutex_);
  listeners_.push_back(listener);
}

absl::StatusOr<std::vector<v1::Event>> RocksStore::ReadEvents(const std::string& run, uint64_t after_id,
                                                              uint64_t max_events, bool newest) {
  // The ids to read: those of the index for one run, those of the events themselves for all.
  const std::string prefix = run.empty() ? std::string("E") : EventIndexPrefix(run);
  std::string lower = prefix, upper = prefix;
  if (after_id == UINT64_MAX) return std::vector<v1::Event>();
  AppendBigEndian64(&lower, after_id + 1);
  AppendBigEndian64(&upper, UINT64_MAX);
  std::vector<v1::Event> events;
  std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions(), events_));
  newest ? at->SeekForPrev(upper) : at->Seek(lower);
  while (events.size() < max_events && at->Valid() && at->key().compare(lower) >= 0 && at->key().compare(upper) <= 0) {
    v1::Event event;
    if (run.empty()) {
      TRIMTAB_RETURN_IF_ERROR(DecodeEvent({at->value().data(), at->value().size()}, &event));
    } else {
      const absl::string_view key(at->key().data(), at->key().size());
      std::string value;
      const std::string event_key = EventKey(ReadBigEndian64(key.substr(prefix.size())));
      TRIMTAB_RETURN_IF_ERROR(FromRocks("read an event", db_->Get(rocksdb::ReadOptions(), events_, event_key, &value)));
      TRIMTAB_RETURN_IF_ERROR(DecodeEvent(value, &event));
    }
    // Two names may share a hash.
    if (run.empty() || event.run() == run) events.push_back(std::move(event));
    newest ? at->Prev() : at->Next();
  }
  TRIMTAB_RETURN_IF_ERROR(FromRocks("read events", at->status()));
  if (newest) std::reverse(events.begin(), events.end());
  return events;
}

}  // namespace trimtab::server
