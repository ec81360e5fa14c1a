// A real trimtabd fed by couriers over loopback gRPC: values a second made durable, and what of it the server's own CPU
// time allows a core. The clients run on the same machine and are not counted in the latter.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/server_process.h"
#include "tests/unit/server/support/temp_dir.h"
#include "tests/unit/server/support/test_courier.h"

namespace trimtab::server {
namespace {

double CpuSeconds(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream rest(text.substr(text.rfind(')') + 2));  // after "pid (name)"
  std::string field;
  for (int i = 0; i < 11; ++i) rest >> field;
  double user = 0, system = 0;
  rest >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// range(0): couriers. range(1): values a block. Each message has 8 steps of one block.
void BM_Ingest(benchmark::State& state) {
  const auto couriers = static_cast<uint32_t>(state.range(0));
  const auto heads = static_cast<uint32_t>(state.range(1)) / 32;
  constexpr uint64_t kStepsPerMessage = 8, kMessages = 64;
  TempDir folder;
  const std::string ready = folder.File("ready");
  ServerProcess server(
      TRIMTABD, {"--data-dir", folder.File("data"), "--listen", "127.0.0.1:0", "--http", "", "--ready-file", ready},
      folder.File("out"));
  if (!server.WaitReady(ready)) {
    std::fprintf(stderr, "%s\n", server.output().c_str());
    std::abort();
  }
  std::vector<std::unique_ptr<TestCourier>> streams;
  for (uint32_t rank = 0; rank < couriers; ++rank) {
    streams.push_back(std::make_unique<TestCourier>(server.grpc_address()));
    streams.back()->Send(HelloMessage(1, Info("run", rank, couriers)));
    if (!streams.back()->WaitWelcome(1)) std::abort();
  }
  std::vector<float> values(32 * heads);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 2654435761U % 1000003) * 1e-3F;
  v1::Step step;
  *step.add_blocks() = Floats(kMaxLogit, {32, heads}, values);
  uint64_t sequence = 0, total = 0;
  const double cpu_before = CpuSeconds(server.pid());
  for (auto _ : state) {
    std::vector<std::thread> senders;
    for (const auto& stream : streams) {
      senders.emplace_back([&, first = sequence] {
        uint64_t next = first;
        for (uint64_t m = 0; m < kMessages; ++m) {
          std::vector<v1::Step> steps(kStepsPerMessage, step);
          for (v1::Step& s : steps) {
            s.set_sequence(++next);
            s.set_step(next);
          }
          stream->Send(StepsMessage(1, std::move(steps)));
        }
        if (!stream->WaitDurable(1, next)) std::abort();
      });
    }
    for (std::thread& sender : senders) sender.join();
    sequence += kMessages * kStepsPerMessage;
    total += kMessages * kStepsPerMessage * couriers * values.size();
  }
  const double cpu = CpuSeconds(server.pid()) - cpu_before;
  state.counters["values/s"] = benchmark::Counter(static_cast<double>(total), benchmark::Counter::kIsRate);
  state.counters["values/server-cpu-s"] = cpu > 0 ? static_cast<double>(total) / cpu : 0;
}
BENCHMARK(BM_Ingest)->Args({1, 1024})->Args({4, 1024})->Args({4, 4096})->Args({4, 160})->UseRealTime()->Unit(
    benchmark::kMillisecond);

}  // namespace
}  // namespace trimtab::server
