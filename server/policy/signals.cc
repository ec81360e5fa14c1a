#include "server/policy/signals.h"

#include <algorithm>
#include <cmath>

#include "server/model/limits.h"
#include "server/policy/detectors/reading.h"
#include "server/policy/known_signals.h"

namespace trimtab::server {
namespace {

// Adds one head's value to a layer's cell.
void AddHead(double value, uint32_t head, Cell* cell) {
  if (!std::isfinite(value)) {
    if (cell->nonfinite++ == 0) cell->nonfinite_head = head;
    if (std::isnan(value)) return;
  }
  if (std::isnan(cell->value) || value > cell->value) {
    cell->value = value;
    cell->worst_head = head;
  }
}

void ReduceBlock(const v1::Block& block, bool layered, bool heads, uint32_t rank, SignalCells* out) {
  const size_t count = block.float32_size() > 0 ? block.float32_size() : block.uint64_size();
  const bool is_float = block.float32_size() > 0;
  const size_t layers = layered ? (block.shape_size() > 0 ? block.shape(0) : 0) : 1;
  const size_t per_layer = heads ? (block.shape_size() > 1 ? block.shape(1) : 0) : 1;
  if (layers == 0 || per_layer == 0 || layers > kMaxLayers || layers * per_layer != count) return;
  out->present = true;
  out->layered = layered;
  out->cells.assign(layers, Cell{});
  for (size_t l = 0; l < layers; ++l) {
    Cell& cell = out->cells[l];
    cell.value = kNotKnown;
    for (size_t h = 0; h < per_layer; ++h) {
      const size_t i = l * per_layer + h;
      AddHead(is_float ? block.float32(i) : static_cast<double>(block.uint64(i)), h, &cell);
    }
    cell.worst_rank = cell.nonfinite_rank = rank;
    cell.values = std::isnan(cell.value) ? 0 : 1;
    cell.sum = cell.values > 0 ? cell.value : 0;
  }
}

void FoldCell(v1::Aggregation aggregation, const Cell& from, Cell* into) {
  if (from.nonfinite > 0 && into->nonfinite == 0) {
    into->nonfinite_rank = from.nonfinite_rank;
    into->nonfinite_head = from.nonfinite_head;
  }
  into->nonfinite += from.nonfinite;
  if (from.values == 0) return;
  if (into->values == 0) {
    const Cell before = *into;
    *into = from;
    into->nonfinite = before.nonfinite;
    into->nonfinite_rank = before.nonfinite_rank;
    into->nonfinite_head = before.nonfinite_head;
    return;
  }
  const double worst_before = into->value;
  into->values += from.values;
  into->sum += from.sum;
  switch (aggregation) {
    case v1::AGGREGATION_MAX:
      if (from.value > worst_before) {
        into->value = from.value;
        into->worst_rank = from.worst_rank;
        into->worst_head = from.worst_head;
      }
      break;
    case v1::AGGREGATION_SUM:
      into->value = into->sum;
      break;
    case v1::AGGREGATION_MEAN:
      into->value = into->sum / into->values;
      break;
    default:
      into->value = from.value;
      break;
  }
}

}  // namespace

SignalTable::SignalTable(const Policy& policy) {
  const auto add = [this](absl::string_view name) {
    if (!Find(name)) names_.emplace_back(name);
  };
  for (const Rule& rule : policy.rules) {
    for (const std::string& s : rule.signals) add(s);
  }
  for (absl::string_view s : kEvidenceSignals) add(s);
}

std::optional<size_t> SignalTable::Find(absl::string_view name) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] == name) return i;
  }
  return std::nullopt;
}

size_t StepCells::bytes() const {
  size_t bytes = sizeof(StepCells) + signals.size() * sizeof(SignalCells);
  for (const SignalCells& s : signals) bytes += s.cells.size() * sizeof(Cell);
  return bytes;
}

MetricMap MapMetrics(const SignalTable& table, const std::vector<v1::MetricDescriptor>& metrics) {
  MetricMap map;
  map.aggregation.assign(table.size(), v1::AGGREGATION_LAST);
  for (const v1::MetricDescriptor& m : metrics) {
    const std::optional<size_t> signal = table.Find(m.name());
    if (!signal) continue;
    MetricMap::Entry entry;
    entry.signal = *signal;
    entry.aggregation = m.aggregation();
    for (const int axis : m.axes()) {
      entry.layered |= axis == v1::AXIS_LAYER;
      entry.heads |= axis == v1::AXIS_HEAD;
    }
    if (entry.heads && !entry.layered) continue;
    map.by_id[m.id()] = entry;
    map.aggregation[*signal] = m.aggregation();
  }
  return map;
}

StepCells ReduceStep(const SignalTable& table, const MetricMap& map, uint32_t rank, const v1::Step& step) {
  StepCells out;
  out.step = step.step();
  out.time_unix_nanos = step.time_unix_nanos();
  out.ranks = 1;
  out.signals.resize(table.size());
  for (const v1::Block& block : step.blocks()) {
    const auto it = map.by_id.find(block.metric());
    if (it == map.by_id.end()) continue;
    ReduceBlock(block, it->second.layered, it->second.heads, rank, &out.signals[it->second.signal]);
  }
  return out;
}

void FoldRank(const std::vector<v1::Aggregation>& aggregation, const StepCells& from, StepCells* into) {
  into->ranks += from.ranks;
  into->time_unix_nanos = std::max(into->time_unix_nanos, from.time_unix_nanos);
  for (size_t i = 0; i < from.signals.size(); ++i) {
    const SignalCells& f = from.signals[i];
    SignalCells& t = into->signals[i];
    if (!f.present) continue;
    if (!t.present) {
      t = f;
      continue;
    }
    if (f.cells.size() > t.cells.size()) t.cells.resize(f.cells.size(), Cell{.value = kNotKnown});
    for (size_t l = 0; l < f.cells.size(); ++l) FoldCell(aggregation[i], f.cells[l], &t.cells[l]);
  }
}

}  // namespace trimtab::server
