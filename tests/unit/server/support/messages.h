// Messages as an agent with a small schema would send them.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_MESSAGES_H_
#define TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trimtab/v1/telemetry.pb.h"

namespace trimtab::server {

enum TestMetric : uint32_t {
  kLoss = 1,
  kGradNorm = 2,
  kMaxLogit = 3,            // [layer, head] f32 MAX
  kAttentionNonfinite = 4,  // [layer, head] u64 SUM
  kMode = 5,                // [layer] u64 LAST
  kSpectralNormQ = 6,       // [layer] f32 MAX
  kRepeatedMaxShare = 7,    // [layer, head] f32 MEAN
};

v1::MetricDescriptor Metric(uint32_t id, const std::string& name, v1::DType dtype, int axes, v1::Aggregation how);
std::vector<v1::MetricDescriptor> TestMetrics();

v1::RankInfo Info(const std::string& run, uint32_t rank = 0, uint32_t world_size = 1, uint64_t incarnation = 1);

v1::Block Scalar(uint32_t metric, float value);
v1::Block Floats(uint32_t metric, std::vector<uint32_t> shape, std::vector<float> values);
v1::Block Counts(uint32_t metric, std::vector<uint32_t> shape, std::vector<uint64_t> values);

// A step with a loss of `loss`.
v1::Step LossStep(uint64_t sequence, uint64_t step, float loss);

v1::AgentMessage HelloMessage(uint32_t channel, const v1::RankInfo& info);
v1::AgentMessage StepsMessage(uint32_t channel, std::vector<v1::Step> steps);
v1::AgentMessage GoodbyeMessage(uint32_t channel, bool clean);
v1::AgentMessage AckMessage(uint32_t channel, uint64_t plan, v1::AckState state);

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_MESSAGES_H_
