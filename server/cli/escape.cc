#include <array>

#include "absl/strings/str_format.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

struct Decoded {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: not UTF-8
};

Decoded Decode(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3FU);
  }
  static constexpr std::array<uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[bytes] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {code, bytes};
}

bool Hostile(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code <= 0x9F) ||  // controls
         code == 0x2028 || code == 0x2029 ||               // line and paragraph separator
         (code >= 0x200E && code <= 0x200F) || (code >= 0x202A && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;  // direction marks, byte order mark
}

bool Wide(uint32_t code) {
  return (code >= 0x1100 && code <= 0x115F) || (code >= 0x2E80 && code <= 0xA4CF) ||
         (code >= 0xAC00 && code <= 0xD7A3) || (code >= 0xF900 && code <= 0xFAFF) ||
         (code >= 0xFE30 && code <= 0xFE6F) || (code >= 0xFF00 && code <= 0xFF60) ||
         (code >= 0x1F300 && code <= 0x1FAFF) || (code >= 0x20000 && code <= 0x3FFFD);
}

}  // namespace

std::string Escape(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Decoded c = Decode(text);
    if (c.bytes == 0) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(text[0]));
    } else if (!Hostile(c.code)) {
      out.append(text.data(), c.bytes);
    } else if (c.code == '\n') {
      out += "\\n";
    } else if (c.code == '\t') {
      out += "\\t";
    } else if (c.code < 0x100) {
      absl::StrAppendFormat(&out, "\\x%02x", c.code);
    } else {
      absl::StrAppendFormat(&out, "\\u%04x", c.code);
    }
    text.remove_prefix(c.bytes == 0 ? 1 : c.bytes);
  }
  return out;
}

size_t DisplayWidth(absl::string_view text) {
  size_t width = 0;
  while (!text.empty()) {
    const Decoded c = Decode(text);
    width += Wide(c.code) ? 2 : 1;
    text.remove_prefix(c.bytes == 0 ? 1 : c.bytes);
  }
  return width;
}

std::string Shorten(absl::string_view text, size_t columns) {
  if (columns == 0) return "";
  if (DisplayWidth(text) <= columns) return std::string(text);
  std::string out;
  size_t width = 1;  // of the ellipsis
  while (!text.empty()) {
    const Decoded c = Decode(text);
    width += Wide(c.code) ? 2 : 1;
    if (width > columns) break;
    const size_t bytes = c.bytes == 0 ? 1 : c.bytes;
    out.append(text.data(), bytes);
    text.remove_prefix(bytes);
  }
  return out + "…";
}

}  // namespace trimtab::cli
