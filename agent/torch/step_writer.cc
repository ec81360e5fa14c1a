#include "agent/torch/step_writer.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace trimtab::agent {
namespace {

struct FloatColumn {
  const char* name;
  float CellMetrics::*value;
};
constexpr FloatColumn kFloatColumns[] = {
    {"max_attention_logit", &CellMetrics::max_attention_logit},
    {"repeated_max_share", &CellMetrics::repeated_max_share},
    {"p_one_share", &CellMetrics::p_one_share},
    {"attention_entropy", &CellMetrics::attention_entropy},
    {"sink_share", &CellMetrics::sink_share},
    {"delta_residual_sum", &CellMetrics::delta_residual_sum},
    {"delta_residual_sum_squares", &CellMetrics::delta_residual_sum_squares},
    {"delta_residual_z", &CellMetrics::delta_residual_z},
    {"attention_output_error", &CellMetrics::attention_output_error},
};
struct WholeColumn {
  const char* name;
  uint64_t trimtab_head_stats::*value;
};
constexpr WholeColumn kWholeColumns[] = {
    {"attention_rows", &trimtab_head_stats::rows},
    {"attention_trivial_rows", &trimtab_head_stats::trivial_rows},
    {"attention_empty_rows", &trimtab_head_stats::empty_rows},
    {"repeated_max_rows", &trimtab_head_stats::repeated_max_rows},
    {"p_one_count", &trimtab_head_stats::p_one_count},
    {"tie_rows", &trimtab_head_stats::tie_rows},
    {"attention_scores", &trimtab_head_stats::scores},
    {"attention_nonfinite", &trimtab_head_stats::nonfinite_scores},
    {"delta_residual_rows", &trimtab_head_stats::delta_rows},
};
constexpr const char* kSigma[] = {"spectral_norm_q", "spectral_norm_k", "spectral_norm_v", "spectral_norm_o"};
constexpr const char* kResidual[] = {"spectral_norm_residual_q", "spectral_norm_residual_k", "spectral_norm_residual_v",
                                     "spectral_norm_residual_o"};
constexpr const char* kByHead[] = {"spectral_norm_q_head", "spectral_norm_k_head"};

// Ids of all metrics written here, looked up once.
struct Ids {
  uint32_t loss, grad_norm, learning_rate, step_time, overhead, loss_scale, calls, passed, mode;
  uint32_t activation_abs_max, activation_rms, activation_mean, activation_nonfinite;
  std::array<uint32_t, std::size(kFloatColumns)> floats;
  std::array<uint32_t, std::size(kWholeColumns)> wholes;
  std::array<uint32_t, SpectralTracker::kWhichCount> sigma, residual;
  std::array<uint32_t, 2> by_head;
};

const Ids& MetricIds() {
  static const Ids ids = [] {
    Ids i = {};
    i.loss = trimtab_metric_id("loss");
    i.grad_norm = trimtab_metric_id("grad_norm");
    i.learning_rate = trimtab_metric_id("learning_rate");
    i.step_time = trimtab_metric_id("step_time_seconds");
    i.overhead = trimtab_metric_id("agent_overhead_seconds");
    i.loss_scale = trimtab_metric_id("loss_scale");
    i.calls = trimtab_metric_id("attention_calls");
    i.passed = trimtab_metric_id("attention_calls_passed");
    i.mode = trimtab_metric_id("attention_mode");
    i.activation_abs_max = trimtab_metric_id("activation_abs_max");
    i.activation_rms = trimtab_metric_id("activation_rms");
    i.activation_mean = trimtab_metric_id("activation_mean");
    i.activation_nonfinite = trimtab_metric_id("activation_nonfinite");
    for (size_t c = 0; c < i.floats.size(); ++c) i.floats[c] = trimtab_metric_id(kFloatColumns[c].name);
    for (size_t c = 0; c < i.wholes.size(); ++c) i.wholes[c] = trimtab_metric_id(kWholeColumns[c].name);
    for (size_t w = 0; w < i.sigma.size(); ++w) {
      i.sigma[w] = trimtab_metric_id(kSigma[w]);
      i.residual[w] = trimtab_metric_id(kResidual[w]);
    }
    for (size_t w = 0; w < i.by_head.size(); ++w) i.by_head[w] = trimtab_metric_id(kByHead[w]);
    return i;
  }();
  return ids;
}

}  // namespace

StepWriter::StepWriter() { MetricIds(); }

void StepWriter::PutFloat(uint32_t metric, uint32_t dim0, uint32_t dim1) {
  if (metric == 0 || status_ != TRIMTAB_OK) return;
  status_ = trimtab_step_put_f32(agent_, metric, floats_.data(), dim0, dim1);
}

void StepWriter::PutWhole(uint32_t metric, uint32_t dim0, uint32_t dim1) {
  if (metric == 0 || status_ != TRIMTAB_OK) return;
  status_ = trimtab_step_put_u64(agent_, metric, wholes_.data(), dim0, dim1);
}

void StepWriter::PutScalar(uint32_t metric, std::optional<float> value) {
  if (!value) return;
  floats_.assign(1, *value);
  PutFloat(metric, 0, 0);
}

void StepWriter::Scalars(const StepScalars& scalars) {
  const Ids& id = MetricIds();
  PutScalar(id.loss, scalars.loss);
  PutScalar(id.grad_norm, scalars.grad_norm);
  PutScalar(id.learning_rate, scalars.learning_rate);
  PutScalar(id.step_time, scalars.step_time_seconds);
  PutScalar(id.overhead, scalars.agent_overhead_seconds);
  PutScalar(id.loss_scale, scalars.loss_scale);
  wholes_.assign(1, scalars.attention_calls);
  PutWhole(id.calls, 0, 0);
  wholes_.assign(1, scalars.attention_calls_passed);
  PutWhole(id.passed, 0, 0);
}

template <typename F>
void StepWriter::Cells(const StepStats& stats, F value) {
  for (uint32_t layer = 0; layer < stats.layers(); ++layer) {
    for (uint32_t head = 0; head < stats.heads(); ++head) {
      if (const trimtab_head_stats* cell = stats.Cell(layer, head)) value(size_t{layer} * heads_ + head, *cell);
    }
  }
}

void StepWriter::Attention(const StepStats& stats) {
  const Ids& id = MetricIds();
  const size_t cells = size_t{layers_} * heads_;
  for (size_t c = 0; c < id.floats.size(); ++c) {
    floats_.assign(cells, 0);
    Cells(stats,
          [&](size_t at, const trimtab_head_stats& cell) { floats_[at] = Summarize(cell).*kFloatColumns[c].value; });
    PutFloat(id.floats[c], layers_, heads_);
  }
  for (size_t c = 0; c < id.wholes.size(); ++c) {
    wholes_.assign(cells, 0);
    Cells(stats, [&](size_t at, const trimtab_head_stats& cell) { wholes_[at] = cell.*kWholeColumns[c].value; });
    PutWhole(id.wholes[c], layers_, heads_);
  }
}

void StepWriter::Activations(const std::vector<trimtab_activation_stats>& activations) {
  const Ids& id = MetricIds();
  auto column = [&](uint32_t metric, auto value) {
    floats_.assign(layers_, 0);
    for (size_t i = 0; i < activations.size(); ++i) {
      if (activations[i].count > 0) floats_[i] = static_cast<float>(value(activations[i]));
    }
    PutFloat(metric, layers_, 0);
  };
  auto finite = [](const trimtab_activation_stats& s) {
    return std::max(1.0, static_cast<double>(s.count) - static_cast<double>(s.nonfinite));
  };
  column(id.activation_abs_max, [](const auto& s) { return s.abs_max; });
  column(id.activation_rms, [&](const auto& s) { return std::sqrt(s.sum_squares / finite(s)); });
  column(id.activation_mean, [&](const auto& s) { return s.sum / finite(s); });
  wholes_.assign(layers_, 0);
  for (size_t i = 0; i < activations.size(); ++i) wholes_[i] = activations[i].nonfinite;
  PutWhole(id.activation_nonfinite, layers_, 0);
}

void StepWriter::Spectral(const SpectralTracker& spectral) {
  const Ids& id = MetricIds();
  for (int w = 0; w < SpectralTracker::kWhichCount; ++w) {
    const auto which = static_cast<SpectralTracker::Which>(w);
    if (!spectral.Has(which)) continue;
    const bool heads = w < static_cast<int>(id.by_head.size()) && spectral.heads() > 0;
    floats_.assign(layers_, 0);
    residuals_.assign(layers_, 0);
    by_head_.assign(size_t{layers_} * heads_, 0);
    spectral.Read(which, floats_.data(), residuals_.data(), heads ? by_head_.data() : nullptr, heads_);
    PutFloat(id.sigma[w], layers_, 0);
    floats_.swap(residuals_);
    PutFloat(id.residual[w], layers_, 0);
    if (!heads) continue;
    floats_.swap(by_head_);
    PutFloat(id.by_head[w], layers_, heads_);
  }
}

trimtab_status StepWriter::Write(trimtab_agent* agent, const StepReport& report) {
  const bool attention = report.stats != nullptr && !report.stats->empty();
  const bool activations = report.activations != nullptr && !report.activations->empty();
  agent_ = agent;
  layers_ = report.layers;
  heads_ = 0;
  if (attention) {
    layers_ = std::max(layers_, report.stats->layers());
    heads_ = report.stats->heads();
  }
  if (activations) layers_ = std::max(layers_, static_cast<uint32_t>(report.activations->size()));
  if (report.spectral != nullptr) {
    layers_ = std::max(layers_, report.spectral->layers());
    heads_ = std::max(heads_, report.spectral->heads());
  }
  status_ = trimtab_step_begin(agent, report.step, report.time_unix_nanos);
  if (status_ != TRIMTAB_OK) return status_;
  Scalars(report.scalars);
  if (attention) Attention(*report.stats);
  if (activations) Activations(*report.activations);
  if (report.spectral != nullptr) Spectral(*report.spectral);
  if (report.modes != nullptr && layers_ > 0) {
    wholes_.assign(report.modes->of_layer.begin(), report.modes->of_layer.begin() + layers_);
    PutWhole(MetricIds().mode, layers_, 0);
  }
  const trimtab_status put = status_;
  status_ = trimtab_step_commit(agent);
  return put != TRIMTAB_OK ? put : status_;
}

}  // namespace trimtab::agent
