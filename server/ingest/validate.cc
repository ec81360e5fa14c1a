#include "server/ingest/validate.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/model/limits.h"
#include "server/model/run_name.h"

namespace trimtab::server {
namespace {

template <typename... Parts>
Rejection Reject(RefusalReason reason, const Parts&... parts) {
  return {reason, absl::StatusCode::kInvalidArgument, absl::StrCat(parts...)};
}

bool IsMetricName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxMetricNameBytes || !absl::ascii_islower(name[0])) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_'; });
}

bool AreAxesKnown(const v1::MetricDescriptor& metric) {
  const auto& axes = metric.axes();
  if (axes.size() == 0) return true;
  if (axes[0] != v1::AXIS_LAYER) return false;
  return axes.size() == 1 || (axes.size() == 2 && axes[1] == v1::AXIS_HEAD);
}

std::optional<Rejection> ValidateMetrics(const google::protobuf::RepeatedPtrField<v1::MetricDescriptor>& metrics) {
  if (static_cast<size_t>(metrics.size()) > kMaxMetrics) {
    return Reject(RefusalReason::kBadMetric, metrics.size(), " metrics, the limit is ", kMaxMetrics,
                  "; send fewer schema rows");
  }
  std::set<uint32_t> ids;
  std::set<std::string> names;
  for (const v1::MetricDescriptor& metric : metrics) {
    if (metric.id() == 0 || !IsMetricName(metric.name())) {
      return Reject(RefusalReason::kBadMetric, "metric ", metric.id(), " ", QuoteName(metric.name()),
                    " needs an id above 0 and a name [a-z][a-z0-9_]* of at most ", kMaxMetricNameBytes, " bytes");
    }
    if ((metric.dtype() != v1::DTYPE_FLOAT32 && metric.dtype() != v1::DTYPE_UINT64) || !AreAxesKnown(metric)) {
      return Reject(RefusalReason::kBadMetric, "metric ", metric.name(),
                    " needs dtype float32 or uint64 and axes [], [layer] or [layer, head]");
    }
    if (!ids.insert(metric.id()).second || !names.insert(metric.name()).second) {
      return Reject(RefusalReason::kBadMetric, "metric ", metric.name(), " (id ", metric.id(), ") is listed twice");
    }
  }
  return std::nullopt;
}

std::optional<Rejection> ValidateBlock(const v1::Block& block, const MetricTable& metrics) {
  const v1::MetricDescriptor* metric = metrics.Find(block.metric());
  if (metric == nullptr) {
    return Reject(RefusalReason::kBadMetric, "metric id ", block.metric(), " is not in this channel's Hello; list it");
  }
  if (block.shape_size() != metric->axes_size()) {
    return Reject(RefusalReason::kBadShape, "metric ", metric->name(), " has ", metric->axes_size(),
                  " axes, the block has ", block.shape_size());
  }
  uint64_t count = 1;
  for (int axis = 0; axis < block.shape_size(); ++axis) {
    const uint32_t extent = block.shape(axis);
    const bool layers = metric->axes(axis) == v1::AXIS_LAYER;
    if (extent == 0 || extent > (layers ? kMaxLayers : kMaxHeads)) {
      return Reject(RefusalReason::kBadShape, "metric ", metric->name(), " has ", extent, layers ? " layers" : " heads",
                    ", allowed are 1 to ", layers ? kMaxLayers : kMaxHeads);
    }
    count *= extent;
  }
  const bool is_float = metric->dtype() == v1::DTYPE_FLOAT32;
  const auto values = static_cast<uint64_t>(is_float ? block.float32_size() : block.uint64_size());
  if (values != count || (is_float ? block.uint64_size() : block.float32_size()) != 0) {
    return Reject(RefusalReason::kBadShape, "metric ", metric->name(), " needs ", count,
                  is_float ? " float32" : " uint64", " values for its shape, the block has ", block.float32_size(),
                  " float32 and ", block.uint64_size(), " uint64");
  }
  return std::nullopt;
}

}  // namespace

MetricTable::MetricTable(const google::protobuf::RepeatedPtrField<v1::MetricDescriptor>& metrics)
    : by_id_(metrics.begin(), metrics.end()) {
  std::sort(by_id_.begin(), by_id_.end(), [](const auto& a, const auto& b) { return a.id() < b.id(); });
}

const v1::MetricDescriptor* MetricTable::Find(uint32_t id) const {
  const auto at =
      std::lower_bound(by_id_.begin(), by_id_.end(), id,
                       [](const v1::MetricDescriptor& metric, uint32_t wanted) { return metric.id() < wanted; });
  return at != by_id_.end() && at->id() == id ? &*at : nullptr;
}

std::optional<Rejection> ValidateRankInfo(const v1::RankInfo& info) {
  if (info.ByteSizeLong() > kMaxRankInfoBytes) {
    return Reject(RefusalReason::kBadRankInfo, "rank info has ", info.ByteSizeLong(), " bytes, the limit is ",
                  kMaxRankInfoBytes, "; send less metadata");
  }
  if (static_cast<uint32_t>(info.layers_size()) > kMaxLayers || static_cast<uint32_t>(info.modes_size()) > kMaxLayers) {
    return Reject(RefusalReason::kBadRankInfo, "rank info lists ", std::max(info.layers_size(), info.modes_size()),
                  " layers, the limit is ", kMaxLayers);
  }
  for (const v1::LayerInfo& layer : info.layers()) {
    if (layer.heads() > kMaxHeads || layer.kv_heads() > kMaxHeads) {
      return Reject(RefusalReason::kBadRankInfo, "layer ", layer.index(), " has ", layer.heads(),
                    " heads, the limit is ", kMaxHeads);
    }
  }
  return std::nullopt;
}

std::optional<Rejection> ValidateHello(const v1::Hello& hello) {
  const v1::RankInfo& info = hello.rank();
  if (hello.protocol_version() != kProtocolVersion) {
    return Rejection{RefusalReason::kProtocolVersion, absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("the courier speaks protocol ", hello.protocol_version(), ", this server speaks ",
                                  kProtocolVersion, "; install matching versions of trimtab and trimtabd")};
  }
  if (const absl::Status name = ValidateRunName(info.run()); !name.ok()) {
    return Reject(RefusalReason::kBadRunName, std::string(name.message()));
  }
  if (info.world_size() == 0 || info.world_size() > kMaxWorldSize) {
    return Reject(RefusalReason::kBadRank, "world size is ", info.world_size(), ", allowed are 1 to ", kMaxWorldSize);
  }
  if (info.rank() >= info.world_size()) {
    return Reject(RefusalReason::kBadRank, "rank ", info.rank(), " is not below the world size ", info.world_size(),
                  "; ranks count from 0, check RANK and WORLD_SIZE");
  }
  if (info.incarnation() == 0) return Reject(RefusalReason::kBadRank, "incarnation 0 is reserved; use a new agent");
  if (auto bad = ValidateRankInfo(info)) return bad;
  return ValidateMetrics(hello.metrics());
}

std::optional<Rejection> ValidateSteps(const v1::StepBatch& batch, const MetricTable& metrics) {
  uint64_t last = 0;
  for (const v1::Step& step : batch.steps()) {
    if (step.sequence() <= last) {
      return Reject(RefusalReason::kBadSequence, "sequence ", step.sequence(), " does not follow ", last,
                    "; sequences start at 1 and ascend within a batch");
    }
    last = step.sequence();
    if (static_cast<size_t>(step.blocks_size()) > kMaxMetrics) {
      return Reject(RefusalReason::kBadMetric, "step ", step.step(), " has ", step.blocks_size(),
                    " blocks, the limit is ", kMaxMetrics);
    }
    for (const v1::Block& block : step.blocks()) {
      if (auto bad = ValidateBlock(block, metrics)) return bad;
    }
  }
  return std::nullopt;
}

}  // namespace trimtab::server
