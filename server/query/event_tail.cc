#include "server/query/event_tail.h"

#include <algorithm>

namespace trimtab::server {

void EventTail::OnEvent(const v1::Event& event) {
  absl::MutexLock lock(&mutex_);
  newest_ = std::max(newest_, event.id());
}

bool EventTail::Wait(uint64_t after_id, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || newest_ > after_id; };
  mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout);
  return !closed_;
}

uint64_t EventTail::newest() const {
  absl::ReaderMutexLock lock(&mutex_);
  return newest_;
}

void EventTail::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

}  // namespace trimtab::server
