#include "server/config/config.h"

#include <arpa/inet.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/config/settings.h"

namespace trimtab::server {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

std::string DefaultDataDir() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0') {
    return absl::StrCat(state, "/trimtab");
  }
  const char* home = std::getenv("HOME");
  return absl::StrCat(home != nullptr && *home != '\0' ? home : "/var/lib", "/.local/state/trimtab");
}

absl::Status ApplyConfigFile(const std::string& path, Config* config) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, "; give a file with --config"));
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad()) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, "; give a file with --config"));
  if (text.size() > kMaxConfigBytes) return absl::InvalidArgumentError(absl::StrCat(path, " is larger than 1 MiB"));
  return ApplyConfigText(path, text, config);
}

// As CLI11 takes them. "--http=" becomes "--http" and an empty value, which CLI11 would call missing.
std::vector<std::string> ReversedArguments(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {
    std::string argument = argv[i];
    if (absl::StartsWith(argument, "--") && argument.find('=') == argument.size() - 1) {
      arguments.emplace_back();
      argument.pop_back();
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

// CLI11 says what is wrong; the nearest flag is our addition.
std::string FlagProblem(const CLI::ParseError& error) {
  std::string text = error.what();
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!absl::StartsWith(word, "--")) continue;
    std::vector<std::string> known = {"--config", "--check-config", "--version", "--help"};
    for (const Setting& setting : Settings()) known.push_back(FlagOf(setting));
    const std::string near = DidYouMean(word.substr(0, word.find('=')), known);
    if (!near.empty() && near != word && dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
      absl::StrAppend(&text, "; did you mean ", near, "?");
    }
    break;
  }
  return text;
}

}  // namespace

absl::StatusOr<Address> ParseAddress(const std::string& text) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not HOST:PORT, for example 127.0.0.1:7070 or [::1]:7070"));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad();
  Address address;
  address.host = text.substr(0, colon);
  uint32_t port = 0;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) return bad();
  address.port = static_cast<uint16_t>(port);
  if (address.host.front() == '[') {
    if (address.host.size() < 3 || address.host.back() != ']') return bad();
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return bad();
  }
  return address;
}

std::string FormatAddress(const Address& address) {
  if (address.host.find(':') != std::string::npos) return absl::StrCat("[", address.host, "]:", address.port);
  return absl::StrCat(address.host, ":", address.port);
}

bool IsLoopback(const std::string& host) {
  in_addr v4{};
  // A name may begin with "127." too.
  return host == "localhost" || host == "::1" ||
         (absl::StartsWith(host, "127.") && inet_pton(AF_INET, host.c_str(), &v4) == 1);
}

absl::Status CheckConfig(const Config& config) {
  for (const auto& [key, text] : {std::pair{"listen", config.listen}, std::pair{"http", config.http}}) {
    if (text.empty()) continue;
    const auto address = ParseAddress(text);
    if (!address.ok()) return address.status();
    if (!IsLoopback(address->host) && !config.allow_remote) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, " ", text,
                       " is reachable from other machines, and connections are neither encrypted nor "
                       "authenticated; use 127.0.0.1, or add --allow-remote if the network is trusted"));
    }
  }
  if (config.http == config.listen && !absl::EndsWith(config.http, ":0")) {
    return absl::InvalidArgumentError(absl::StrCat("listen and http are both ", config.http, "; give two ports"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv, const std::string& version) {
  CommandLine result;
  result.config.data_dir = DefaultDataDir();
  CLI::App app("trimtabd: collects the numerics of training jobs, watches them, and switches kernels.", "trimtabd");
  std::string file;
  bool show_version = false;
  app.add_option("--config", file, "YAML file with any of the settings below, written with underscores");
  app.add_flag("--check-config", result.check_only, "check the configuration and exit");
  app.add_flag("--version", show_version, "print the version and exit");
  const auto& settings = Settings();
  std::vector<std::string> values(settings.size());
  std::vector<CLI::Option*> options(settings.size());
  for (size_t i = 0; i < settings.size(); ++i) {
    if (settings[i].is_switch) {
      options[i] = app.add_flag(FlagOf(settings[i]), settings[i].help);
      continue;
    }
    options[i] = app.add_option(FlagOf(settings[i]), values[i],
                                absl::StrCat(settings[i].help, " [", settings[i].show(result.config), "]"));
    options[i]->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  try {
    app.parse(ReversedArguments(argc, argv));
  } catch (const CLI::CallForHelp&) {
    result.message = app.help();
    return result;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(FlagProblem(error), "; trimtabd --help lists all flags"));
  }
  if (show_version) {
    result.message = absl::StrCat("trimtabd ", version, "\n");
    return result;
  }
  if (!file.empty()) {
    if (absl::Status status = ApplyConfigFile(file, &result.config); !status.ok()) return status;
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    if (options[i]->count() == 0) continue;
    const std::string text = settings[i].is_switch ? options[i]->results().back() : values[i];
    if (const absl::Status set = settings[i].set(text, &result.config); !set.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(FlagOf(settings[i]), ": ", std::string(set.message())));
    }
  }
  if (result.config.data_dir.empty()) return absl::InvalidArgumentError("--data-dir is empty; give a folder");
  if (absl::Status status = CheckConfig(result.config); !status.ok()) return status;
  return result;
}

}  // namespace trimtab::server
