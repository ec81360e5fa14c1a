#include "tests/unit/server/http/world.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "absl/time/clock.h"

namespace trimtab::server {
namespace {

std::vector<v1::MetricDescriptor> Metrics() {
  std::vector<v1::MetricDescriptor> metrics(3);
  metrics[0].set_id(World::kLoss);
  metrics[0].set_name("loss");
  metrics[1].set_id(World::kLogit);
  metrics[1].set_name("max_attention_logit");
  metrics[1].add_axes(v1::AXIS_LAYER);
  metrics[1].add_axes(v1::AXIS_HEAD);
  metrics[1].set_aggregation(v1::AGGREGATION_MAX);
  metrics[2].set_id(World::kSigma);
  metrics[2].set_name("spectral_norm_q");
  metrics[2].add_axes(v1::AXIS_LAYER);
  metrics[2].set_aggregation(v1::AGGREGATION_MAX);
  for (v1::MetricDescriptor& metric : metrics) metric.set_dtype(v1::DTYPE_FLOAT32);
  metrics[0].set_aggregation(v1::AGGREGATION_MEAN);
  return metrics;
}

}  // namespace

World::World() {
  std::string pattern = (std::filesystem::temp_directory_path() / "trimtab-http-XXXXXX").string();
  folder_ = mkdtemp(pattern.data());
  StoreOptions options;
  options.path = folder_ / "store";
  auto store = Store::Open(options);
  if (!store.ok()) ADD_FAILURE() << store.status();
  store_ = *std::move(store);
  registry_ = Registry::Create({}, store_.get());
}

World::~World() {
  registry_.reset();
  store_.reset();
  std::filesystem::remove_all(folder_);
}

void World::Join(const std::string& run, uint64_t incarnation) {
  v1::RankInfo info;
  info.set_run(run);
  info.set_world_size(1);
  info.set_incarnation(incarnation);
  info.set_host("node \"1\"");
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    info.add_modes(layer == 0 ? v1::KERNEL_MODE_OBSERVE : v1::KERNEL_MODE_STABILIZED);
    v1::LayerInfo* const one = info.add_layers();
    one->set_index(layer);
    one->set_name("h." + std::to_string(layer) + ".attn");
    one->set_heads(kHeads);
  }
  info.mutable_coverage()->add_hooked_ops("aten::op");
  const auto metrics = Metrics();
  ASSERT_TRUE(store_->RegisterRank(info, metrics).ok());
  registry_->OnRankJoined({run, 0, incarnation}, info, metrics);
}

float World::Logit(uint64_t step, uint32_t layer, uint32_t head) {
  return static_cast<float>(100 * layer + head + step);
}

void World::Step(const std::string& run, uint64_t step, float loss, uint64_t incarnation) {
  v1::Step one;
  one.set_sequence(++sequence_);
  one.set_step(step);
  one.set_time_unix_nanos(absl::GetCurrentTimeNanos());
  v1::Block* block = one.add_blocks();
  block->set_metric(kLoss);
  block->add_float32(loss);
  block = one.add_blocks();
  block->set_metric(kLogit);
  block->add_shape(kLayers);
  block->add_shape(kHeads);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint32_t head = 0; head < kHeads; ++head) block->add_float32(Logit(step, layer, head));
  }
  block = one.add_blocks();
  block->set_metric(kSigma);
  block->add_shape(kLayers);
  for (uint32_t layer = 0; layer < kLayers; ++layer) block->add_float32(1.5F + static_cast<float>(layer));
  const RankKey key{run, 0, incarnation};
  const RankSteps steps{key, {&one}};
  const absl::Status status = store_->AppendSteps({&steps, 1});
  ASSERT_TRUE(status.ok()) << status;
  const v1::Step* const pointer = &one;
  registry_->OnSteps(key, {&pointer, 1});
}

void World::Event(const std::string& run, const std::string& message, const std::string& evidence_json) {
  v1::Event event;
  event.set_run(run);
  event.set_kind("alert");
  event.set_severity(v1::SEVERITY_CRITICAL);
  event.set_step(7);
  event.set_message(message);
  event.set_evidence_json(evidence_json);
  event.set_time_unix_nanos(absl::GetCurrentTimeNanos());
  ASSERT_TRUE(store_->Append(event).ok());
}

}  // namespace trimtab::server
