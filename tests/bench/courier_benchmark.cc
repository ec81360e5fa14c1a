// What the courier costs: the way of a step from ring to message without a network, and the whole executable serving a
// node.
#include <benchmark/benchmark.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/core/ring_reader.h"
#include "agent/courier/spool.h"
#include "agent/courier/step_encoder.h"
#include "agent/courier/step_queue.h"
#include "tests/unit/agent/courier/test_server.h"
#include "tests/unit/agent/courier/test_trainer.h"

namespace trimtab::courier {
namespace {

constexpr uint32_t kLayers = 12;
constexpr uint32_t kHeads = 12;
constexpr uint32_t kMetrics = 20;
constexpr uint64_t kValues = uint64_t{kLayers} * kHeads * kMetrics;

// A step with the values of a GPT-2-small: [12, 12] of the first twenty metrics that have both axes.
void WriteStep(trimtab_agent* agent, uint64_t step) {
  static const std::vector<float> floats(size_t{kLayers} * kHeads, 1.5f);
  static const std::vector<uint64_t> counts(size_t{kLayers} * kHeads, 123456);
  trimtab_step_begin(agent, step, 1);
  uint32_t put = 0;
  for (uint32_t i = 0; const trimtab_metric* metric = trimtab_metric_info(i); ++i) {
    if (metric->axes != TRIMTAB_AXES_LAYER_HEAD || put == kMetrics) continue;
    ++put;
    if (metric->is_uint64) {
      trimtab_step_put_u64(agent, metric->id, counts.data(), kLayers, kHeads);
    } else {
      trimtab_step_put_f32(agent, metric->id, floats.data(), kLayers, kHeads);
    }
  }
  if (trimtab_step_commit(agent) != TRIMTAB_OK || put < kMetrics - 5) std::abort();
}

double CpuSeconds(const rusage& usage) {
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Ring → encode → queue → batch → bytes of the message, one thread.
void BM_RingToMessage(benchmark::State& state) {
  const TempFolder folder;
  TestTrainer trainer(folder.path(), 0, 64 << 20);
  constexpr uint64_t kSteps = 1000;
  for (uint64_t step = 1; step <= kSteps; ++step) WriteStep(trainer.agent(), step);
  agent::RingError error;
  std::string message;
  const auto ring = agent::RingReader::Open(FilesBelow(folder.path(), ".ring").at(0), &error, &message);
  StepEncoder encoder;
  agent::RingStep step;
  Spool spool({folder / "spool", uint64_t{1} << 30, "here:1"});
  uint64_t steps = 0;
  uint64_t bytes = 0;
  for (auto _ : state) {
    StepQueue queue(spool.Create(v1::Hello()));
    queue.Resume(0);
    ring->SeekAfter(0);
    while (ring->Next(&step) == agent::ReadResult::kStep) {
      std::string encoded;
      if (!encoder.Encode(step, &encoded).ok()) std::abort();
      queue.Push(step.sequence, std::move(encoded));
      v1::AgentMessage out;
      if (queue.FillBatch(out.mutable_steps())) bytes += out.SerializeAsString().size();
      queue.Ack(step.sequence);
      ++steps;
    }
  }
  state.counters["values/s"] = benchmark::Counter(static_cast<double>(steps * kValues), benchmark::Counter::kIsRate);
  state.counters["bytes/value"] = static_cast<double>(bytes) / static_cast<double>(steps * kValues);
}
BENCHMARK(BM_RingToMessage)->Unit(benchmark::kMillisecond);

// trimtab-courier as a process: 16 ranks at 10 steps/s. core_share is its CPU time by wall time.
void BM_NodeOf16Ranks(benchmark::State& state) {
  for (auto _ : state) {
    const TempFolder folder;
    ServerStore store;
    TestServer server(&store, 0);
    std::vector<std::string> args = {TRIMTAB_COURIER,  "--server",    server.address(), "--ring-dir",
                                     folder / "rings", "--spool-dir", folder / "spool", "--exit-when-idle",
                                     "--log-level",    "warn"};
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    if (posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ) != 0) std::abort();
    std::vector<std::unique_ptr<TestTrainer>> trainers;
    for (uint32_t rank = 0; rank < 16; ++rank)
      trainers.push_back(std::make_unique<TestTrainer>(folder / "rings", rank));
    const uint64_t steps = static_cast<uint64_t>(state.range(0)) * 10;
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t step = 1; step <= steps; ++step) {
      for (size_t rank = 0; rank < trainers.size(); ++rank) {
        std::this_thread::sleep_until(start + std::chrono::milliseconds(100) * step +
                                      std::chrono::milliseconds(6) * rank);
        WriteStep(trainers[rank]->agent(), step);
      }
    }
    trainers.clear();
    int status = 0;
    rusage usage = {};
    if (wait4(pid, &status, 0, &usage) != pid || status != 0) std::abort();
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.counters["core_share"] = CpuSeconds(usage) / wall;
    state.counters["values"] = static_cast<double>(16 * steps * kValues);
    state.counters["max_rss_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
    for (uint32_t rank = 0; rank < 16; ++rank) {
      if (store.Steps(rank) != steps) std::abort();
    }
  }
}
BENCHMARK(BM_NodeOf16Ranks)->Arg(5)->Iterations(1)->Unit(benchmark::kSecond);

// trimtab-courier delivering the backlog of a ring as fast as it can.
void BM_Backlog(benchmark::State& state) {
  constexpr uint64_t kSteps = 4000;
  double cpu = 0;
  for (auto _ : state) {
    const TempFolder folder;
    ServerStore store;
    TestServer server(&store, 0);
    {
      TestTrainer trainer(folder / "rings", 0, 128 << 20);
      for (uint64_t step = 1; step <= kSteps; ++step) WriteStep(trainer.agent(), step);
    }
    std::vector<std::string> args = {TRIMTAB_COURIER,  "--server",    server.address(), "--ring-dir",
                                     folder / "rings", "--spool-dir", folder / "spool", "--exit-when-idle",
                                     "--log-level",    "warn"};
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    if (posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ) != 0) std::abort();
    int status = 0;
    rusage usage = {};
    if (wait4(pid, &status, 0, &usage) != pid || status != 0 || store.Steps(0) != kSteps) std::abort();
    cpu += CpuSeconds(usage);
  }
  state.counters["values/core_s"] =
      static_cast<double>(state.iterations()) * static_cast<double>(kSteps * kValues) / cpu;
}
BENCHMARK(BM_Backlog)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace trimtab::courier
