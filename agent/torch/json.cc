#include "agent/torch/json.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace trimtab::agent {
namespace {

class Parser {
 public:
  Parser(std::string_view text, std::string* error) : text_(text), error_(error) {}

  bool Document(Json* value) {
    if (!Value(value, 0)) return false;
    Space();
    return at_ == text_.size() || Fail("text after the document");
  }

 private:
  bool Fail(const char* what) {
    *error_ = std::string(what) + " at byte " + std::to_string(at_);
    return false;
  }
  void Space() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != '\0') ++at_;
  }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool Word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return Fail("unknown word");
    at_ += word.size();
    return true;
  }

  bool Value(Json* value, int depth) {
    if (depth >= Json::kMaxDepth) return Fail("nested too deeply");
    Space();
    if (at_ >= text_.size()) return Fail("value expected");
    switch (text_[at_]) {
      case '{':
        return Object(value, depth);
      case '[':
        return Array(value, depth);
      case '"': {
        std::string text;
        if (!String(&text)) return false;
        *value = Json(std::move(text));
        return true;
      }
      case 't':
        *value = Json(true);
        return Word("true");
      case 'f':
        *value = Json(false);
        return Word("false");
      case 'n':
        *value = Json();
        return Word("null");
      default:
        return Number(value);
    }
  }

  bool Object(Json* value, int depth) {
    *value = Json::Object();
    ++at_;
    Space();
    if (Take('}')) return true;
    while (true) {
      Space();
      std::string key;
      if (at_ >= text_.size() || text_[at_] != '"') return Fail("member name expected");
      if (!String(&key)) return false;
      Space();
      if (!Take(':')) return Fail("':' expected");
      if (!Value(&(*value)[key], depth + 1)) return false;
      Space();
      if (Take('}')) return true;
      if (!Take(',')) return Fail("',' or '}' expected");
    }
  }

  bool Array(Json* value, int depth) {
    *value = Json::Array();
    ++at_;
    Space();
    if (Take(']')) return true;
    while (true) {
      Json item;
      if (!Value(&item, depth + 1)) return false;
      value->Append(std::move(item));
      Space();
      if (Take(']')) return true;
      if (!Take(',')) return Fail("',' or ']' expected");
    }
  }

  bool Number(Json* value) {
    size_t end = at_;
    bool real = false;
    while (end < text_.size() && std::strchr("+-0123456789.eE", text_[end]) != nullptr && text_[end] != '\0') {
      real |= text_[end] == '.' || text_[end] == 'e' || text_[end] == 'E';
      ++end;
    }
    const char* first = text_.data() + at_;
    const char* last = text_.data() + end;
    if (!real) {
      int64_t integer = 0;
      auto [stop, code] = std::from_chars(first, last, integer);
      if (code == std::errc() && stop == last && first != last) {
        *value = Json(integer);
        at_ = end;
        return true;
      }
    }
    double number = 0;
    auto [stop, code] = std::from_chars(first, last, number);
    if (code != std::errc() || stop != last || first == last) return Fail("bad number");
    *value = Json(number);
    at_ = end;
    return true;
  }

  bool Hex(uint32_t* code) {
    if (at_ + 4 > text_.size()) return Fail("short \\u escape");
    auto [stop, status] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, *code, 16);
    if (status != std::errc() || stop != text_.data() + at_ + 4) return Fail("bad \\u escape");
    at_ += 4;
    return true;
  }

  static void AppendUtf8(uint32_t c, std::string* text) {
    if (c < 0x80) {
      *text += static_cast<char>(c);
    } else if (c < 0x800) {
      *text += static_cast<char>(0xC0 | (c >> 6));
      *text += static_cast<char>(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
      *text += static_cast<char>(0xE0 | (c >> 12));
      *text += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
      *text += static_cast<char>(0x80 | (c & 0x3F));
    } else {
      *text += static_cast<char>(0xF0 | (c >> 18));
      *text += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
      *text += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
      *text += static_cast<char>(0x80 | (c & 0x3F));
    }
  }

  bool Escape(std::string* text) {
    if (at_ >= text_.size()) return Fail("unfinished string");
    const char c = text_[at_++];
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
      *text += kTo[i];
      return true;
    }
    uint32_t code = 0;
    if (c != 'u') return Fail("unknown escape");
    if (!Hex(&code)) return false;
    if (code >= 0xD800 && code < 0xDC00) {  // first half of a surrogate pair
      uint32_t low = 0;
      if (!Take('\\') || !Take('u') || !Hex(&low) || low < 0xDC00 || low > 0xDFFF) return Fail("lone surrogate");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      return Fail("lone surrogate");
    }
    AppendUtf8(code, text);
    return true;
  }

  bool String(std::string* text) {
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (c == '\\') {
        if (!Escape(text)) return false;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        return Fail("control character in a string");
      } else {
        *text += c;
      }
    }
    return Fail("unfinished string");
  }

  std::string_view text_;
  std::string* error_;
  size_t at_ = 0;
};

void DumpString(const std::string& text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      *out += code;
    } else {
      *out += c;
    }
  }
  *out += '"';
}

void DumpReal(double value, std::string* out) {
  if (std::isnan(value)) {
    *out += "\"NaN\"";
  } else if (std::isinf(value)) {
    *out += value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  } else {
    char text[32];
    const auto [end, code] = std::to_chars(text, text + sizeof text, value);
    out->append(text, end);
  }
}

void DumpValue(const Json& value, std::string* out) {
  switch (value.type()) {
    case Json::Type::kNull:
      *out += "null";
      break;
    case Json::Type::kBool:
      *out += value.AsBool() ? "true" : "false";
      break;
    case Json::Type::kInteger:
      *out += std::to_string(value.AsInteger());
      break;
    case Json::Type::kReal:
      DumpReal(value.AsReal(), out);
      break;
    case Json::Type::kString:
      DumpString(value.AsString(), out);
      break;
    case Json::Type::kArray: {
      char separator = '[';
      for (const Json& item : value.items()) {
        *out += separator;
        DumpValue(item, out);
        separator = ',';
      }
      *out += value.items().empty() ? "[]" : "]";
      break;
    }
    case Json::Type::kObject: {
      char separator = '{';
      for (const auto& [key, member] : value.members()) {
        *out += separator;
        DumpString(key, out);
        *out += ':';
        DumpValue(member, out);
        separator = ',';
      }
      *out += value.members().empty() ? "{}" : "}";
      break;
    }
  }
}

}  // namespace

Json Json::Array() {
  Json value;
  value.type_ = Type::kArray;
  return value;
}

Json Json::Object() {
  Json value;
  value.type_ = Type::kObject;
  return value;
}

bool Json::Parse(std::string_view text, Json* value, std::string* error) {
  if (text.size() > kMaxBytes) {
    *error = "document of " + std::to_string(text.size()) + " bytes; at most " + std::to_string(kMaxBytes);
    return false;
  }
  return Parser(text, error).Document(value);
}

std::string Json::Dump() const {
  std::string out;
  DumpValue(*this, &out);
  return out;
}

double Json::AsReal(double fallback) const {
  if (type_ == Type::kReal) return real_;
  return type_ == Type::kInteger ? static_cast<double>(integer_) : fallback;
}

int64_t Json::AsInteger(int64_t fallback) const {
  if (type_ == Type::kInteger) return integer_;
  constexpr double kLimit = 9.2e18;
  return type_ == Type::kReal && std::abs(real_) < kLimit ? static_cast<int64_t>(real_) : fallback;
}

const Json* Json::Find(std::string_view key) const {
  for (const auto& [name, value] : members_) {
    if (name == key) return &value;
  }
  return nullptr;
}

Json& Json::operator[](std::string_view key) {
  if (type_ == Type::kNull) type_ = Type::kObject;
  for (auto& [name, value] : members_) {
    if (name == key) return value;
  }
  return members_.emplace_back(std::string(key), Json()).second;
}

void Json::Remove(std::string_view key) {
  std::erase_if(members_, [key](const Member& member) { return member.first == key; });
}

void Json::Append(Json value) {
  if (type_ == Type::kNull) type_ = Type::kArray;
  items_.push_back(std::move(value));
}

}  // namespace trimtab::agent
