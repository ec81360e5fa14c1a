// The table of all settings: one row makes a YAML key and a flag, with one parser and one check.
#ifndef TRIMTAB_SERVER_CONFIG_SETTINGS_H_
#define TRIMTAB_SERVER_CONFIG_SETTINGS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/config/config.h"

namespace trimtab::server {

struct Setting {
  std::string key;  // YAML: silent_after_seconds; flag: --silent-after-seconds
  std::string help;
  bool is_switch = false;  // the flag takes no value
  // INVALID_ARGUMENT says what is allowed.
  std::function<absl::Status(const std::string& text, Config* config)> set;
  std::function<std::string(const Config& config)> show;
};

const std::vector<Setting>& Settings();
std::string FlagOf(const Setting& setting);

// The known word nearest to `word`, or "" when none is near enough to be meant.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& known);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_CONFIG_SETTINGS_H_
