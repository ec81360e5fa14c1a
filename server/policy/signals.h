// The signals that a policy reads, and how a rank's step is reduced to them before it is queued.
#ifndef TRIMTAB_SERVER_POLICY_SIGNALS_H_
#define TRIMTAB_SERVER_POLICY_SIGNALS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/policy/policy.h"
#include "trimtab/v1/common.pb.h"
#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::server {

// Names to small indices: the signals of the rules, then those that evidence always carries. Immutable.
class SignalTable {
 public:
  explicit SignalTable(const Policy& policy);
  std::optional<size_t> Find(absl::string_view name) const;
  const std::string& name(size_t index) const { return names_[index]; }
  size_t size() const { return names_.size(); }

 private:
  std::vector<std::string> names_;
};

// One signal of one layer (or of the run, when it is a scalar) at one step, folded over heads and ranks.
struct Cell {
  double value = 0;                                 // of the finite and infinite values; NaN when there was none
  double sum = 0;                                   // for means
  uint32_t values = 0;                              // ranks that gave a value
  uint32_t nonfinite = 0;                           // NaN or Inf seen (heads x ranks)
  uint32_t worst_rank = 0, worst_head = 0;          // where the largest value is
  uint32_t nonfinite_rank = 0, nonfinite_head = 0;  // where the first non-finite one is
};

struct SignalCells {
  bool present = false;
  bool layered = false;
  std::vector<Cell> cells;  // one, or one a layer
};

// One step of one rank, or of all ranks once folded.
struct StepCells {
  uint64_t step = 0;
  int64_t time_unix_nanos = 0;
  uint32_t ranks = 0;
  std::vector<SignalCells> signals;  // by SignalTable index

  size_t bytes() const;  // an estimate, for the bound of the queue
};

// What a rank's metric ids mean for the policy.
struct MetricMap {
  struct Entry {
    size_t signal = 0;
    v1::Aggregation aggregation = v1::AGGREGATION_LAST;
    bool layered = false;
    bool heads = false;
  };
  std::unordered_map<uint32_t, Entry> by_id;
  std::vector<v1::Aggregation> aggregation;  // by signal
};

MetricMap MapMetrics(const SignalTable& table, const std::vector<v1::MetricDescriptor>& metrics);

// Heads are folded by maximum. Blocks that the policy does not read, or whose shape does not fit their data, are left
// out. Cost: one pass over the values that are read.
StepCells ReduceStep(const SignalTable& table, const MetricMap& map, uint32_t rank, const v1::Step& step);

// Adds `from` (one more rank) to `into`, by each signal's aggregation.
void FoldRank(const std::vector<v1::Aggregation>& aggregation, const StepCells& from, StepCells* into);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_SIGNALS_H_
