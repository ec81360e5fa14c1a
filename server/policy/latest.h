// The last value of every signal of a run, for evidence.
#ifndef TRIMTAB_SERVER_POLICY_LATEST_H_
#define TRIMTAB_SERVER_POLICY_LATEST_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/policy/signals.h"

namespace trimtab::server {

class LatestSignals {
 public:
  explicit LatestSignals(const SignalTable* table) : table_(table), entries_(table->size()) {}

  void Update(const StepCells& cells);
  void Clear() { entries_.assign(table_->size(), {}); }

  // The scalar's last value, if it was ever reported and finite.
  std::optional<double> Scalar(absl::string_view name) const;
  bool Seen(absl::string_view name) const;
  // By layer, whole numbers; empty when never reported. (attention_mode)
  std::vector<v1::KernelMode> Modes() const;

  // All signals with their step: {"loss": {"step": 7, "value": 2.1}, "max_attention_logit": {"step": 5, "value": 231.0,
  // "layer": 1, "median": 40.2}}. With a layer: that layer's values; without: the largest, and where it is. A scalar
  // that repeats its value bit for bit says "repeats" (a stale field, or a constant one).
  nlohmann::json Json(std::optional<uint32_t> layer) const;

 private:
  struct Entry {
    SignalCells cells;
    uint64_t step = 0;
    uint64_t repeats = 0;
  };
  const SignalTable* table_;
  std::vector<Entry> entries_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_LATEST_H_
