// Writes one step's metrics into the ring. Names and axes are those of the metric schema (agent/core).
#ifndef TRIMTAB_AGENT_TORCH_STEP_WRITER_H_
#define TRIMTAB_AGENT_TORCH_STEP_WRITER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/torch/head_stats.h"
#include "agent/torch/spectral_tracker.h"
#include "agent/torch/switch_latch.h"
#include "trimtab/agent.h"

namespace trimtab::agent {

struct StepScalars {
  std::optional<float> loss, grad_norm, learning_rate, step_time_seconds, loss_scale;
  float agent_overhead_seconds = 0;
  uint64_t attention_calls = 0, attention_calls_passed = 0;
};

struct StepReport {
  uint64_t step = 0;
  int64_t time_unix_nanos = 0;
  StepScalars scalars;
  const StepStats* stats = nullptr;                                    // nullptr or empty: not sampled
  const std::vector<trimtab_activation_stats>* activations = nullptr;  // by layer
  const SpectralTracker* spectral = nullptr;                           // nullptr: not visited in this step
  const LayerModes* modes = nullptr;
  uint32_t layers = 0;  // attention layers known
};

// Not thread-safe. Buffers grow with layers and heads, then stay.
class StepWriter {
 public:
  StepWriter();
  // All tables of one record have the same shape: layers and heads are the largest of any source. Cells that nothing
  // was measured for hold 0 (a layer with attention_rows + attention_trivial_rows == 0 was not seen).
  trimtab_status Write(trimtab_agent* agent, const StepReport& report);

 private:
  void PutFloat(uint32_t metric, uint32_t dim0, uint32_t dim1);
  void PutWhole(uint32_t metric, uint32_t dim0, uint32_t dim1);
  void PutScalar(uint32_t metric, std::optional<float> value);
  void Scalars(const StepScalars& scalars);
  void Attention(const StepStats& stats);
  void Activations(const std::vector<trimtab_activation_stats>& activations);
  void Spectral(const SpectralTracker& spectral);
  template <typename F>
  void Cells(const StepStats& stats, F value);

  trimtab_agent* agent_ = nullptr;
  trimtab_status status_ = TRIMTAB_OK;
  uint32_t layers_ = 0, heads_ = 0;
  std::vector<float> floats_, residuals_, by_head_;
  std::vector<uint64_t> wholes_;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_STEP_WRITER_H_
