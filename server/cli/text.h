// Text for people at a terminal: escaping, tables, numbers with units, ages.
#ifndef TRIMTAB_SERVER_CLI_TEXT_H_
#define TRIMTAB_SERVER_CLI_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "trimtab/v1/common.pb.h"

namespace trimtab::cli {

// Makes hostile text harmless: control characters (C0, DEL, C1), direction overrides, line separators and bytes that
// are not UTF-8 become visible escapes (\n, \x1b, \u202e). Everything else stays. Output holds no escape sequence.
std::string Escape(absl::string_view text);

// Columns that the text takes, wide characters as two. Expects escaped text.
size_t DisplayWidth(absl::string_view text);
// The first `columns` columns, "…" at the end when something is cut.
std::string Shorten(absl::string_view text, size_t columns);

// Four significant digits; "NaN", "inf", "-inf". With unit: seconds as µs/ms/s/min/h, bytes as KiB…, ratio as %.
std::string Number(double value, absl::string_view unit = "");
// 1234567 → "1,234,567".
std::string Count(uint64_t value);
// "2 s", "5 min", "3 h", "4 d".
std::string Duration(double seconds);
// "2 s ago", from a time in nanoseconds since 1970; "never" for 0.
std::string Ago(int64_t then_unix_nanos, int64_t now_unix_nanos);
// Local time "2026-02-03 14:05:06".
std::string LocalTime(int64_t unix_nanos);
// "0, 3, 5-8"; "all" when empty.
std::string LayerList(const std::vector<uint32_t>& layers);
// "stabilized"; "unknown" when unset.
std::string ModeName(v1::KernelMode mode);
// "12 observe" or "8 observe, 4 stabilized".
std::string ModesSummary(const std::vector<v1::KernelMode>& modes);

int64_t NowUnixNanos();

// Columns aligned with two spaces between; numbers to the right.
class Table {
 public:
  // A header that begins with '>' makes a column aligned to the right.
  explicit Table(std::vector<std::string> headers);
  // Cells are escaped here. Missing cells are empty, further ones are dropped.
  void Add(std::vector<std::string> cells);
  size_t rows() const { return rows_.size(); }
  // Lines end in '\n', without trailing blanks. `max_columns` cuts each line; 0: no limit.
  std::string Render(size_t max_columns = 0) const;

 private:
  std::vector<std::string> headers_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace trimtab::cli
#endif  // TRIMTAB_SERVER_CLI_TEXT_H_
