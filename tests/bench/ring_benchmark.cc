// What one step costs the training thread, and how fast a courier reads it back. The shape is GPT-2 small's unless
// said: 12 layers, 12 heads, every metric of the schema.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "agent/core/crc32c.h"
#include "agent/core/ring_reader.h"
#include "trimtab/agent.h"

namespace trimtab::agent {
namespace {

class Ring {
 public:
  Ring() {
    std::string name = "/dev/shm/trimtab-bench-XXXXXX";
    dir_ = mkdtemp(name.data());
    trimtab_options options = {};
    options.struct_size = sizeof(options);
    options.ring_dir = dir_.c_str();
    options.run = "bench";
    options.world_size = 1;
    options.act = 1;
    if (trimtab_open(&options, &agent_) != TRIMTAB_OK) std::abort();
  }
  ~Ring() {
    trimtab_close(agent_);
    std::filesystem::remove_all(dir_);
  }
  trimtab_agent* agent() { return agent_; }
  std::unique_ptr<RingReader> Reader() {
    RingError error;
    std::string message;
    return RingReader::Open(trimtab_ring_path(agent_), &error, &message);
  }

 private:
  std::string dir_;
  trimtab_agent* agent_ = nullptr;
};

// Every metric of the schema; returns the values put.
uint64_t PutAll(trimtab_agent* agent, uint32_t layers, uint32_t heads, const std::vector<uint64_t>& data) {
  uint64_t values = 0;
  for (uint32_t row = 0; const trimtab_metric* metric = trimtab_metric_info(row); ++row) {
    const uint32_t dim0 = metric->axes == TRIMTAB_AXES_SCALAR ? 0 : layers;
    const uint32_t dim1 = metric->axes == TRIMTAB_AXES_LAYER_HEAD ? heads : 0;
    if (metric->is_uint64 != 0) {
      trimtab_step_put_u64(agent, metric->id, data.data(), dim0, dim1);
    } else {
      trimtab_step_put_f32(agent, metric->id, reinterpret_cast<const float*>(data.data()), dim0, dim1);
    }
    values += uint64_t{dim0 == 0 ? 1 : dim0} * (dim1 == 0 ? 1 : dim1);
  }
  return values;
}

void WholeStep(benchmark::State& state) {
  Ring ring;
  const auto layers = static_cast<uint32_t>(state.range(0));
  const auto heads = static_cast<uint32_t>(state.range(1));
  const std::vector<uint64_t> data(uint64_t{layers} * heads, 3);
  uint64_t step = 0;
  uint64_t values = 0;
  for (auto _ : state) {
    trimtab_step_begin(ring.agent(), ++step, 0);
    values += PutAll(ring.agent(), layers, heads, data);
    if (trimtab_step_commit(ring.agent()) != TRIMTAB_OK) state.SkipWithError(trimtab_last_error());
  }
  state.counters["values/s"] = benchmark::Counter(static_cast<double>(values), benchmark::Counter::kIsRate);
}
BENCHMARK(WholeStep)->Args({12, 12})->Args({32, 32})->Args({96, 96})->ArgNames({"layers", "heads"});

// A step between samples: scalars and the modes.
void UnsampledStep(benchmark::State& state) {
  Ring ring;
  const std::vector<uint64_t> modes(12, TRIMTAB_MODE_OBSERVE);
  const float value = 1.5f;
  uint64_t step = 0;
  for (auto _ : state) {
    trimtab_step_begin(ring.agent(), ++step, 0);
    for (uint32_t metric = 1; metric <= 5; ++metric) trimtab_step_put_f32(ring.agent(), metric, &value, 0, 0);
    trimtab_step_put_u64(ring.agent(), 77, modes.data(), 12, 0);
    trimtab_step_commit(ring.agent());
  }
}
BENCHMARK(UnsampledStep);

void IdleBoundary(benchmark::State& state) {
  Ring ring;
  std::vector<uint8_t> modes(12, TRIMTAB_MODE_OBSERVE);
  uint64_t step = 0;
  for (auto _ : state) benchmark::DoNotOptimize(trimtab_latch_step(ring.agent(), ++step, modes.data(), 12));
}
BENCHMARK(IdleBoundary);

void ReadStep(benchmark::State& state) {
  Ring ring;
  const std::vector<uint64_t> data(144, 3);
  for (uint64_t step = 0; step < 200; ++step) {
    trimtab_step_begin(ring.agent(), step, 0);
    PutAll(ring.agent(), 12, 12, data);
    trimtab_step_commit(ring.agent());
  }
  const auto reader = ring.Reader();
  RingStep step;
  for (auto _ : state) {
    if (reader->Next(&step) == ReadResult::kEmpty) reader->SeekAfter(0);
  }
}
BENCHMARK(ReadStep);

void Checksum(benchmark::State& state) {
  const std::vector<uint8_t> data(static_cast<size_t>(state.range(0)), 7);
  for (auto _ : state) {
    benchmark::DoNotOptimize(state.range(1) != 0 ? Crc32c(0, data.data(), data.size())
                                                 : Crc32cPortable(0, data.data(), data.size()));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}
BENCHMARK(Checksum)->Args({16384, 1})->Args({16384, 0})->ArgNames({"bytes", "hardware"});

}  // namespace
}  // namespace trimtab::agent
