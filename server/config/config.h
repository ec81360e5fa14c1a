// What trimtabd can be told, by a YAML file and by flags. Flags win over the file, the file over the defaults.
// All settings with their meaning: docs/operations.md, or trimtabd --help.
#ifndef TRIMTAB_SERVER_CONFIG_CONFIG_H_
#define TRIMTAB_SERVER_CONFIG_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace trimtab::server {

struct Address {
  std::string host;  // without brackets
  uint16_t port = 0;
};
// "127.0.0.1:7070", "[::1]:7070", "localhost:0". INVALID_ARGUMENT otherwise.
absl::StatusOr<Address> ParseAddress(const std::string& text);
// "127.0.0.1:7070", "[::1]:7070".
std::string FormatAddress(const Address& address);
// 127.0.0.0/8, ::1, localhost.
bool IsLoopback(const std::string& host);

struct Config {
  std::string listen = "127.0.0.1:7070";  // gRPC; port 0: any free one
  std::string http = "127.0.0.1:7071";    // page, JSON, /metrics; "": none
  std::string data_dir;                   // default: $XDG_STATE_HOME/trimtab, else ~/.local/state/trimtab
  std::string policy;                     // file; "": the built-in policy
  std::string log_level = "info";
  bool allow_remote = false;  // listen beyond loopback although there is no TLS
  std::string ready_file;     // gets {"grpc":…,"http":…,"pid":…} once serving
  uint32_t sample_every_steps = 0;
  uint64_t max_series = 10000;
  uint64_t max_runs = 1000;
  double silent_after_seconds = 60;
  double alive_window_seconds = 30;
  double shutdown_seconds = 10;
  uint64_t queue_mib = 64;
  uint64_t block_cache_mib = 64;
  uint64_t memtable_mib = 64;
  int max_open_files = 256;
};

struct CommandLine {
  Config config;
  bool check_only = false;  // --check-config
  std::string message;      // --help, --version: print this and exit 0
};

// INVALID_ARGUMENT with one line that says where and how to mend it: the caller prints it and exits with 2. Problems in
// the file are named by file:line:column.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv, const std::string& version);

// Sets what the YAML in `text` names; `file` is for messages.
absl::Status ApplyConfigText(const std::string& file, const std::string& text, Config* config);

// Settings that only make sense together.
absl::Status CheckConfig(const Config& config);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_CONFIG_CONFIG_H_
