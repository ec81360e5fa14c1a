// Tells and remembers why RocksDB stopped taking writes. While it recovers it answers Busy only, to every caller, or
// lets a write wait without an answer.
#ifndef TRIMTAB_SERVER_STORE_BACKGROUND_ERROR_H_
#define TRIMTAB_SERVER_STORE_BACKGROUND_ERROR_H_

#include <rocksdb/listener.h>
#include <rocksdb/status.h>
#include <spdlog/spdlog.h>

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/store/rocks_options.h"

namespace trimtab::server {

// Thread-safe: RocksDB calls it from its background threads.
class BackgroundError final : public rocksdb::EventListener {
 public:
  // Logs an error once a minute, and at once when it is another one.
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* error) override {
    absl::MutexLock lock(&mutex_);
    const bool same = error->code() == last_.code() && error->subcode() == last_.subcode();
    last_ = *error;
    if (same && absl::Now() < next_line_) return;
    next_line_ = absl::Now() + absl::Minutes(1);
    spdlog::error("the store stopped taking steps, will go on by itself if it can: {}",
                  std::string(FromRocks("write in the background", *error).message()));
  }

  // `status`, or what lies behind it when it says only that the database is busy.
  rocksdb::Status Explain(const rocksdb::Status& status) const {
    absl::MutexLock lock(&mutex_);
    return status.IsBusy() && !last_.ok() ? last_ : status;
  }

 private:
  mutable absl::Mutex mutex_;
  rocksdb::Status last_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_line_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_STORE_BACKGROUND_ERROR_H_
