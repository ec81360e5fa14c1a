// A run's state as text: shared by `show` and `top`.
#ifndef TRIMTAB_SERVER_CLI_RUN_VIEW_H_
#define TRIMTAB_SERVER_CLI_RUN_VIEW_H_

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/cli/text.h"
#include "trimtab/v1/query.pb.h"

namespace trimtab::cli {

std::vector<v1::KernelMode> ModesOf(const google::protobuf::RepeatedField<int>& modes);

// Descriptor and last block of a metric; both null when the run has no value of it.
struct LatestMetric {
  const v1::MetricDescriptor* descriptor = nullptr;
  const v1::Block* block = nullptr;
};
LatestMetric Latest(const v1::RunState& state, const std::string& metric);
// The value of a scalar metric.
std::optional<float> LatestScalar(const v1::RunState& state, const std::string& metric);

// Name, status, step, loss, gradient norm, rate, ranks, modes, age of the last sample; a few lines.
std::string SummaryText(const v1::RunState& state, int64_t now_unix_nanos);

// One row a layer: mode, largest logit and its head, repeated-max share, spectral norms, activation rms.
Table LayerTable(const v1::RunState& state);

}  // namespace trimtab::cli
#endif  // TRIMTAB_SERVER_CLI_RUN_VIEW_H_
