// Runs a Courier on a thread of the test, with short waits.
#ifndef TRIMTAB_TESTS_UNIT_AGENT_COURIER_COURIER_RUNNER_H_
#define TRIMTAB_TESTS_UNIT_AGENT_COURIER_COURIER_RUNNER_H_

#include <optional>
#include <string>
#include <thread>

#include "agent/courier/courier.h"
#include "agent/courier/grpc_session.h"

namespace trimtab::courier {

inline Options TestOptions(const std::string& server, const std::string& ring_dir, const std::string& spool_dir) {
  Options options;
  options.server = server;
  options.ring_dir = ring_dir;
  options.spool_dir = spool_dir;
  options.poll_ms = 5;
  options.exit_when_idle = true;
  options.timings.scan = std::chrono::milliseconds(20);
  options.timings.liveness = std::chrono::milliseconds(20);
  options.timings.info = std::chrono::milliseconds(10);
  options.timings.update_min = std::chrono::milliseconds(50);
  options.timings.heartbeat = std::chrono::milliseconds(100);
  options.timings.spill_after = std::chrono::milliseconds(100);
  options.timings.park_after = std::chrono::milliseconds(500);
  options.timings.depart_linger = std::chrono::milliseconds(50);
  options.timings.settle = std::chrono::milliseconds(100);
  options.timings.backoff_min = std::chrono::milliseconds(10);
  options.timings.backoff_max = std::chrono::milliseconds(100);
  options.timings.refused_retry = std::chrono::milliseconds(50);
  options.timings.refused_retry_max = std::chrono::milliseconds(200);
  options.timings.command_min = std::chrono::milliseconds(50);
  return options;
}

class CourierRunner {
 public:
  explicit CourierRunner(const Options& options)
      : courier_(options, [server = options.server] { return OpenGrpcSession(server); }),
        thread_([this] { code_ = courier_.Run(); }) {}
  ~CourierRunner() { Stop(); }
  // Ends by itself; the exit code.
  int Join() {
    if (thread_.joinable()) thread_.join();
    return code_;
  }
  int Stop() {
    courier_.Stop();
    return Join();
  }

 private:
  Courier courier_;
  int code_ = -1;
  std::thread thread_;
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_TESTS_UNIT_AGENT_COURIER_COURIER_RUNNER_H_
