// Wakes readers that follow the audit log. The events themselves are read from the store, so order and completeness
// do not depend on who appended.
#ifndef TRIMTAB_SERVER_QUERY_EVENT_TAIL_H_
#define TRIMTAB_SERVER_QUERY_EVENT_TAIL_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/model/roles.h"

namespace trimtab::server {

class EventTail final : public EventListener {
 public:
  void OnEvent(const v1::Event& event) override;

  // Waits until an event with an id above `after_id` was appended, `timeout` passed, or Close. False when closed.
  bool Wait(uint64_t after_id, absl::Duration timeout);
  // The highest id appended since this listens; 0 when there was none.
  uint64_t newest() const;
  // Wakes all and for ever.
  void Close();

 private:
  mutable absl::Mutex mutex_;
  uint64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_QUERY_EVENT_TAIL_H_
