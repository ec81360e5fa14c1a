#include "server/http/request_queue.h"

#include <algorithm>

namespace trimtab::server {

RequestQueue::RequestQueue(size_t threads, size_t max_queued, std::atomic<uint64_t>* delayed)
    : max_queued_(std::max<size_t>(max_queued, 1)), delayed_(delayed) {
  threads_.reserve(std::max<size_t>(threads, 1));
  for (size_t i = 0; i < std::max<size_t>(threads, 1); ++i) threads_.emplace_back([this] { Work(); });
}

RequestQueue::EnqueueResult RequestQueue::enqueue(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (!HasRoom()) {
    delayed_->fetch_add(1, std::memory_order_relaxed);
    mutex_.Await(absl::Condition(this, &RequestQueue::HasRoom));
  }
  tasks_.push_back(std::move(task));
  return EnqueueResult(true);
}

void RequestQueue::Work() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &RequestQueue::HasWork));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void RequestQueue::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace trimtab::server
