#include "server/ingest/write_queue.h"

namespace trimtab::server {

void WriteQueue::Push(WriteItem item) {
  absl::MutexLock lock(&mutex_);
  bytes_ += item.bytes;
  items_.push_back(std::move(item));
}

bool WriteQueue::full() const {
  absl::ReaderMutexLock lock(&mutex_);
  return bytes_ >= limit_bytes_;
}

bool WriteQueue::Pop(size_t max_bytes, absl::Duration timeout, std::vector<WriteItem>* items) {
  items->clear();
  absl::MutexLock lock(&mutex_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !items_.empty(); };
  mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout);
  size_t taken = 0;
  while (!items_.empty() && (items->empty() || taken + items_.front().bytes <= max_bytes)) {
    taken += items_.front().bytes;
    items->push_back(std::move(items_.front()));
    items_.pop_front();
  }
  return !items->empty() || !closed_;
}

void WriteQueue::Release(const std::vector<WriteItem>& items) {
  absl::MutexLock lock(&mutex_);
  for (const WriteItem& item : items) bytes_ -= item.bytes;
}

void WriteQueue::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

bool WriteQueue::Pause(const std::shared_ptr<Session>& session) {
  absl::MutexLock lock(&mutex_);
  if (bytes_ < limit_bytes_) return false;
  paused_.push_back(session);
  return true;
}

std::vector<std::shared_ptr<Session>> WriteQueue::TakePaused() {
  absl::MutexLock lock(&mutex_);
  if (bytes_ > limit_bytes_ / 2) return {};
  return std::exchange(paused_, {});
}

size_t WriteQueue::bytes() const {
  absl::ReaderMutexLock lock(&mutex_);
  return bytes_;
}

size_t WriteQueue::messages() const {
  absl::ReaderMutexLock lock(&mutex_);
  return items_.size();
}

}  // namespace trimtab::server
