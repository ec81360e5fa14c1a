#include "agent/courier/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "agent/courier/limits.h"
#include "trimtab/agent.h"

namespace trimtab::courier {
namespace {

// "" when `text` is HOST:PORT or [IPv6]:PORT, else what is wrong.
std::string CheckServer(const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::string hint = "must be HOST:PORT, e.g. localhost:7701 or [::1]:7701";
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) return hint;
  const std::string host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  if (port.size() > 5 || !std::all_of(port.begin(), port.end(), [](unsigned char c) { return std::isdigit(c); })) {
    return hint;
  }
  const int number = std::stoi(port);
  if (number < 1 || number > 65535) return "names port " + port + "; ports go from 1 to 65535";
  if (host.front() != '[' && host.find(':') != std::string::npos) return hint;
  if (!std::all_of(host.begin(), host.end(), [](unsigned char c) { return std::isgraph(c); })) return hint;
  return "";
}

}  // namespace

std::optional<Options> ParseOptions(int argc, const char* const* argv, int* exit_code) {
  Options options;
  CLI::App app{
      "Carries telemetry of the trainers on this node to trimtabd, and commands back.\n"
      "Reads the rings in --ring-dir; spools to disk while the server is away.",
      "trimtab-courier"};
  app.set_version_flag("--version", std::string("trimtab-courier ") + trimtab_version());
  app.add_option("--server", options.server, "Where trimtabd listens, HOST:PORT")
      ->required()
      ->check([](const std::string& text) { return CheckServer(text); });
  app.add_option("--ring-dir", options.ring_dir, "Folder of the trainers' rings")->required();
  app.add_option("--spool-dir", options.spool_dir, "Folder for steps that the server has not taken yet")
      ->default_str("/var/tmp/trimtab-UID/spool");
  app.add_option("--spool-bytes", options.spool_bytes, "Bound of the spool; the oldest steps are dropped above it")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(kMinSpoolBytes, uint64_t{1} << 50))
      ->default_str("1GiB");
  app.add_flag("--exit-when-idle", options.exit_when_idle, "End when every ring seen has ended and is delivered");
  app.add_flag("--drain", options.drain, "As --exit-when-idle, but do not wait for a first ring: empties the spool");
  app.add_flag("--adopt-any", options.adopt_any, "Also deliver spooled steps that were meant for another server");
  app.add_flag("--wait-lock", options.wait_lock, "Wait while another courier serves this ring folder, then take over");
  app.add_option("--poll-ms", options.poll_ms, "How often rings are looked at")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--parent-pid", options.parent_pid, "When this process ends, go on as with --exit-when-idle")
      ->check(CLI::Range(1u, 4194304u));
  app.add_option("--log-level", options.log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.add_option("--log-file", options.log_file, "Log to this file instead of stderr");
  for (int i = 1; i < argc; ++i) {
    // CLI11 would take the next flag for the value.
    const std::string word = argv[i];
    if (word.size() < 3 || word.compare(0, 2, "--") != 0 || word.find('=') != word.size() - 1) continue;
    std::fprintf(stderr, "trimtab-courier: %s has no value; give one or leave it out (see --help)\n", word.c_str());
    *exit_code = 2;
    return std::nullopt;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    *exit_code = app.exit(e);
    return std::nullopt;
  } catch (const CLI::CallForVersion& e) {
    *exit_code = app.exit(e);
    return std::nullopt;
  } catch (const CLI::Error& e) {
    std::string what = e.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    std::fprintf(stderr, "trimtab-courier: %s (see --help)\n", what.c_str());
    *exit_code = 2;
    return std::nullopt;
  }
  if (options.spool_dir.empty()) options.spool_dir = "/var/tmp/trimtab-" + std::to_string(geteuid()) + "/spool";
  return options;
}

}  // namespace trimtab::courier
