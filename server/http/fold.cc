#include "server/http/fold.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trimtab::server {

BlockShape ShapeOf(const v1::Block& block) {
  BlockShape shape;
  if (block.shape_size() > 0) shape.layers = block.shape(0);
  if (block.shape_size() > 1) shape.heads = block.shape(1);
  return shape;
}

float Cell(const v1::Block& block, uint32_t layer, uint32_t head) {
  const BlockShape shape = ShapeOf(block);
  const uint64_t index = uint64_t{layer} * shape.heads + head;
  if (layer < shape.layers && head < shape.heads) {
    if (index < static_cast<uint64_t>(block.float32_size())) return block.float32(static_cast<int>(index));
    if (index < static_cast<uint64_t>(block.uint64_size())) {
      return static_cast<float>(block.uint64(static_cast<int>(index)));
    }
  }
  return std::numeric_limits<float>::quiet_NaN();
}

float FoldLayer(const v1::Block& block, v1::Aggregation aggregation, uint32_t layer, std::optional<uint32_t> head) {
  if (head.has_value()) return Cell(block, layer, *head);
  double sum = 0;
  uint32_t sampled = 0;
  float largest = 0, last = 0;
  for (uint32_t h = 0; h < ShapeOf(block).heads; ++h) {
    const float value = Cell(block, layer, h);
    if (std::isnan(value)) continue;
    largest = sampled == 0 ? value : std::max(largest, value);
    last = value;
    sum += value;
    ++sampled;
  }
  if (sampled == 0) return std::numeric_limits<float>::quiet_NaN();
  switch (aggregation) {
    case v1::AGGREGATION_MAX:
      return largest;
    case v1::AGGREGATION_SUM:
      return static_cast<float>(sum);
    case v1::AGGREGATION_LAST:
      return last;
    default:
      return static_cast<float>(sum / sampled);
  }
}

}  // namespace trimtab::server
