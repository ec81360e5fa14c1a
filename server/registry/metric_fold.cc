#include "server/registry/metric_fold.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace trimtab::server {
namespace {

uint32_t Extent(const v1::Block& block, int axis) { return axis < block.shape_size() ? block.shape(axis) : 1; }

template <typename T>
T Combine(v1::Aggregation aggregation, T known, uint32_t known_count, T value) {
  switch (aggregation) {
    case v1::AGGREGATION_MAX:
      return std::max(known, value);
    case v1::AGGREGATION_SUM:
      return known + value;
    case v1::AGGREGATION_MEAN: {
      const double sum = static_cast<double>(known) * known_count + static_cast<double>(value);
      return static_cast<T>(sum / (known_count + 1));
    }
    default:
      return value;
  }
}

// Moves `values` from one shape to a larger one; new cells get `fill`.
template <typename Field, typename T>
void Widen(Field* values, uint32_t old_columns, uint32_t rows, uint32_t columns, T fill) {
  Field wide;
  wide.Resize(static_cast<int>(rows * columns), fill);
  for (int i = 0; i < values->size(); ++i) {
    const uint32_t row = static_cast<uint32_t>(i) / old_columns, column = static_cast<uint32_t>(i) % old_columns;
    wide.Set(static_cast<int>(row * columns + column), values->Get(i));
  }
  values->Swap(&wide);
}

}  // namespace

void MetricFold::Add(uint64_t step, const v1::Block& block, bool restarted) {
  if (newest_.ranks != 0 && step == newest_.step) return FoldInto(&newest_, block);
  if (before_.ranks != 0 && step == before_.step && !restarted) return FoldInto(&before_, block);
  if (newest_.ranks != 0 && step < newest_.step) {
    if (!restarted) return;  // a straggler of a step that is past
    newest_ = Slot();
  }
  before_ = std::exchange(newest_, Slot{.step = step});
  FoldInto(&newest_, block);
}

void MetricFold::FoldInto(Slot* slot, const v1::Block& block) const {
  if (slot->ranks++ == 0) {
    slot->block = block;
    if (descriptor_.aggregation() != v1::AGGREGATION_MEAN) return;
    slot->counts.assign(static_cast<size_t>(block.float32_size() + block.uint64_size()), 1);
    for (int i = 0; i < block.float32_size(); ++i) slot->counts[i] = std::isnan(block.float32(i)) ? 0 : 1;
    return;
  }
  const uint32_t rows = std::max(Extent(slot->block, 0), Extent(block, 0));
  const uint32_t columns = std::max(Extent(slot->block, 1), Extent(block, 1));
  if (rows != Extent(slot->block, 0) || columns != Extent(slot->block, 1)) {
    const uint32_t old_columns = Extent(slot->block, 1);
    if (slot->block.float32_size() > 0) {
      Widen(slot->block.mutable_float32(), old_columns, rows, columns, std::numeric_limits<float>::quiet_NaN());
    }
    if (slot->block.uint64_size() > 0) Widen(slot->block.mutable_uint64(), old_columns, rows, columns, uint64_t{0});
    if (!slot->counts.empty()) {
      google::protobuf::RepeatedField<uint32_t> counts(slot->counts.begin(), slot->counts.end());
      Widen(&counts, old_columns, rows, columns, uint32_t{0});
      slot->counts.assign(counts.begin(), counts.end());
    }
    if (slot->block.shape_size() > 0) slot->block.set_shape(0, rows);
    if (slot->block.shape_size() > 1) slot->block.set_shape(1, columns);
  }
  const uint32_t from_columns = Extent(block, 1);
  const auto cell = [&](int i) {
    return static_cast<int>(static_cast<uint32_t>(i) / from_columns * columns +
                            static_cast<uint32_t>(i) % from_columns);
  };
  const v1::Aggregation aggregation = descriptor_.aggregation();
  const bool nan_is_value = descriptor_.axes_size() == 0;
  for (int i = 0; i < block.float32_size(); ++i) {
    const int at = cell(i);
    const float value = block.float32(i);
    float& known = *slot->block.mutable_float32()->Mutable(at);
    if (std::isnan(value)) {
      if (nan_is_value) known = value;
      continue;
    }
    const uint32_t count = slot->counts.empty() ? 0 : slot->counts[at];
    if (std::isnan(known)) {
      if (nan_is_value) continue;
      known = value;
    } else {
      known = Combine(aggregation, known, count, value);
    }
    if (!slot->counts.empty()) ++slot->counts[at];
  }
  for (int i = 0; i < block.uint64_size(); ++i) {
    const int at = cell(i);
    uint64_t& known = *slot->block.mutable_uint64()->Mutable(at);
    known = Combine(aggregation, known, slot->counts.empty() ? 0 : slot->counts[at], block.uint64(i));
    if (!slot->counts.empty()) ++slot->counts[at];
  }
}

}  // namespace trimtab::server
