#include "server/model/run_name.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/model/limits.h"

namespace trimtab::server {
namespace {

// Decodes the code point at text[*at] and moves *at past it. Returns -1 when it is not well-formed UTF-8.
int32_t NextCodePoint(absl::string_view text, size_t* at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(*at);
  int extra = 0;
  int32_t code = lead;
  if (lead >= 0xF0 && lead <= 0xF4) {
    extra = 3;
    code = lead & 0x07;
  } else if (lead >= 0xE0 && lead < 0xF0) {
    extra = 2;
    code = lead & 0x0F;
  } else if (lead >= 0xC2 && lead < 0xE0) {
    extra = 1;
    code = lead & 0x1F;
  } else if (lead >= 0x80) {
    return -1;
  }
  if (*at + extra >= text.size()) return -1;
  for (int i = 1; i <= extra; ++i) {
    if ((byte(*at + i) & 0xC0) != 0x80) return -1;
    code = (code << 6) | (byte(*at + i) & 0x3F);
  }
  const bool overlong = (extra == 2 && code < 0x800) || (extra == 3 && code < 0x10000);
  if (overlong || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return -1;
  *at += 1 + extra;
  return code;
}

}  // namespace

absl::Status ValidateRunName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("run name is empty; give one with --run or TRIMTAB_RUN");
  if (name.size() > kMaxRunNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("run name ", QuoteName(name, 32), " has ", name.size(),
                                                   " bytes, the limit is ", kMaxRunNameBytes, "; shorten it"));
  }
  for (size_t at = 0; at < name.size();) {
    const size_t start = at;
    const int32_t code = NextCodePoint(name, &at);
    if (code < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("run name ", QuoteName(name), " is not UTF-8 at byte ", start, "; rename the run"));
    }
    if (code < 0x20 || (code >= 0x7F && code < 0xA0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("run name ", QuoteName(name), " has a control character at byte ", start, "; rename the run"));
    }
  }
  return absl::OkStatus();
}

std::string QuoteName(absl::string_view name, size_t max_bytes) {
  std::string out = "\"";
  size_t at = 0;
  while (at < name.size() && at < max_bytes) {
    const size_t start = at;
    const int32_t code = NextCodePoint(name, &at);
    if (code < 0) ++at;
    const absl::string_view bytes = name.substr(start, at - start);
    if (code >= 0xA0) {
      absl::StrAppend(&out, bytes);
    } else {
      absl::StrAppend(&out, absl::CHexEscape(bytes));
    }
  }
  absl::StrAppend(&out, at < name.size() ? "…\"" : "\"");
  return out;
}

}  // namespace trimtab::server
