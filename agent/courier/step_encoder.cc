#include "agent/courier/step_encoder.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "agent/core/metric_schema.h"
#include "agent/courier/limits.h"

namespace trimtab::courier {
namespace {

// "" when the block fits the schema's row, else why not.
std::string CheckBlock(const agent::RingBlock& block, const trimtab_metric* metric) {
  if (metric == nullptr) return absl::StrCat("metric ", block.metric, " is not in the schema");
  if (block.is_uint64 != (metric->is_uint64 != 0)) return absl::StrCat(metric->name, " has the wrong type");
  if (block.dims != static_cast<uint32_t>(metric->axes)) return absl::StrCat(metric->name, " has the wrong axes");
  uint64_t count = 1;
  for (uint32_t i = 0; i < block.dims; ++i) {
    if (block.shape[i] == 0 || block.shape[i] > TRIMTAB_MAX_LAYERS) {
      return absl::StrCat(metric->name, " has an axis of length ", block.shape[i]);
    }
    count *= block.shape[i];
  }
  if (count != block.count) return absl::StrCat(metric->name, " has a count that is not its shape's");
  return "";
}

}  // namespace

std::vector<v1::MetricDescriptor> MetricSchema() {
  std::vector<v1::MetricDescriptor> rows;
  for (uint32_t i = 0; const trimtab_metric* metric = trimtab_metric_info(i); ++i) {
    v1::MetricDescriptor& row = rows.emplace_back();
    row.set_id(metric->id);
    row.set_name(metric->name);
    row.set_unit(metric->unit);
    row.set_dtype(metric->is_uint64 ? v1::DTYPE_UINT64 : v1::DTYPE_FLOAT32);
    if (metric->axes != TRIMTAB_AXES_SCALAR) row.add_axes(v1::AXIS_LAYER);
    if (metric->axes == TRIMTAB_AXES_LAYER_HEAD) row.add_axes(v1::AXIS_HEAD);
    row.set_aggregation(static_cast<v1::Aggregation>(metric->aggregation));
    row.set_help(metric->help);
  }
  return rows;
}

absl::Status StepEncoder::Encode(const agent::RingStep& step, std::string* bytes) {
  step_.Clear();
  step_.set_sequence(step.sequence);
  step_.set_step(step.step);
  step_.set_time_unix_nanos(step.time_unix_nanos);
  for (const agent::RingBlock& in : step.blocks) {
    std::string problem = CheckBlock(in, agent::FindMetric(in.metric));
    if (!problem.empty()) {
      ++bad_blocks_;
      bad_block_reason_ = std::move(problem);
      continue;
    }
    v1::Block* out = step_.add_blocks();
    out->set_metric(in.metric);
    for (uint32_t i = 0; i < in.dims; ++i) out->add_shape(in.shape[i]);
    const int count = static_cast<int>(in.count);
    if (in.is_uint64) {
      out->mutable_uint64()->Resize(count, 0);
      std::memcpy(out->mutable_uint64()->mutable_data(), in.data, in.count * sizeof(uint64_t));
    } else {
      out->mutable_float32()->Resize(count, 0);
      std::memcpy(out->mutable_float32()->mutable_data(), in.data, in.count * sizeof(float));
    }
  }
  const size_t size = step_.ByteSizeLong();
  if (size > kMaxStepBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("step ", step.step, " takes ", size, " bytes; at most ", kMaxStepBytes, " can be sent"));
  }
  bytes->resize(size);
  step_.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(bytes->data()));
  return absl::OkStatus();
}

}  // namespace trimtab::courier
