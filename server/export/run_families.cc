#include "server/export/run_families.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

namespace trimtab::server {
namespace {

constexpr double kNanosPerSecond = 1e9;

struct ScalarRow {
  const char* metric;
  const char* family;
  const char* help;
};
constexpr ScalarRow kScalars[] = {
    {"loss", "trimtab_loss", "Training loss of the last step."},
    {"grad_norm", "trimtab_grad_norm", "Global gradient norm of the last step."},
    {"learning_rate", "trimtab_learning_rate", "Learning rate of the last step."},
    {"step_time_seconds", "trimtab_step_time_seconds", "Wall time of the last step."},
    {"agent_overhead_seconds", "trimtab_agent_overhead_seconds", "Time of the last step spent inside the agent."},
    {"loss_scale", "trimtab_loss_scale", "Loss scale in use."},
};

struct LayerRow {
  const char* metric;
  const char* family;
  const char* help;
  const char* matrix;  // value of a further label, or nullptr
};
constexpr const char* kSpectralHelp = "Largest singular value of an attention projection (lower bound).";
constexpr LayerRow kLayers[] = {
    {"max_attention_logit", "trimtab_max_attention_logit", "Largest attention logit, over heads and ranks.", nullptr},
    {"spectral_norm_q", "trimtab_spectral_norm", kSpectralHelp, "q"},
    {"spectral_norm_k", "trimtab_spectral_norm", kSpectralHelp, "k"},
    {"spectral_norm_v", "trimtab_spectral_norm", kSpectralHelp, "v"},
    {"spectral_norm_o", "trimtab_spectral_norm", kSpectralHelp, "o"},
    {"repeated_max_share", "trimtab_repeated_max_share", "Rows whose maximum repeats, mean over heads and ranks.",
     nullptr},
    {"p_one_share", "trimtab_p_one_share", "Entries whose unnormalised P is exactly 1, mean over heads and ranks.",
     nullptr},
    {"attention_entropy", "trimtab_attention_entropy", "Entropy of attention rows in nats, mean over heads and ranks.",
     nullptr},
    {"sink_share", "trimtab_sink_share", "Probability of the first key, mean over heads and ranks.", nullptr},
    {"attention_output_error", "trimtab_attention_output_error", "Relative rounding error of the stored output.",
     nullptr},
    {"activation_abs_max", "trimtab_activation_abs_max", "Largest magnitude of a block's output.", nullptr},
    {"activation_rms", "trimtab_activation_rms", "Root mean square of a block's output.", nullptr},
};

const char* ModeName(v1::KernelMode mode) {
  switch (mode) {
    case v1::KERNEL_MODE_NATIVE:
      return "native";
    case v1::KERNEL_MODE_OBSERVE:
      return "observe";
    case v1::KERNEL_MODE_STABILIZED:
      return "stabilized";
    case v1::KERNEL_MODE_PAPER:
      return "paper";
    default:
      return "unknown";
  }
}

struct Latest {
  const v1::MetricDescriptor* metric;
  const v1::Block* block;
};
using LatestByName = std::map<std::string, Latest>;

LatestByName IndexLatest(const v1::RunState& state) {
  std::map<uint32_t, const v1::MetricDescriptor*> by_id;
  for (const v1::MetricDescriptor& metric : state.metrics()) by_id[metric.id()] = &metric;
  LatestByName latest;
  for (const v1::Block& block : state.latest())
    latest[by_id.at(block.metric())->name()] = {by_id.at(block.metric()), &block};
  return latest;
}

// Folds the heads of one layer by the metric's aggregation. NaN means "no sample" and is left out; all NaN gives NaN.
double FoldHeads(const Latest& latest, uint32_t layer) {
  const v1::Block& block = *latest.block;
  const uint32_t heads = block.shape_size() > 1 ? block.shape(1) : 1;
  double folded = std::numeric_limits<double>::quiet_NaN();
  uint32_t count = 0;
  for (uint32_t head = 0; head < heads; ++head) {
    const float value = block.float32(static_cast<int>(layer * heads + head));
    if (std::isnan(value)) continue;
    ++count;
    if (count == 1) {
      folded = value;
    } else if (latest.metric->aggregation() == v1::AGGREGATION_MEAN) {
      folded += (value - folded) / count;
    } else {
      folded = std::max<double>(folded, value);
    }
  }
  return folded;
}

void AddHealth(const v1::RunState& state, const RunCounts& counts, const EventCounts::OfRun& decisions, int64_t now,
               SeriesBudget* budget) {
  const v1::RunSummary& summary = state.summary();
  const std::string& run = summary.run();
  budget->Gauge("trimtab_ranks_connected", "Ranks with an open channel.", {{"run", run}}, summary.ranks_connected());
  budget->Gauge("trimtab_world_size", "Ranks of the run.", {{"run", run}}, summary.world_size());
  budget->Gauge("trimtab_last_sample_age_seconds", "Time since the last step arrived from any rank.", {{"run", run}},
                std::max(0.0, static_cast<double>(now - summary.last_seen_unix_nanos()) / kNanosPerSecond));
  budget->Gauge("trimtab_last_step", "Number of the last training step.", {{"run", run}},
                static_cast<double>(summary.last_step()));
  budget->Counter("trimtab_steps_total", "Training steps received, counted on the lowest connected rank.",
                  {{"run", run}}, static_cast<double>(counts.steps));
  constexpr const char* kSwitches = "trimtab_switches_total";
  constexpr const char* kSwitchHelp = "Kernel switches by result: applied, refused, or rollback planned.";
  budget->Counter(kSwitches, kSwitchHelp, {{"run", run}, {"result", "applied"}},
                  static_cast<double>(decisions.applied));
  budget->Counter(kSwitches, kSwitchHelp, {{"run", run}, {"result", "refused"}},
                  static_cast<double>(decisions.refused));
  budget->Counter(kSwitches, kSwitchHelp, {{"run", run}, {"result", "rollback"}},
                  static_cast<double>(decisions.rollbacks));
  for (const auto& [rule, alerts] : decisions.alerts) {
    budget->Counter("trimtab_alerts_total", "Alerts of the policy by rule.", {{"run", run}, {"rule", rule}},
                    static_cast<double>(alerts));
  }
  for (const auto& [signal, values] : counts.nonfinite) {
    budget->Counter("trimtab_nonfinite_total", "Values that were NaN or infinite.", {{"run", run}, {"signal", signal}},
                    static_cast<double>(values));
  }
}

void AddLayers(const std::string& run, const LatestByName& latest, SeriesBudget* budget) {
  for (const LayerRow& row : kLayers) {
    const auto found = latest.find(row.metric);
    if (found == latest.end() || found->second.block->shape_size() == 0) continue;
    if (found->second.metric->dtype() != v1::DTYPE_FLOAT32) continue;
    for (uint32_t layer = 0; layer < found->second.block->shape(0); ++layer) {
      const double value = FoldHeads(found->second, layer);
      if (std::isnan(value)) continue;  // not sampled
      Labels labels = {{"run", run}, {"layer", std::to_string(layer)}};
      if (row.matrix != nullptr) labels.emplace_back("matrix", row.matrix);
      budget->Gauge(row.family, row.help, std::move(labels), value);
    }
  }
}

void AddTopHeads(const std::string& run, const LatestByName& latest, size_t top, SeriesBudget* budget) {
  const auto found = latest.find("max_attention_logit");
  if (found == latest.end() || found->second.block->shape_size() != 2) return;
  const v1::Block& block = *found->second.block;
  std::vector<int> cells;
  for (int i = 0; i < block.float32_size(); ++i) {
    if (!std::isnan(block.float32(i))) cells.push_back(i);
  }
  top = std::min(top, cells.size());
  std::partial_sort(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(top), cells.end(), [&](int a, int b) {
    return block.float32(a) != block.float32(b) ? block.float32(a) > block.float32(b) : a < b;
  });
  const uint32_t heads = block.shape(1);
  for (size_t i = 0; i < top; ++i) {
    const auto cell = static_cast<uint32_t>(cells[i]);
    budget->Gauge("trimtab_max_attention_logit_head", "Largest attention logit of the run's highest heads.",
                  {{"run", run}, {"layer", std::to_string(cell / heads)}, {"head", std::to_string(cell % heads)}},
                  block.float32(cells[i]));
  }
}

}  // namespace

void AddRunFamilies(const v1::RunState& state, const RunCounts& counts, const EventCounts::OfRun& decisions,
                    size_t top_heads, int64_t now_unix_nanos, SeriesBudget* budget) {
  const std::string& run = state.summary().run();
  const LatestByName latest = IndexLatest(state);
  AddHealth(state, counts, decisions, now_unix_nanos, budget);
  for (const ScalarRow& row : kScalars) {
    const auto found = latest.find(row.metric);
    if (found == latest.end() || found->second.block->float32_size() != 1) continue;
    budget->Gauge(row.family, row.help, {{"run", run}}, found->second.block->float32(0));
  }
  for (int layer = 0; layer < state.modes_size(); ++layer) {
    budget->Gauge("trimtab_attention_mode", "1 for the kernel mode in force.",
                  {{"run", run}, {"layer", std::to_string(layer)}, {"mode", ModeName(state.modes(layer))}}, 1);
  }
  AddLayers(run, latest, budget);
  AddTopHeads(run, latest, top_heads, budget);
}

}  // namespace trimtab::server
