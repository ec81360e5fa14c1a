#include "server/cli/top_frame.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/cli/run_view.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

constexpr size_t kEventsShown = 6;
constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

std::string EventLine(const v1::Event& event) {
  return absl::StrCat(LocalTime(event.time_unix_nanos()).substr(11), "  ", Escape(event.kind()),
                      event.step() > 0 ? absl::StrCat(" at step ", Count(event.step())) : "", ": ",
                      Escape(event.message()));
}

}  // namespace

std::string Sparkline(const std::vector<float>& values, size_t width) {
  if (values.empty() || width == 0) return "";
  const size_t columns = std::min(width, values.size());
  float low = std::numeric_limits<float>::infinity(), high = -low;
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  std::string out;
  for (size_t column = 0; column < columns; ++column) {
    // The highest value of the column's share, so that a spike is seen.
    const size_t begin = column * values.size() / columns;
    const size_t end = std::max(begin + 1, (column + 1) * values.size() / columns);
    float shown = -std::numeric_limits<float>::infinity();
    bool odd = false;
    for (size_t i = begin; i < end; ++i) {
      odd |= !std::isfinite(values[i]);
      if (std::isfinite(values[i])) shown = std::max(shown, values[i]);
    }
    if (odd) {
      out += "!";
    } else {
      const float t = high > low ? (shown - low) / (high - low) : 0;
      out += kBars[std::min(7, static_cast<int>(t * 8))];
    }
  }
  return out;
}

std::string TopFrame(const TopData& data, TerminalSize size, int64_t now) {
  std::vector<std::string> lines;
  const auto add_text = [&](const std::string& text) {
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) lines.emplace_back(line);
  };
  if (!data.problem.empty()) lines.push_back(absl::StrCat("! ", Escape(data.problem), "; what you see is old"));
  add_text(SummaryText(data.state, now));
  if (data.runs > 1) {
    lines.back() = absl::StrCat(lines.back());
    lines.push_back(absl::StrCat("runs          ", data.index + 1, " of ", data.runs, " (n next, p previous)"));
  }
  const size_t width = size.columns > 16 ? size.columns - 16 : 8;
  if (!data.losses.empty()) lines.push_back(absl::StrCat("loss history  ", Sparkline(data.losses, width)));
  lines.emplace_back();

  std::vector<std::string> tail;
  tail.emplace_back();
  tail.emplace_back(data.events.empty() ? "no events" : "events");
  const size_t shown = std::min(kEventsShown, data.events.size());
  for (size_t i = data.events.size() - shown; i < data.events.size(); ++i)
    tail.push_back("  " + EventLine(data.events[i]));
  if (size.rows > 0) tail.emplace_back("q quits");

  std::vector<std::string> layers = absl::StrSplit(LayerTable(data.state).Render(), '\n', absl::SkipEmpty());
  if (size.rows > 0) {
    const size_t used = lines.size() + tail.size();
    const size_t room = size.rows > used + 2 ? size.rows - used : 2;
    if (layers.size() > room) {
      const size_t hidden = layers.size() - (room - 1);
      layers.resize(room - 1);
      layers.push_back(absl::StrCat("  … ", hidden, " more layers; make the window taller, or use `trimtab show`"));
    }
  }
  lines.insert(lines.end(), layers.begin(), layers.end());
  lines.insert(lines.end(), tail.begin(), tail.end());
  if (size.rows > 0 && lines.size() > size.rows) lines.resize(size.rows);
  std::string out;
  for (const std::string& line : lines) absl::StrAppend(&out, size.rows > 0 ? Shorten(line, size.columns) : line, "\n");
  return out;
}

}  // namespace trimtab::cli
