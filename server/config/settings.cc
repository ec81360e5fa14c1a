#include "server/config/settings.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace trimtab::server {
namespace {

absl::Status Wanted(const std::string& text, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not ", what));
}

Setting Text(std::string key, std::string help, std::string Config::*field) {
  return {std::move(key), std::move(help), false,
          [field](const std::string& text, Config* config) {
            config->*field = text;
            return absl::OkStatus();
          },
          [field](const Config& config) { return config.*field; }};
}

Setting OneOf(std::string key, std::string help, std::string Config::*field, std::vector<std::string> words) {
  return {std::move(key), std::move(help), false,
          [field, words](const std::string& text, Config* config) {
            if (std::find(words.begin(), words.end(), text) == words.end()) {
              return Wanted(text, "one of " + absl::StrJoin(words, ", "));
            }
            config->*field = text;
            return absl::OkStatus();
          },
          [field](const Config& config) { return config.*field; }};
}

Setting Listen(std::string key, std::string help, std::string Config::*field, bool optional) {
  return {std::move(key), std::move(help), false,
          [field, optional](const std::string& text, Config* config) {
            if (!(optional && text.empty())) {
              if (const auto address = ParseAddress(text); !address.ok()) return address.status();
            }
            config->*field = text;
            return absl::OkStatus();
          },
          [field](const Config& config) { return config.*field; }};
}

Setting Switch(std::string key, std::string help, bool Config::*field) {
  return {std::move(key), std::move(help), true,
          [field](const std::string& text, Config* config) {
            if (text != "true" && text != "false") return Wanted(text, "true or false");
            config->*field = text == "true";
            return absl::OkStatus();
          },
          [field](const Config& config) { return std::string(config.*field ? "true" : "false"); }};
}

template <typename T>
Setting Whole(std::string key, std::string help, T Config::*field, uint64_t low, uint64_t high) {
  return {std::move(key), std::move(help), false,
          [field, low, high](const std::string& text, Config* config) {
            uint64_t value = 0;
            if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
              return Wanted(text, absl::StrCat("a whole number from ", low, " to ", high));
            }
            config->*field = static_cast<T>(value);
            return absl::OkStatus();
          },
          [field](const Config& config) { return absl::StrCat(config.*field); }};
}

Setting Seconds(std::string key, std::string help, double Config::*field, double low, double high) {
  return {std::move(key), std::move(help), false,
          [field, low, high](const std::string& text, Config* config) {
            double value = 0;
            if (!absl::SimpleAtod(text, &value) || !(value >= low) || !(value <= high)) {
              return Wanted(text, absl::StrCat("a number of seconds from ", low, " to ", high));
            }
            config->*field = value;
            return absl::OkStatus();
          },
          [field](const Config& config) { return absl::StrCat(config.*field); }};
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

const std::vector<Setting>& Settings() {
  static const auto* settings = new std::vector<Setting>{
      Listen("listen", "address for couriers and the trimtab command (gRPC); port 0 takes any free one",
             &Config::listen, /*optional=*/false),
      Listen("http", "address for the live page, the JSON API and /metrics; empty for none", &Config::http,
             /*optional=*/true),
      Text("data_dir", "folder of the store; made when absent", &Config::data_dir),
      Text("policy", "policy file; empty for the built-in policy", &Config::policy),
      OneOf("log_level", "what goes to stderr", &Config::log_level, {"debug", "info", "warn", "error"}),
      Switch("allow_remote", "listen beyond loopback although connections are neither encrypted nor authenticated",
             &Config::allow_remote),
      Text("ready_file", "file that gets the chosen addresses as JSON once serving", &Config::ready_file),
      Whole("sample_every_steps", "probe plan sent to agents; 0 leaves their own", &Config::sample_every_steps, 0,
            1000000),
      Whole("max_series", "most series on /metrics; further ones are counted and left out", &Config::max_series, 100,
            1000000),
      Whole("max_runs", "most runs in the live picture", &Config::max_runs, 1, 100000),
      Seconds("silent_after_seconds", "a run without a step for so long is silent", &Config::silent_after_seconds, 1,
              86400),
      Seconds("alive_window_seconds", "a rank whose courier was silent for so long may be taken over",
              &Config::alive_window_seconds, 1, 3600),
      Seconds("shutdown_seconds", "how long a shutdown waits for streams to end", &Config::shutdown_seconds, 0, 600),
      Whole("queue_mib", "bound of the ingest queue; beyond it couriers are not read", &Config::queue_mib, 1, 65536),
      Whole("block_cache_mib", "RocksDB block cache", &Config::block_cache_mib, 1, 1048576),
      Whole("memtable_mib", "RocksDB memtable of the rows", &Config::memtable_mib, 1, 4096),
      Whole("max_open_files", "RocksDB table files held open", &Config::max_open_files, 16, 1000000),
  };
  return *settings;
}

std::string FlagOf(const Setting& setting) { return "--" + absl::StrReplaceAll(setting.key, {{"_", "-"}}); }

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace trimtab::server
