// trimtab-courier: carries telemetry of the trainers on one node to trimtabd, and commands back.
#include <signal.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <exception>

#include "agent/courier/courier.h"
#include "agent/courier/grpc_session.h"
#include "agent/courier/options.h"

namespace {

trimtab::courier::Courier* running = nullptr;

void OnSignal(int signal) {
  if (running != nullptr) running->Stop();
  ::signal(signal, SIG_DFL);  // the second one ends us at once
}

// False, with a line on stderr, when the log file cannot be written.
bool StartLog(const trimtab::courier::Options& options) {
  try {
    auto logger = options.log_file.empty() ? spdlog::stderr_logger_st("courier")
                                           : spdlog::basic_logger_st("courier", options.log_file);
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l courier[%P]: %v");
    logger->flush_on(spdlog::level::info);
    spdlog::set_default_logger(std::move(logger));
    spdlog::set_level(spdlog::level::from_str(options.log_level));
    return true;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "trimtab-courier: --log-file: %s\n", e.what());
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  std::optional<trimtab::courier::Options> options = trimtab::courier::ParseOptions(argc, argv, &code);
  if (!options.has_value()) return code;
  if (!StartLog(*options)) return trimtab::courier::kExitUsage;
  const std::string server = options->server;
  trimtab::courier::Courier courier(*std::move(options),
                                    [server] { return trimtab::courier::OpenGrpcSession(server); });
  running = &courier;
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t handled;  // a launcher that waits for signals has them blocked, and we inherit that
  sigemptyset(&handled);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    sigaddset(&handled, signal);
    ::signal(signal, OnSignal);
  }
  sigprocmask(SIG_UNBLOCK, &handled, nullptr);
  return courier.Run();
}
