// Remembers why RocksDB stopped taking writes. While it recovers it answers Busy only, to every caller.
#ifndef TRIMTAB_SERVER_STORE_BACKGROUND_ERROR_H_
#define TRIMTAB_SERVER_STORE_BACKGROUND_ERROR_H_

#include <rocksdb/listener.h>
#include <rocksdb/status.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace trimtab::server {

// Thread-safe: RocksDB calls it from its background threads.
class BackgroundError final : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* error) override {
    absl::MutexLock lock(&mutex_);
    last_ = *error;
  }

  // `status`, or what lies behind it when it says only that the database is busy.
  rocksdb::Status Explain(const rocksdb::Status& status) const {
    absl::MutexLock lock(&mutex_);
    return status.IsBusy() && !last_.ok() ? last_ : status;
  }

 private:
  mutable absl::Mutex mutex_;
  rocksdb::Status last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_STORE_BACKGROUND_ERROR_H_
