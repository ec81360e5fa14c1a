#include "tests/unit/server/support/messages.h"

namespace trimtab::server {

v1::MetricDescriptor Metric(uint32_t id, const std::string& name, v1::DType dtype, int axes, v1::Aggregation how) {
  v1::MetricDescriptor metric;
  metric.set_id(id);
  metric.set_name(name);
  metric.set_dtype(dtype);
  if (axes > 0) metric.add_axes(v1::AXIS_LAYER);
  if (axes > 1) metric.add_axes(v1::AXIS_HEAD);
  metric.set_aggregation(how);
  return metric;
}

std::vector<v1::MetricDescriptor> TestMetrics() {
  return {Metric(kLoss, "loss", v1::DTYPE_FLOAT32, 0, v1::AGGREGATION_MEAN),
          Metric(kGradNorm, "grad_norm", v1::DTYPE_FLOAT32, 0, v1::AGGREGATION_MAX),
          Metric(kMaxLogit, "max_attention_logit", v1::DTYPE_FLOAT32, 2, v1::AGGREGATION_MAX),
          Metric(kAttentionNonfinite, "attention_nonfinite", v1::DTYPE_UINT64, 2, v1::AGGREGATION_SUM),
          Metric(kMode, "attention_mode", v1::DTYPE_UINT64, 1, v1::AGGREGATION_LAST),
          Metric(kSpectralNormQ, "spectral_norm_q", v1::DTYPE_FLOAT32, 1, v1::AGGREGATION_MAX),
          Metric(kRepeatedMaxShare, "repeated_max_share", v1::DTYPE_FLOAT32, 2, v1::AGGREGATION_MEAN)};
}

v1::RankInfo Info(const std::string& run, uint32_t rank, uint32_t world_size, uint64_t incarnation) {
  v1::RankInfo info;
  info.set_run(run);
  info.set_rank(rank);
  info.set_world_size(world_size);
  info.set_incarnation(incarnation);
  info.set_host("node0");
  info.set_pid(4000 + rank);
  return info;
}

v1::Block Scalar(uint32_t metric, float value) { return Floats(metric, {}, {value}); }

v1::Block Floats(uint32_t metric, std::vector<uint32_t> shape, std::vector<float> values) {
  v1::Block block;
  block.set_metric(metric);
  block.mutable_shape()->Add(shape.begin(), shape.end());
  block.mutable_float32()->Add(values.begin(), values.end());
  return block;
}

v1::Block Counts(uint32_t metric, std::vector<uint32_t> shape, std::vector<uint64_t> values) {
  v1::Block block;
  block.set_metric(metric);
  block.mutable_shape()->Add(shape.begin(), shape.end());
  block.mutable_uint64()->Add(values.begin(), values.end());
  return block;
}

v1::Step LossStep(uint64_t sequence, uint64_t step, float loss) {
  v1::Step message;
  message.set_sequence(sequence);
  message.set_step(step);
  message.set_time_unix_nanos(1'700'000'000'000'000'000 + static_cast<int64_t>(step) * 100'000'000);
  *message.add_blocks() = Scalar(kLoss, loss);
  return message;
}

v1::AgentMessage HelloMessage(uint32_t channel, const v1::RankInfo& info) {
  v1::AgentMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_channel(channel);
  hello.set_protocol_version(1);
  *hello.mutable_rank() = info;
  for (v1::MetricDescriptor& metric : TestMetrics()) *hello.add_metrics() = std::move(metric);
  return message;
}

v1::AgentMessage StepsMessage(uint32_t channel, std::vector<v1::Step> steps) {
  v1::AgentMessage message;
  message.mutable_steps()->set_channel(channel);
  for (v1::Step& step : steps) *message.mutable_steps()->add_steps() = std::move(step);
  return message;
}

v1::AgentMessage GoodbyeMessage(uint32_t channel, bool clean) {
  v1::AgentMessage message;
  message.mutable_goodbye()->set_channel(channel);
  message.mutable_goodbye()->set_clean(clean);
  return message;
}

v1::AgentMessage AckMessage(uint32_t channel, uint64_t plan, v1::AckState state) {
  v1::AgentMessage message;
  message.mutable_ack()->set_channel(channel);
  message.mutable_ack()->set_plan(plan);
  message.mutable_ack()->set_state(state);
  return message;
}

}  // namespace trimtab::server
