#include "server/cli/run_view.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/http/fold.h"

namespace trimtab::cli {
namespace {

// Largest cell of a layer and its head; NaN (no sample) gives way to any value.
std::pair<float, uint32_t> LargestHead(const v1::Block& block, uint32_t layer) {
  std::pair<float, uint32_t> largest{std::numeric_limits<float>::quiet_NaN(), 0};
  for (uint32_t head = 0; head < server::ShapeOf(block).heads; ++head) {
    const float value = server::Cell(block, layer, head);
    if (!std::isnan(value) && !(value <= largest.first)) largest = {value, head};
  }
  return largest;
}

std::string LayerCell(const LatestMetric& metric, uint32_t layer) {
  if (metric.block == nullptr || layer >= server::ShapeOf(*metric.block).layers) return "-";
  return Number(server::FoldLayer(*metric.block, metric.descriptor->aggregation(), layer, std::nullopt),
                metric.descriptor->unit());
}

}  // namespace

std::vector<v1::KernelMode> ModesOf(const google::protobuf::RepeatedField<int>& modes) {
  std::vector<v1::KernelMode> result;
  result.reserve(modes.size());
  for (const int mode : modes) result.push_back(static_cast<v1::KernelMode>(mode));
  return result;
}

LatestMetric Latest(const v1::RunState& state, const std::string& name) {
  for (const v1::MetricDescriptor& metric : state.metrics()) {
    if (metric.name() != name) continue;
    for (const v1::Block& block : state.latest()) {
      if (block.metric() == metric.id()) return {&metric, &block};
    }
  }
  return {};
}

std::optional<float> LatestScalar(const v1::RunState& state, const std::string& name) {
  const LatestMetric metric = Latest(state, name);
  if (metric.block == nullptr) return std::nullopt;
  return server::Cell(*metric.block, 0, 0);
}

std::string SummaryText(const v1::RunState& state, int64_t now) {
  const v1::RunSummary& run = state.summary();
  std::string out;
  const auto line = [&](const char* name, const std::string& text) {
    absl::StrAppend(&out, name, std::string(14 - std::min<size_t>(13, absl::string_view(name).size()), ' '),
                    Escape(text), "\n");
  };
  const auto scalar = [&](const char* metric) {
    const std::optional<float> value = LatestScalar(state, metric);
    return value.has_value() ? Number(*value) : std::string("-");
  };
  line("run", run.run());
  line("status", absl::StrCat(run.status(), ", last sample ", Ago(run.last_seen_unix_nanos(), now), ", ",
                              run.ranks_connected(), " of ", run.world_size(), " ranks connected"));
  line("step",
       absl::StrCat(Count(run.last_step()), state.steps_per_second() > 0
                                                ? absl::StrCat(" at ", Number(state.steps_per_second()), " steps/s")
                                                : ""));
  line("loss", absl::StrCat(scalar("loss"), ", gradient norm ", scalar("grad_norm"), ", learning rate ",
                            scalar("learning_rate")));
  line("kernel modes", ModesSummary(ModesOf(state.modes())));
  line("commands",
       run.act() ? "obeyed (started with --act)" : "not obeyed: start the job with --act to allow switches");
  return out;
}

Table LayerTable(const v1::RunState& state) {
  Table table({">LAYER", "MODE", ">MAX LOGIT", ">HEAD", ">REPEATED MAX", ">σ(Wq)", ">σ(Wk)", ">ACT RMS", "NAME"});
  const LatestMetric logit = Latest(state, "max_attention_logit"), repeated = Latest(state, "repeated_max_share");
  const LatestMetric sigma_q = Latest(state, "spectral_norm_q"), sigma_k = Latest(state, "spectral_norm_k");
  const LatestMetric activation = Latest(state, "activation_rms");
  uint32_t layers = std::max<uint32_t>(state.summary().layers(), static_cast<uint32_t>(state.modes_size()));
  if (logit.block != nullptr) layers = std::max(layers, server::ShapeOf(*logit.block).layers);
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const bool known = logit.block != nullptr && layer < server::ShapeOf(*logit.block).layers;
    const auto [largest, head] = known ? LargestHead(*logit.block, layer) : std::pair(0.0F, 0U);
    std::string name;
    if (state.ranks_size() > 0 && static_cast<int>(layer) < state.ranks(0).layers_size()) {
      name = state.ranks(0).layers(static_cast<int>(layer)).name();
    }
    table.Add({absl::StrCat(layer),
               static_cast<int>(layer) < state.modes_size() ? ModeName(state.modes(static_cast<int>(layer))) : "-",
               known ? Number(largest) : "-", known ? absl::StrCat(head) : "-", LayerCell(repeated, layer),
               LayerCell(sigma_q, layer), LayerCell(sigma_k, layer), LayerCell(activation, layer), name});
  }
  return table;
}

}  // namespace trimtab::cli
