// Writes JSON into a string: compact, shortest float form, no exceptions, no tree in between.
//
// NaN and infinities become the strings "NaN", "Infinity" and "-Infinity", as in proto3 JSON. Bytes that are not UTF-8
// become U+FFFD. The caller balances Begin and End; a misplaced call yields malformed JSON, never a crash.
#ifndef TRIMTAB_SERVER_HTTP_JSON_WRITER_H_
#define TRIMTAB_SERVER_HTTP_JSON_WRITER_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace trimtab::server {

class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(absl::string_view key);
  JsonWriter& String(absl::string_view text);
  JsonWriter& Int(int64_t value);
  JsonWriter& Uint(uint64_t value);
  JsonWriter& Float(float value);
  JsonWriter& Double(double value);
  JsonWriter& Bool(bool value);
  JsonWriter& Null();
  JsonWriter& Raw(absl::string_view json);  // `json` must be one valid value

  const std::string& text() const { return out_; }
  std::string Take() { return std::move(out_); }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  void Separate();
  void Quote(absl::string_view text);
  template <typename T>
  JsonWriter& Number(T value);

  std::string out_;
  bool need_comma_ = false;
};

// {"error": message}
std::string ErrorJson(absl::string_view message);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_HTTP_JSON_WRITER_H_
