#include "server/cli/text.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace trimtab::cli {
namespace {

struct Scale {
  double below;  // values below this use this scale
  double divisor;
  const char* name;
};

template <size_t n>
std::string Scaled(double value, const Scale (&scales)[n]) {
  const double size = std::fabs(value);
  const Scale* chosen = &scales[n - 1];
  for (const Scale& scale : scales) {
    if (size < scale.below) {
      chosen = &scale;
      break;
    }
  }
  return absl::StrCat(absl::StrFormat("%.4g", value / chosen->divisor), chosen->name);
}

constexpr Scale kSeconds[] = {
    {1e-3, 1e-6, " µs"}, {1, 1e-3, " ms"}, {120, 1, " s"}, {7200, 60, " min"}, {1e300, 3600, " h"}};
constexpr Scale kBytes[] = {
    {1024, 1, " B"}, {1048576.0, 1024, " KiB"}, {1073741824.0, 1048576.0, " MiB"}, {1e300, 1073741824.0, " GiB"}};

}  // namespace

std::string Number(double value, absl::string_view unit) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (unit == "seconds") return value == 0 ? "0 s" : Scaled(value, kSeconds);
  if (unit == "bytes") return Scaled(value, kBytes);
  if (unit == "ratio") return absl::StrFormat("%.4g %%", value * 100);
  return absl::StrCat(absl::StrFormat("%.4g", value), unit.empty() ? "" : " ", unit);
}

std::string Count(uint64_t value) {
  std::string digits = absl::StrCat(value);
  for (size_t i = digits.size(); i > 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

std::string Duration(double seconds) {
  if (seconds < 1) return "0 s";
  if (seconds < 120) return absl::StrFormat("%d s", static_cast<int64_t>(seconds));
  if (seconds < 7200) return absl::StrFormat("%d min", static_cast<int64_t>(seconds / 60));
  if (seconds < 172800) return absl::StrFormat("%d h", static_cast<int64_t>(seconds / 3600));
  return absl::StrFormat("%d d", static_cast<int64_t>(seconds / 86400));
}

std::string Ago(int64_t then_unix_nanos, int64_t now_unix_nanos) {
  if (then_unix_nanos == 0) return "never";
  return absl::StrCat(Duration(static_cast<double>(now_unix_nanos - then_unix_nanos) * 1e-9), " ago");
}

std::string LocalTime(int64_t unix_nanos) {
  const std::time_t seconds = unix_nanos / 1000000000;
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char buffer[32];
  std::strftime(buffer, sizeof(buffer), "%Y-%m-%d %H:%M:%S", &parts);
  return buffer;
}

std::string LayerList(const std::vector<uint32_t>& layers) {
  if (layers.empty()) return "all";
  std::vector<uint32_t> sorted = layers;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  std::vector<std::string> parts;
  for (size_t i = 0; i < sorted.size();) {
    size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    if (end - i > 2) {
      parts.push_back(absl::StrCat(sorted[i], "-", sorted[end - 1]));
    } else {
      for (size_t k = i; k < end; ++k) parts.push_back(absl::StrCat(sorted[k]));
    }
    i = end;
  }
  return absl::StrJoin(parts, ", ");
}

std::string ModeName(v1::KernelMode mode) {
  switch (mode) {
    case v1::KERNEL_MODE_NATIVE:
      return "native";
    case v1::KERNEL_MODE_OBSERVE:
      return "observe";
    case v1::KERNEL_MODE_STABILIZED:
      return "stabilized";
    case v1::KERNEL_MODE_PAPER:
      return "paper";
    default:
      return "unknown";
  }
}

std::string ModesSummary(const std::vector<v1::KernelMode>& modes) {
  std::map<v1::KernelMode, int> counts;
  for (const v1::KernelMode mode : modes) ++counts[mode];
  std::vector<std::string> parts;
  for (const auto& [mode, count] : counts) parts.push_back(absl::StrCat(count, " ", ModeName(mode)));
  return parts.empty() ? "not reported" : absl::StrJoin(parts, ", ");
}

int64_t NowUnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Table::Table(std::vector<std::string> headers) : headers_(std::move(headers)) {
  for (std::string& header : headers_) {
    right_.push_back(!header.empty() && header[0] == '>');
    if (right_.back()) header.erase(0, 1);
  }
}

void Table::Add(std::vector<std::string> cells) {
  cells.resize(headers_.size());
  for (std::string& cell : cells) cell = Escape(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Render(size_t max_columns) const {
  std::vector<size_t> widths;
  for (const std::string& header : headers_) widths.push_back(DisplayWidth(header));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string blanks(widths[i] - DisplayWidth(cells[i]), ' ');
      if (i > 0) line += "  ";
      line += right_[i] ? blanks + cells[i] : cells[i] + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += (max_columns > 0 ? Shorten(line, max_columns) : line) + "\n";
  };
  add_line(headers_);
  for (const auto& row : rows_) add_line(row);
  return out;
}

}  // namespace trimtab::cli
