// A fixed pool of threads over a bounded queue of connections, for httplib.
#ifndef TRIMTAB_SERVER_HTTP_REQUEST_QUEUE_H_
#define TRIMTAB_SERVER_HTTP_REQUEST_QUEUE_H_

#include <httplib.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace trimtab::server {

// When the queue is full the accepting thread waits, so that further connections stay in the kernel's listen backlog.
// Nothing accepted is dropped; each wait is counted.
class RequestQueue : public httplib::TaskQueue {
 public:
  // void in older httplib, bool ("taken") in newer.
  using EnqueueResult = decltype(std::declval<httplib::TaskQueue&>().enqueue(std::function<void()>()));

  RequestQueue(size_t threads, size_t max_queued, std::atomic<uint64_t>* delayed);
  ~RequestQueue() override { Stop(); }

  EnqueueResult enqueue(std::function<void()> task) override;
  // Runs what is queued, then ends the threads.
  void shutdown() override { Stop(); }

 private:
  void Work();
  void Stop();
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tasks_.size() < max_queued_; }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !tasks_.empty() || stopping_; }

  const size_t max_queued_;
  std::atomic<uint64_t>* const delayed_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_HTTP_REQUEST_QUEUE_H_
