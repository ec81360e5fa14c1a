// Speaks TelemetryService as a courier does, for tests of what the server shows: a synthetic run (synthetic_run.h) that
// reports, obeys switches like a well-behaved job, and ends. Prints "fed N" when every step is durable.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>

#include "tests/e2e/page/synthetic_run.h"
#include "trimtab/v1/telemetry.grpc.pb.h"

namespace trimtab {
namespace {

constexpr uint64_t kMostUnacked = 512;

struct Options {
  std::string server, run = "synthetic";
  uint32_t ranks = 1;
  uint64_t steps = 600, first_step = 1, incarnation = 1;
  double steps_per_second = 0, hold_seconds = 0;
  bool act = false, refuse = false, vanish = false;
  SyntheticRun::Options physics;
};

class Feeder {
 public:
  explicit Feeder(const Options& options)
      : options_(options),
        physics_(options.physics),
        stub_(v1::TelemetryService::NewStub(grpc::CreateChannel(options.server, grpc::InsecureChannelCredentials()))),
        acked_(options.ranks, 0) {}

  int Run() {
    stream_ = stub_->Session(&context_);
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) Hello(rank);
    std::thread reader([this] { Read(); });
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < options_.steps && Alive(); ++i) {
      const uint64_t step = options_.first_step + i;
      Obey(step);
      for (uint32_t rank = 0; rank < options_.ranks; ++rank) Send(rank, i + 1, physics_.Step(step, rank));
      WaitAcked(i + 1 > kMostUnacked ? i + 1 - kMostUnacked : 0);
      if (options_.steps_per_second > 0) {
        std::this_thread::sleep_until(start + std::chrono::duration<double>((i + 1) / options_.steps_per_second));
      }
    }
    WaitAcked(options_.steps);
    std::printf("fed %llu\n", static_cast<unsigned long long>(options_.steps));
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.hold_seconds));
    if (options_.vanish) {
      context_.TryCancel();
    } else {
      for (uint32_t rank = 0; rank < options_.ranks; ++rank) Goodbye(rank);
    }
    stream_->WritesDone();
    reader.join();
    const grpc::Status status = stream_->Finish();
    std::lock_guard<std::mutex> lock(mutex_);
    if (!refusal_.empty()) std::fprintf(stderr, "feeder: refused: %s\n", refusal_.c_str());
    if (!status.ok() && !options_.vanish) std::fprintf(stderr, "feeder: %s\n", status.error_message().c_str());
    return refusal_.empty() && (status.ok() || options_.vanish) ? 0 : 1;
  }

 private:
  v1::RankInfo Info(uint32_t rank) {
    v1::RankInfo info;
    info.set_run(options_.run);
    info.set_rank(rank);
    info.set_world_size(options_.ranks);
    info.set_incarnation(options_.incarnation);
    info.set_host("synthetic-host");
    info.set_pid(4242);
    info.set_act(options_.act);
    (*info.mutable_versions())["trimtab"] = "0.1.0";
    for (uint32_t layer = 0; layer < options_.physics.layers; ++layer) {
      v1::LayerInfo* const one = info.add_layers();
      one->set_index(layer);
      one->set_name("blocks." + std::to_string(layer) + ".attention");
      one->set_heads(options_.physics.heads);
      info.add_modes(physics_.modes()[layer]);
    }
    info.mutable_coverage()->add_hooked_ops("aten::_scaled_dot_product_flash_attention_for_cpu");
    v1::PassedBy* const passed = info.mutable_coverage()->add_passed_by();
    passed->set_op("aten::_scaled_dot_product_flash_attention_for_cpu");
    passed->set_reason("dropout");
    passed->set_calls(3);
    return info;
  }

  void Hello(uint32_t rank) {
    v1::AgentMessage message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_channel(rank + 1);
    hello.set_protocol_version(1);
    *hello.mutable_rank() = Info(rank);
    for (v1::MetricDescriptor& metric : BuiltInMetrics()) *hello.add_metrics() = std::move(metric);
    Write(message);
  }

  void Send(uint32_t rank, uint64_t sequence, v1::Step step) {
    v1::AgentMessage message;
    message.mutable_steps()->set_channel(rank + 1);
    step.set_sequence(sequence);
    *message.mutable_steps()->add_steps() = std::move(step);
    Write(message);
  }

  void Goodbye(uint32_t rank) {
    v1::AgentMessage message;
    message.mutable_goodbye()->set_channel(rank + 1);
    message.mutable_goodbye()->set_clean(true);
    Write(message);
  }

  void Ack(const v1::Command& command, v1::AckState state, uint64_t step, const std::string& reason = "") {
    v1::AgentMessage message;
    v1::CommandAck& ack = *message.mutable_ack();
    ack.set_channel(command.channel());
    ack.set_plan(command.plan());
    ack.set_state(state);
    ack.set_step(step);
    ack.set_reason(reason);
    Write(message);
  }

  // At the boundary before computing `step`: answers what came, and switches when the time is there.
  void Obey(uint64_t step) {
    std::deque<v1::Command> commands;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      commands.swap(commands_);
    }
    for (const v1::Command& command : commands) {
      if (command.phase() == v1::COMMAND_PHASE_ABORT) {
        pending_.clear();
        Ack(command, v1::ACK_STATE_ABORTED, step);
      } else if (options_.refuse && command.channel() == options_.ranks) {
        Ack(command, v1::ACK_STATE_REFUSED, step, "shadow comparison differs by 0.3; tolerance 0.01");
      } else if (command.phase() == v1::COMMAND_PHASE_PREPARE) {
        Ack(command, v1::ACK_STATE_PREPARED, step);
      } else if (command.effective_step() < step) {
        Ack(command, v1::ACK_STATE_REFUSED, step, "late");
      } else {
        Ack(command, v1::ACK_STATE_COMMITTED, step);
        pending_.push_back(command);
      }
    }
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (it->effective_step() != step) {
        ++it;
        continue;
      }
      for (uint32_t layer = 0; layer < physics_.modes().size(); ++layer) {
        const bool named = std::find(it->layers().begin(), it->layers().end(), layer) != it->layers().end();
        if (it->layers().empty() || named) physics_.modes()[layer] = it->mode();
      }
      Ack(*it, v1::ACK_STATE_APPLIED, step);
      v1::AgentMessage update;
      update.mutable_update()->set_channel(it->channel());
      *update.mutable_update()->mutable_rank() = Info(it->channel() - 1);
      Write(update);
      it = pending_.erase(it);
    }
  }

  void Read() {
    v1::ServerMessage message;
    while (stream_->Read(&message)) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (message.has_durable()) {
        uint64_t& acked = acked_[message.durable().channel() - 1];
        acked = std::max(acked, message.durable().sequence());
      } else if (message.has_command()) {
        commands_.push_back(message.command());
      } else if (message.has_refusal()) {
        refusal_ = message.refusal().message();
        ended_ = true;
      }
      changed_.notify_all();
    }
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  void WaitAcked(uint64_t sequence) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] {
      return ended_ || std::all_of(acked_.begin(), acked_.end(), [&](uint64_t one) { return one >= sequence; });
    });
  }

  bool Alive() {
    std::lock_guard<std::mutex> lock(mutex_);
    return !ended_;
  }

  void Write(const v1::AgentMessage& message) { stream_->Write(message); }

  const Options options_;
  SyntheticRun physics_;
  std::unique_ptr<v1::TelemetryService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::ServerMessage>> stream_;
  std::vector<v1::Command> pending_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> acked_;
  std::deque<v1::Command> commands_;
  std::string refusal_;
  bool ended_ = false;
};

}  // namespace
}  // namespace trimtab

int main(int argc, char** argv) {
  trimtab::Options options;
  CLI::App app("Feeds a synthetic run to trimtabd.");
  app.add_option("--server", options.server)->required();
  app.add_option("--run", options.run);
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 64));
  app.add_option("--steps", options.steps);
  app.add_option("--first-step", options.first_step);
  app.add_option("--incarnation", options.incarnation);
  app.add_option("--rate", options.steps_per_second, "steps a second; 0: as fast as the server takes them");
  app.add_option("--hold", options.hold_seconds, "stay connected and silent so long at the end");
  app.add_option("--layers", options.physics.layers);
  app.add_option("--heads", options.physics.heads);
  app.add_option("--runaway-step", options.physics.runaway_step);
  app.add_flag("--odd-values", options.physics.odd_values, "NaN and infinity in some places");
  app.add_flag("--act", options.act);
  app.add_flag("--refuse", options.refuse, "the last rank refuses every switch");
  app.add_flag("--vanish", options.vanish, "end without a goodbye");
  CLI11_PARSE(app, argc, argv);
  return trimtab::Feeder(options).Run();
}
