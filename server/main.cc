// trimtabd: wires the rooms together, serves until SIGTERM or SIGINT, and shuts down in the order that loses nothing.
//
// Exit status: 0 after a clean shutdown, 1 when it cannot serve (port taken, data folder
// locked) or go on (the disk failed under the store's log), 2 for bad settings.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "server/config/config.h"
#include "server/daemon/daemon.h"
#include "server/daemon/stop_signal.h"

namespace {

constexpr int kCannotServe = 1;
constexpr int kBadSettings = 2;

int Complain(const absl::Status& status, int code) {
  std::fprintf(stderr, "trimtabd: %s\n", std::string(status.message()).c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  using trimtab::server::Daemon;
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // its causes are in our own messages; set it to see more
  // Before any thread exists, so that all inherit the mask and only StopSignal sees the signals.
  const trimtab::server::StopSignal stop;
  const auto parsed = trimtab::server::ParseCommandLine(argc, argv, TRIMTAB_VERSION);
  if (!parsed.ok()) return Complain(parsed.status(), kBadSettings);
  if (!parsed->message.empty()) {
    std::fputs(parsed->message.c_str(), stdout);
    return 0;
  }
  spdlog::set_default_logger(spdlog::stderr_color_mt("trimtabd"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  spdlog::set_level(spdlog::level::from_str(parsed->config.log_level));
  if (const absl::Status usable = Daemon::Check(parsed->config); !usable.ok()) return Complain(usable, kBadSettings);
  if (parsed->check_only) {
    std::puts("configuration is good");
    return 0;
  }
  auto daemon = Daemon::Start(parsed->config, TRIMTAB_VERSION);
  if (!daemon.ok()) return Complain(daemon.status(), kCannotServe);
  const int signal = stop.Wait();
  spdlog::info("signal {}: shutting down", signal);
  (*daemon)->Shutdown();
  const absl::Status failure = (*daemon)->failure();
  return failure.ok() ? 0 : Complain(failure, kCannotServe);
}
