#include "server/query/select_cell.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace trimtab::server {
namespace {

// Keeps `count` values from `first` on, `stride` apart.
template <typename Field>
void Keep(Field* values, uint32_t first, uint32_t stride, uint32_t count) {
  if (values->empty()) return;
  for (uint32_t i = 0; i < count; ++i) {
    values->Set(static_cast<int>(i), values->Get(static_cast<int>(first + i * stride)));
  }
  values->Truncate(static_cast<int>(count));
}

absl::Status CheckIndex(const char* axis, uint32_t index, uint32_t extent) {
  if (index < extent) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("there is no ", axis, " ", index, "; there are ", extent, ", from 0"));
}

}  // namespace

absl::Status SelectCell(std::optional<uint32_t> layer, std::optional<uint32_t> head, v1::Block* block) {
  if (!layer && !head) return absl::OkStatus();
  const int axes = block->shape_size();
  if (axes == 0) return absl::InvalidArgumentError("this metric is a scalar; leave out layer and head");
  if (axes == 1 && head) return absl::InvalidArgumentError("this metric has no heads; leave out head");
  const uint32_t layers = block->shape(0), heads = axes == 2 ? block->shape(1) : 1;
  if (layer) {
    if (absl::Status status = CheckIndex("layer", *layer, layers); !status.ok()) return status;
  }
  if (head) {
    if (absl::Status status = CheckIndex("head", *head, heads); !status.ok()) return status;
  }
  const uint32_t first = layer.value_or(0) * heads + head.value_or(0);
  const uint32_t stride = layer ? 1 : heads;
  const uint32_t count = layer ? (head ? 1 : heads) : layers;
  Keep(block->mutable_float32(), first, stride, count);
  Keep(block->mutable_uint64(), first, stride, count);
  const bool scalar = layer && (head || axes == 1);
  block->clear_shape();
  if (!scalar) block->add_shape(count);
  return absl::OkStatus();
}

}  // namespace trimtab::server
