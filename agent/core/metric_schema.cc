#include "agent/core/metric_schema.h"

#include <array>
#include <cstring>

namespace trimtab::agent {
namespace {

constexpr trimtab_axes kScalar = TRIMTAB_AXES_SCALAR;
constexpr trimtab_axes kLayer = TRIMTAB_AXES_LAYER;
constexpr trimtab_axes kHead = TRIMTAB_AXES_LAYER_HEAD;
constexpr int32_t kF32 = 0;
constexpr int32_t kU64 = 1;

// Ids are never reused or renumbered: they are in ring files and in stores. 1… scalars, 32… heads, 64… layers.
constexpr trimtab_metric kMetrics[] = {
    {1, "loss", "", kF32, kScalar, kMean, "training loss of the step, unscaled"},
    {2, "grad_norm", "", kF32, kScalar, kMax, "global gradient norm before clipping"},
    {3, "learning_rate", "", kF32, kScalar, kLast, "learning rate of the first parameter group"},
    {4, "step_time_seconds", "seconds", kF32, kScalar, kMean, "wall time between two step boundaries"},
    {5, "agent_overhead_seconds", "seconds", kF32, kScalar, kMean, "time of the step spent inside trimtab"},
    {6, "attention_calls", "", kU64, kScalar, kSum, "attention calls seen in the step"},
    {7, "attention_calls_passed", "", kU64, kScalar, kSum, "attention calls left to the native kernel unmeasured"},
    {8, "loss_scale", "", kF32, kScalar, kLast, "loss scale in use, 1 without a scaler"},

    {32, "max_attention_logit", "", kF32, kHead, kMax, "largest scaled, unmasked score"},
    {33, "repeated_max_share", "ratio", kF32, kHead, kMean, "rows with two or more P equal to 1 over non-trivial rows"},
    {34, "p_one_share", "ratio", kF32, kHead, kMean, "entries with P equal to 1 over all scores"},
    {35, "attention_entropy", "nats", kF32, kHead, kMean, "mean entropy of the attention rows"},
    {36, "sink_share", "ratio", kF32, kHead, kMean, "mean probability of the first key"},
    {37, "attention_rows", "", kU64, kHead, kSum, "query rows measured"},
    {38, "attention_trivial_rows", "", kU64, kHead, kSum, "rows with one visible key"},
    {39, "attention_empty_rows", "", kU64, kHead, kSum, "rows with no visible key"},
    {40, "repeated_max_rows", "", kU64, kHead, kSum, "non-trivial rows with two or more P equal to 1"},
    {41, "p_one_count", "", kU64, kHead, kSum, "entries with P equal to 1, trivial rows left out"},
    {42, "tie_rows", "", kU64, kHead, kSum, "rows whose maximum occurs twice, bit for bit, in FP32 scores"},
    {43, "attention_scores", "", kU64, kHead, kSum, "visible scores measured"},
    {44, "attention_nonfinite", "", kU64, kHead, kSum, "scores that are NaN or infinite"},
    {45, "delta_residual_sum", "", kF32, kHead, kSum, "sum over rows of delta from stored O minus delta from FP32 O"},
    {46, "delta_residual_sum_squares", "", kF32, kHead, kSum, "sum over rows of the squared delta residual"},
    {47, "delta_residual_rows", "", kU64, kHead, kSum, "rows in the delta residual sums"},
    {48, "delta_residual_z", "", kF32, kHead, kMean, "mean of the delta residual over its standard error"},
    {49, "attention_output_error", "ratio", kF32, kHead, kMax, "norm of stored O minus FP32 O over norm of FP32 O"},
    {50, "spectral_norm_q_head", "", kF32, kHead, kMax, "largest singular value of the head's slice of W_q"},
    {51, "spectral_norm_k_head", "", kF32, kHead, kMax, "largest singular value of the head's slice of W_k"},

    {64, "spectral_norm_q", "", kF32, kLayer, kMax, "largest singular value of W_q (lower bound)"},
    {65, "spectral_norm_k", "", kF32, kLayer, kMax, "largest singular value of W_k (lower bound)"},
    {66, "spectral_norm_v", "", kF32, kLayer, kMax, "largest singular value of W_v (lower bound)"},
    {67, "spectral_norm_o", "", kF32, kLayer, kMax, "largest singular value of W_o (lower bound)"},
    {68, "spectral_norm_residual_q", "", kF32, kLayer, kMax, "residual of the power iteration on W_q"},
    {69, "spectral_norm_residual_k", "", kF32, kLayer, kMax, "residual of the power iteration on W_k"},
    {70, "spectral_norm_residual_v", "", kF32, kLayer, kMax, "residual of the power iteration on W_v"},
    {71, "spectral_norm_residual_o", "", kF32, kLayer, kMax, "residual of the power iteration on W_o"},
    {72, "activation_abs_max", "", kF32, kLayer, kMax, "largest magnitude of the block's output"},
    {73, "activation_rms", "", kF32, kLayer, kMean, "root mean square of the block's output"},
    {74, "activation_mean", "", kF32, kLayer, kMean, "mean of the block's output"},
    {75, "activation_nonfinite", "", kU64, kLayer, kSum, "values of the block's output that are NaN or infinite"},
    {76, "activation_large_share", "ratio", kF32, kLayer, kMean, "share of the block's output above the threshold"},
    {77, "attention_mode", "", kU64, kLayer, kLast, "kernel mode in force: 1 native, 2 observe, 3 stabilized, 4 paper"},
};
constexpr uint32_t kMetricCount = sizeof(kMetrics) / sizeof(kMetrics[0]);

// Row of each id plus one, 0 where there is none.
constexpr std::array<uint8_t, kMetricIdEnd> MakeIndex() {
  std::array<uint8_t, kMetricIdEnd> index{};
  for (uint32_t i = 0; i < kMetricCount; ++i) index[kMetrics[i].id] = static_cast<uint8_t>(i + 1);
  return index;
}
constexpr std::array<uint8_t, kMetricIdEnd> kIndex = MakeIndex();

}  // namespace

const trimtab_metric* FindMetric(uint32_t id) {
  if (id >= kMetricIdEnd || kIndex[id] == 0) return nullptr;
  return &kMetrics[kIndex[id] - 1];
}

}  // namespace trimtab::agent

const trimtab_metric* trimtab_metric_info(uint32_t index) {
  return index < trimtab::agent::kMetricCount ? &trimtab::agent::kMetrics[index] : nullptr;
}

uint32_t trimtab_metric_id(const char* name) {
  if (name == nullptr) return 0;
  for (const trimtab_metric& metric : trimtab::agent::kMetrics) {
    if (std::strcmp(metric.name, name) == 0) return metric.id;
  }
  return 0;
}
