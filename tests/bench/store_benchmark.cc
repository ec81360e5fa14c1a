// The store alone: durable values a second into it, bytes a value on disk, and the time to read one head.
//
// Data is as noisy as training signals are: a drifting level per cell and 1 % of log-normal noise a step, in float32.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "server/query/select_cell.h"
#include "server/store/store.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/temp_dir.h"

namespace trimtab::server {
namespace {

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

class Signals {
 public:
  Signals(uint32_t layers, uint32_t heads) : layers_(layers), heads_(heads) {
    for (uint32_t i = 0; i < layers * heads; ++i) level_.push_back(2 + 40 * uniform_(random_));
  }
  v1::Step Next() {
    ++step_;
    v1::Step step;
    step.set_sequence(step_);
    step.set_step(step_);
    step.set_time_unix_nanos(1'700'000'000'000'000'000 + static_cast<int64_t>(step_) * 250'000'000);
    v1::Block block = Floats(kMaxLogit, {layers_, heads_}, {});
    block.mutable_float32()->Reserve(static_cast<int>(level_.size()));
    for (const double level : level_) block.add_float32(static_cast<float>(level * std::exp(0.01 * normal_(random_))));
    *step.add_blocks() = std::move(block);
    return step;
  }

 private:
  const uint32_t layers_, heads_;
  uint64_t step_ = 0;
  std::mt19937 random_{1};
  std::uniform_real_distribution<double> uniform_;
  std::normal_distribution<double> normal_;
  std::vector<double> level_;
};

struct Database {
  Database() {
    auto opened = Store::Open({.path = folder.path()});
    Check(opened.status());
    store = *std::move(opened);
    Check(store->RegisterRank(Info("run"), TestMetrics()).status());
  }
  void Append(const std::vector<v1::Step>& steps) {
    RankSteps batch{{"run", 0, 1}, {}};
    for (const v1::Step& step : steps) batch.steps.push_back(&step);
    Check(store->AppendSteps({&batch, 1}));
  }
  TempDir folder;
  std::unique_ptr<Store> store;
};

// range(0): steps that share a sync; each step is one block of 32 × 32 float32.
void BM_DurableAppend(benchmark::State& state) {
  Database database;
  Signals signals(32, 32);
  std::vector<v1::Step> steps(static_cast<size_t>(state.range(0)));
  uint64_t values = 0;
  for (auto _ : state) {
    state.PauseTiming();
    for (v1::Step& step : steps) step = signals.Next();
    state.ResumeTiming();
    database.Append(steps);
    values += steps.size() * 1024;
  }
  state.counters["values/s"] = benchmark::Counter(static_cast<double>(values), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_DurableAppend)->Arg(1)->Arg(8)->Arg(64)->Arg(512)->UseRealTime();
// CPU time of the calling thread: what one core can encode and write, without the wait for the disk.
BENCHMARK(BM_DurableAppend)->Name("BM_AppendCpu")->Arg(64)->Arg(512);

// range(0) layers, range(1) heads, 4,000 steps, after compaction.
void BM_BytesPerValue(benchmark::State& state) {
  const auto layers = static_cast<uint32_t>(state.range(0)), heads = static_cast<uint32_t>(state.range(1));
  constexpr int kSteps = 4000, kCommit = 100;
  double bytes = 0;
  for (auto _ : state) {
    Database database;
    Signals signals(layers, heads);
    std::vector<v1::Step> steps(kCommit);
    for (int i = 0; i < kSteps / kCommit; ++i) {
      for (v1::Step& step : steps) step = signals.Next();
      database.Append(steps);
    }
    Check(database.store->Compact());
    bytes = static_cast<double>(database.store->statistics().bytes_on_disk);
  }
  state.counters["bytes/value"] = bytes / (static_cast<double>(layers) * heads * kSteps);
}
BENCHMARK(BM_BytesPerValue)->Args({12, 12})->Args({32, 32})->Unit(benchmark::kMillisecond)->Iterations(1);

// One head over 8,000 steps out of 32 × 32 blocks.
void BM_ReadOneHead(benchmark::State& state) {
  constexpr int kSteps = 8000, kCommit = 200;
  Database database;
  Signals signals(32, 32);
  std::vector<v1::Step> steps(kCommit);
  for (int i = 0; i < kSteps / kCommit; ++i) {
    for (v1::Step& step : steps) step = signals.Next();
    database.Append(steps);
  }
  Check(database.store->Compact());
  for (auto _ : state) {
    double sum = 0;
    Check(database.store->ReadRows("run", "max_attention_logit", 0, 0, 0, [&](const Store::Row& row) {
      v1::Block block = row.block;
      Check(SelectCell(7, 11, &block));
      sum += block.float32(0);
      return true;
    }));
    benchmark::DoNotOptimize(sum);
  }
}
BENCHMARK(BM_ReadOneHead)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trimtab::server
