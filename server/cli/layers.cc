#include <algorithm>
#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/cli/commands.h"

namespace trimtab::cli {
namespace {

constexpr uint32_t kMaxLayers = 1024;

bool ParseLayer(absl::string_view text, uint32_t* layer) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *layer);
  return !text.empty() && error == std::errc() && stop == end && *layer < kMaxLayers;
}

}  // namespace

CLI::Validator WholeNumber() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
        if (!digits) return "'" + text + "' is not a whole number";
        uint64_t value = 0;
        return absl::SimpleAtoi(text, &value) ? "" : "'" + text + "' is too large";
      },
      "N");
}

CLI::Validator SecondsBetween(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) -> std::string {
        double value = 0;
        if (absl::SimpleAtod(text, &value) && value >= low && value <= high) return "";
        return absl::StrCat("'", text, "' is not a number of seconds from ", low, " to ", high);
      },
      "SECONDS");
}

CLI::Validator HostPort() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        const size_t colon = text.rfind(':');
        const std::string host = text.substr(0, colon);
        uint32_t port = 0;
        const bool plain = host.find(':') == std::string::npos || (host.front() == '[' && host.back() == ']');
        if (colon != std::string::npos && !host.empty() && plain && absl::SimpleAtoi(text.substr(colon + 1), &port) &&
            port >= 1 && port <= 65535) {
          return "";
        }
        return "'" + text + "' is not HOST:PORT, for example 127.0.0.1:7070";
      },
      "HOST:PORT");
}

std::vector<uint32_t> ParseLayers(const std::string& text) {
  std::vector<uint32_t> layers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    uint32_t first = 0, last = 0;
    if (!ParseLayer(ends.first, &first)) return {};
    last = first;
    if (part.find('-') != absl::string_view::npos && !ParseLayer(ends.second, &last)) return {};
    if (last < first) return {};
    for (uint32_t layer = first; layer <= last; ++layer) layers.push_back(layer);
    if (layers.size() > kMaxLayers) return {};
  }
  return layers;
}

}  // namespace trimtab::cli
