#include "agent/core/text_check.h"

#include <cstdint>

namespace trimtab::agent {
namespace {

// Decodes one character at text[*at]; false when it is malformed. Moves *at past it.
bool Decode(const char* text, size_t bytes, size_t* at, uint32_t* code) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(*at);
  if (lead < 0x80) {
    *code = lead;
    ++*at;
    return true;
  }
  const size_t extra = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  if (lead < 0xC2 || lead > 0xF4 || bytes - *at <= extra) return false;
  uint32_t value = lead & (0x3F >> extra);
  for (size_t i = 1; i <= extra; ++i) {
    if ((byte(*at + i) & 0xC0) != 0x80) return false;
    value = value << 6 | (byte(*at + i) & 0x3F);
  }
  constexpr uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[extra] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return false;
  *code = value;
  *at += extra + 1;
  return true;
}

bool IsHidden(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029;
}

bool Check(const char* text, size_t bytes, bool printable) {
  uint32_t code = 0;
  for (size_t at = 0; at < bytes;) {
    if (!Decode(text, bytes, &at, &code) || code == 0 || (printable && IsHidden(code))) return false;
  }
  return true;
}

}  // namespace

bool IsUtf8(const char* text, size_t bytes) { return Check(text, bytes, false); }
bool IsPrintableUtf8(const char* text, size_t bytes) { return Check(text, bytes, true); }

size_t Utf8Prefix(const char* text, size_t bytes, size_t limit) {
  if (bytes <= limit) return bytes;
  while (limit > 0 && (static_cast<uint8_t>(text[limit]) & 0xC0) == 0x80) --limit;
  return limit;
}

}  // namespace trimtab::agent
