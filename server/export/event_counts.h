// Counts decisions in the audit log by run: switches by result, alerts by rule.
#ifndef TRIMTAB_SERVER_EXPORT_EVENT_COUNTS_H_
#define TRIMTAB_SERVER_EXPORT_EVENT_COUNTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "trimtab/v1/common.pb.h"

namespace trimtab::server {

// Runs counted at most; further ones are counted together in refused().
inline constexpr size_t kMaxCountedRuns = 4096;
inline constexpr size_t kMaxCountedRules = 128;  // of one run

class EventCounts {
 public:
  struct OfRun {
    uint64_t applied = 0, refused = 0, rollbacks = 0;
    std::map<std::string, uint64_t> alerts;  // by rule
  };

  // Alerts of these rules count from zero in every run: a counter that appears with its first alert would hide it from
  // changes() and increase().
  explicit EventCounts(std::vector<std::string> rules = {}) : rules_(std::move(rules)) {}

  void Add(const v1::Event& event);
  OfRun Of(const std::string& run) const;  // zeros for a run without decisions
  uint64_t refused() const;

 private:
  const std::vector<std::string> rules_;
  mutable absl::Mutex mutex_;
  std::map<std::string, OfRun> runs_ ABSL_GUARDED_BY(mutex_);
  uint64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_EXPORT_EVENT_COUNTS_H_
