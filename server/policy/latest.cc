#include "server/policy/latest.h"

#include <cmath>

#include "server/policy/describe.h"
#include "server/policy/detectors/window.h"

namespace trimtab::server {
namespace {

double MedianOverLayers(const std::vector<Cell>& cells) {
  std::vector<double> values;
  for (const Cell& c : cells) {
    if (c.values > 0) values.push_back(c.value);
  }
  return MedianInPlace(values);
}

size_t LargestLayer(const std::vector<Cell>& cells) {
  size_t best = 0;
  for (size_t l = 1; l < cells.size(); ++l) {
    if (cells[l].values > 0 && (cells[best].values == 0 || cells[l].value > cells[best].value)) best = l;
  }
  return best;
}

}  // namespace

void LatestSignals::Update(const StepCells& cells) {
  for (size_t i = 0; i < cells.signals.size(); ++i) {
    const SignalCells& s = cells.signals[i];
    if (!s.present) continue;
    Entry& e = entries_[i];
    const bool same = e.cells.present && !s.layered && e.cells.cells[0].values > 0 && s.cells[0].values > 0 &&
                      e.cells.cells[0].value == s.cells[0].value;
    e.repeats = same ? e.repeats + 1 : 0;
    e.cells = s;
    e.step = cells.step;
  }
}

std::optional<double> LatestSignals::Scalar(absl::string_view name) const {
  const std::optional<size_t> i = table_->Find(name);
  if (!i || !entries_[*i].cells.present || entries_[*i].cells.layered) return std::nullopt;
  const Cell& c = entries_[*i].cells.cells[0];
  if (c.values == 0 || !std::isfinite(c.value)) return std::nullopt;
  return c.value;
}

bool LatestSignals::Seen(absl::string_view name) const {
  const std::optional<size_t> i = table_->Find(name);
  return i && entries_[*i].cells.present;
}

std::vector<v1::KernelMode> LatestSignals::Modes() const {
  std::vector<v1::KernelMode> modes;
  const std::optional<size_t> i = table_->Find("attention_mode");
  if (!i || !entries_[*i].cells.present) return modes;
  for (const Cell& c : entries_[*i].cells.cells) {
    const int mode = c.values > 0 && c.value >= 0 && c.value < 100 ? static_cast<int>(c.value) : 0;
    modes.push_back(v1::KernelMode_IsValid(mode) ? static_cast<v1::KernelMode>(mode) : v1::KERNEL_MODE_UNSPECIFIED);
  }
  return modes;
}

nlohmann::json LatestSignals::Json(std::optional<uint32_t> layer) const {
  nlohmann::json all = nlohmann::json::object();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (!e.cells.present) continue;
    nlohmann::json j = {{"step", e.step}};
    size_t index = 0;
    if (e.cells.layered) {
      index = layer && *layer < e.cells.cells.size() ? *layer : LargestLayer(e.cells.cells);
      j["layer"] = index;
      j["head"] = e.cells.cells[index].worst_head;
      j["median_of_layers"] = NumberJson(MedianOverLayers(e.cells.cells));
    }
    const Cell& c = e.cells.cells[index];
    j["value"] = NumberJson(c.value);
    if (c.nonfinite > 0) j["nonfinite"] = c.nonfinite;
    if (e.repeats > 0) j["repeats"] = e.repeats;
    all[table_->name(i)] = std::move(j);
  }
  return all;
}

}  // namespace trimtab::server
