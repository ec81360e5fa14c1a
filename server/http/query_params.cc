#include "server/http/query_params.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trimtab::server {

absl::Status QueryParams::Check(const std::vector<std::string>& known) const {
  for (auto it = params_.begin(); it != params_.end(); ++it) {
    const auto& [name, value] = *it;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown parameter '", name.substr(0, 64), "'; known here: ",
                                                     known.empty() ? "none" : absl::StrJoin(known, ", ")));
    }
    if (params_.count(name) > 1) return absl::InvalidArgumentError(absl::StrCat("parameter '", name, "' given twice"));
    if (value.size() > kMaxValueBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", name, "' has ", value.size(), " bytes; at most ", kMaxValueBytes));
    }
  }
  return absl::OkStatus();
}

std::string QueryParams::Text(const std::string& name) const {
  const auto it = params_.find(name);
  return it == params_.end() ? "" : it->second;
}

absl::StatusOr<std::string> QueryParams::RequiredText(const std::string& name) const {
  std::string value = Text(name);
  if (value.empty()) return absl::InvalidArgumentError(absl::StrCat("parameter '", name, "' is missing"));
  return value;
}

absl::StatusOr<std::optional<uint64_t>> QueryParams::Uint(const std::string& name, uint64_t max) const {
  const auto it = params_.find(name);
  if (it == params_.end()) return std::nullopt;
  const std::string& text = it->second;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > max) {
    return absl::InvalidArgumentError(absl::StrCat("parameter '", name, "' must be a whole number from 0 to ", max,
                                                   ", not '", text.substr(0, 64), "'"));
  }
  return value;
}

}  // namespace trimtab::server
