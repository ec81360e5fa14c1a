#include "tests/e2e/page/synthetic_run.h"

#include <trimtab/agent.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

namespace trimtab {
namespace {

constexpr double kGrowthPerStep = 1.012, kDecayPerStep = 0.985, kMostExcess = 1e5;
constexpr double kLossRisesAbove = 2e3;

v1::Block* AddBlock(v1::Step* step, const char* metric, std::vector<uint32_t> shape) {
  v1::Block* const block = step->add_blocks();
  block->set_metric(trimtab_metric_id(metric));
  block->mutable_shape()->Assign(shape.begin(), shape.end());
  return block;
}

}  // namespace

std::vector<v1::MetricDescriptor> BuiltInMetrics() {
  std::vector<v1::MetricDescriptor> metrics;
  for (uint32_t i = 0; const trimtab_metric* row = trimtab_metric_info(i); ++i) {
    v1::MetricDescriptor metric;
    metric.set_id(row->id);
    metric.set_name(row->name);
    metric.set_unit(row->unit);
    metric.set_dtype(row->is_uint64 != 0 ? v1::DTYPE_UINT64 : v1::DTYPE_FLOAT32);
    if (row->axes != TRIMTAB_AXES_SCALAR) metric.add_axes(v1::AXIS_LAYER);
    if (row->axes == TRIMTAB_AXES_LAYER_HEAD) metric.add_axes(v1::AXIS_HEAD);
    metric.set_aggregation(static_cast<v1::Aggregation>(row->aggregation));
    metric.set_help(row->help);
    metrics.push_back(std::move(metric));
  }
  return metrics;
}

SyntheticRun::SyntheticRun(const Options& options)
    : options_(options), modes_(options.layers, v1::KERNEL_MODE_OBSERVE) {}

float SyntheticRun::Logit(uint64_t step, uint32_t layer, uint32_t head) const {
  const double phase = static_cast<double>(step) / 37 + 1.7 * layer + 0.9 * head;
  const double calm = 9 + 4 * std::sin(1.3 * layer + 2.1 * head) + 1.5 * std::sin(phase);
  if (layer != options_.runaway_layer) return static_cast<float>(calm);
  const uint32_t distance = head > options_.runaway_head ? head - options_.runaway_head : options_.runaway_head - head;
  return static_cast<float>(calm * std::pow(excess_, std::pow(0.5, distance)));
}

v1::Step SyntheticRun::Step(uint64_t step, uint32_t rank) {
  const bool stabilized =
      options_.runaway_layer < modes_.size() && modes_[options_.runaway_layer] == v1::KERNEL_MODE_STABILIZED;
  if (rank == 0) {
    if (stabilized) {
      excess_ = std::max(1.0, excess_ * kDecayPerStep);
    } else if (step > options_.runaway_step) {
      excess_ = std::min(kMostExcess, excess_ * kGrowthPerStep);
    }
  }
  const double t = static_cast<double>(step);
  const double wobble = 0.03 * std::sin(t * 2.399) + 0.02 * std::sin(t * 0.77);
  const double trouble = excess_ > kLossRisesAbove ? 0.3 * std::log(excess_ / kLossRisesAbove) : 0;
  v1::Step result;
  result.set_step(step);
  result.set_time_unix_nanos(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  AddBlock(&result, "loss", {})
      ->add_float32(static_cast<float>(1.62 + 4 * std::exp(-t / 120) + wobble + trouble + 0.001 * rank));
  AddBlock(&result, "grad_norm", {})
      ->add_float32(options_.odd_values && step % 50 == 0
                        ? std::numeric_limits<float>::quiet_NaN()
                        : static_cast<float>(0.6 + 5 * std::fabs(wobble) + 2 * trouble));
  AddBlock(&result, "learning_rate", {})->add_float32(7e-3F);
  const auto fill = [&](const char* metric, const std::function<float(uint32_t, uint32_t)>& value) {
    v1::Block* const block = AddBlock(&result, metric, {options_.layers, options_.heads});
    for (uint32_t layer = 0; layer < options_.layers; ++layer) {
      for (uint32_t head = 0; head < options_.heads; ++head) block->add_float32(value(layer, head));
    }
  };
  fill("max_attention_logit", [&](uint32_t layer, uint32_t head) {
    if (options_.odd_values && layer == 0 && head == 0) return std::numeric_limits<float>::quiet_NaN();
    if (options_.odd_values && layer == 0 && head == 1) return std::numeric_limits<float>::infinity();
    return Logit(step, layer, head);
  });
  fill("repeated_max_share",
       [&](uint32_t layer, uint32_t head) { return std::min(0.6F, 2e-4F * std::pow(Logit(step, layer, head), 1.2F)); });
  v1::Block* const sigma = AddBlock(&result, "spectral_norm_q", {options_.layers});
  for (uint32_t layer = 0; layer < options_.layers; ++layer) {
    const double own = layer == options_.runaway_layer ? std::pow(excess_, 0.35) : 1;
    sigma->add_float32(static_cast<float>((1.2 + 0.25 * layer + t / 4000) * own));
  }
  v1::Block* const mode = AddBlock(&result, "attention_mode", {options_.layers});
  for (const v1::KernelMode one : modes_) mode->add_uint64(static_cast<uint64_t>(one));
  return result;
}

}  // namespace trimtab
