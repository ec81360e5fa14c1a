#include <yaml-cpp/yaml.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "server/config/config.h"
#include "server/config/settings.h"

namespace trimtab::server {
namespace {

// yaml-cpp counts from 0.
std::string At(const std::string& file, const YAML::Mark& mark) {
  return absl::StrCat(file, ":", mark.line + 1, ":", mark.column + 1, ": ");
}

absl::Status UnknownKey(const std::string& where, const std::string& key) {
  std::vector<std::string> known;
  for (const Setting& setting : Settings()) known.push_back(setting.key);
  const std::string near = DidYouMean(key, known);
  return absl::InvalidArgumentError(absl::StrCat(
      where, "unknown key \"", key, "\"; ",
      near.empty() ? std::string("trimtabd --help lists all") : absl::StrCat("did you mean \"", near, "\"?")));
}

absl::Status ApplyDocument(const std::string& file, const YAML::Node& root, Config* config) {
  if (root.IsNull()) return absl::OkStatus();  // an empty file
  if (!root.IsMap()) return absl::InvalidArgumentError(At(file, root.Mark()) + "expected \"key: value\" lines");
  std::set<std::string> seen;
  for (const auto& entry : root) {
    const std::string where = At(file, entry.first.Mark());
    if (!entry.first.IsScalar()) return absl::InvalidArgumentError(where + "a key must be one word");
    const std::string key = entry.first.Scalar();
    const Setting* setting = nullptr;
    for (const Setting& known : Settings()) {
      if (known.key == key) setting = &known;
    }
    if (setting == nullptr) return UnknownKey(where, key);
    if (!seen.insert(key).second) return absl::InvalidArgumentError(absl::StrCat(where, "\"", key, "\" is set twice"));
    if (!entry.second.IsScalar() && !entry.second.IsNull()) {
      return absl::InvalidArgumentError(absl::StrCat(At(file, entry.second.Mark()), key, " takes one value"));
    }
    const std::string value = entry.second.IsNull() ? "" : entry.second.Scalar();
    if (const absl::Status set = setting->set(value, config); !set.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(At(file, entry.second.Mark()), key, ": ", std::string(set.message())));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyConfigText(const std::string& file, const std::string& text, Config* config) {
  try {
    return ApplyDocument(file, YAML::Load(text), config);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(At(file, error.mark) + error.msg);
  }
}

}  // namespace trimtab::server
