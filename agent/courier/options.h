// Command line of trimtab-courier.
#ifndef TRIMTAB_AGENT_COURIER_OPTIONS_H_
#define TRIMTAB_AGENT_COURIER_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace trimtab::courier {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

// How long the courier waits for what. Not on the command line; tests shorten some.
struct Timings {
  Duration scan = std::chrono::milliseconds(200);      // ring folder
  Duration liveness = std::chrono::milliseconds(500);  // is the writer still there
  Duration info = std::chrono::milliseconds(200);      // info text of a ring
  Duration update_min = std::chrono::seconds(1);       // between two RankUpdates of a channel
  Duration heartbeat = std::chrono::seconds(5);
  Duration spill_after = std::chrono::seconds(1);    // without a server: unacknowledged steps go to disk
  Duration park_after = std::chrono::seconds(10);    // without a server: an ended ring moves to the spool whole
  Duration depart_linger = std::chrono::seconds(1);  // stream must outlive a Goodbye this long
  Duration settle = std::chrono::seconds(1);         // nothing left to do for this long before exit-when-idle
  Duration stop = std::chrono::seconds(3);           // after SIGTERM
  Duration stall = std::chrono::seconds(30);         // connected, but nothing is acknowledged: as if away
  Duration answer = std::chrono::seconds(10);        // opened, but the server says nothing
  Duration command_min = std::chrono::seconds(2);    // a command stays in the slot at least this long…
  Duration command_max = std::chrono::seconds(60);   // …and at most this long before the next one of another plan
  Duration backoff_min = std::chrono::milliseconds(100);
  Duration backoff_max = std::chrono::seconds(5);
  Duration refused_retry = std::chrono::seconds(5);  // after a refusal that may pass; doubles
  Duration refused_retry_max = std::chrono::seconds(120);
};

struct Options {
  std::string server;  // HOST:PORT
  std::string ring_dir;
  std::string spool_dir;  // "": /var/tmp/trimtab-<uid>/spool
  uint64_t spool_bytes = uint64_t{1} << 30;
  bool exit_when_idle = false;
  bool drain = false;      // as exit_when_idle, but without waiting for a first ring
  bool adopt_any = false;  // also spooled channels that were meant for another server
  bool wait_lock = false;
  uint32_t poll_ms = 20;
  uint32_t parent_pid = 0;  // 0: none
  std::string log_level = "info";
  std::string log_file;  // "": stderr
  Timings timings;
};

// Parses argv. Returns the options, or nullopt with the exit code in *exit_code after printing --help or --version to
// stdout (0) or one line about what is wrong to stderr (2).
std::optional<Options> ParseOptions(int argc, const char* const* argv, int* exit_code);

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_OPTIONS_H_
