#include "server/http/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

namespace trimtab::server {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `text`; 0 when there is none.
size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;  // range of the second byte
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // no overlong forms
    if (lead == 0xED) high = 0x9F;  // no surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;  // nothing above U+10FFFF
  } else {
    return 0;
  }
  if (text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

void JsonWriter::Separate() {
  if (need_comma_) out_.push_back(',');
  need_comma_ = true;
}

JsonWriter& JsonWriter::Open(char bracket) {
  Separate();
  out_.push_back(bracket);
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  out_.push_back(bracket);
  need_comma_ = true;
  return *this;
}

void JsonWriter::Quote(absl::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out_.push_back('"');
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const auto c = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out_ += "\xEF\xBF\xBD";
    } else if (c == '"' || c == '\\') {
      out_ += {'\\', static_cast<char>(c)};
    } else if (c < 0x20 || c == 0x7F || c == '<' || c == '>' || c == '&') {  // harmless even if pasted into HTML
      out_ += "\\u00";
      out_ += {kHex[c >> 4], kHex[c & 15]};
    } else {
      out_.append(text.data(), length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out_.push_back('"');
}

JsonWriter& JsonWriter::Key(absl::string_view key) {
  Separate();
  Quote(key);
  out_.push_back(':');
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::String(absl::string_view text) {
  Separate();
  Quote(text);
  return *this;
}

template <typename T>
JsonWriter& JsonWriter::Number(T value) {
  Separate();
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  out_.append(buffer.data(), result.ptr);
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) { return Number(value); }
JsonWriter& JsonWriter::Uint(uint64_t value) { return Number(value); }

JsonWriter& JsonWriter::Float(float value) {
  if (std::isnan(value)) return String("NaN");
  if (std::isinf(value)) return String(value > 0 ? "Infinity" : "-Infinity");
  return Number(value);
}

JsonWriter& JsonWriter::Double(double value) {
  if (std::isnan(value)) return String("NaN");
  if (std::isinf(value)) return String(value > 0 ? "Infinity" : "-Infinity");
  return Number(value);
}

JsonWriter& JsonWriter::Bool(bool value) { return Raw(value ? "true" : "false"); }
JsonWriter& JsonWriter::Null() { return Raw("null"); }

JsonWriter& JsonWriter::Raw(absl::string_view json) {
  Separate();
  out_.append(json.data(), json.size());
  return *this;
}

std::string ErrorJson(absl::string_view message) {
  JsonWriter json;
  json.BeginObject().Key("error").String(message).EndObject();
  return json.Take();
}

}  // namespace trimtab::server
