// Statistics of one step, per (layer, head), gathered from calls.
#ifndef TRIMTAB_AGENT_TORCH_HEAD_STATS_H_
#define TRIMTAB_AGENT_TORCH_HEAD_STATS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/agent.h"
#include "trimtab/kernels.h"

namespace trimtab::agent {

// Zero counts, max_logit at -infinity: the state the kernels ask for before first use.
void ClearHeadStats(std::span<trimtab_head_stats> stats);
// Adds counts and sums and takes the larger max_logit.
void AddHeadStats(const trimtab_head_stats& from, trimtab_head_stats* to);
// Adds only the sums that need O and dO.
void AddDeltaStats(const trimtab_head_stats& from, trimtab_head_stats* to);

// A table [layers][heads] that grows up to TRIMTAB_MAX_LAYERS and is reused from step to step; grows only while new
// layers or heads appear. Not thread-safe.
class StepStats {
 public:
  // Adds one call's statistics to a layer. False when layer is out of [0, TRIMTAB_MAX_LAYERS).
  bool Add(int layer, std::span<const trimtab_head_stats> stats);
  void Clear();

  uint32_t layers() const { return static_cast<uint32_t>(cells_.size()); }
  uint32_t heads() const { return heads_; }
  bool empty() const { return calls_ == 0; }
  // nullptr when the layer has fewer heads.
  const trimtab_head_stats* Cell(uint32_t layer, uint32_t head) const;

 private:
  std::vector<std::vector<trimtab_head_stats>> cells_;
  uint32_t heads_ = 0;
  uint64_t calls_ = 0;
};

// Values of the step schema that come from one cell. A cell without rows gives 0 everywhere.
struct CellMetrics {
  float max_attention_logit, repeated_max_share, p_one_share, attention_entropy, sink_share;
  float delta_residual_sum, delta_residual_sum_squares, delta_residual_z, attention_output_error;
};
CellMetrics Summarize(const trimtab_head_stats& stats);

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_HEAD_STATS_H_
