// A small JSON value for options and RankInfo: the shim links nothing but torch, so it brings its own reader.
#ifndef TRIMTAB_AGENT_TORCH_JSON_H_
#define TRIMTAB_AGENT_TORCH_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trimtab::agent {

// Value semantics; objects keep the order of insertion, keys are unique. Not thread-safe.
class Json {
 public:
  enum class Type { kNull, kBool, kInteger, kReal, kString, kArray, kObject };
  using Member = std::pair<std::string, Json>;

  static constexpr int kMaxDepth = 64;
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  Json() = default;
  Json(bool value) : type_(Type::kBool), integer_(value) {}                   // NOLINT(google-explicit-constructor)
  Json(int64_t value) : type_(Type::kInteger), integer_(value) {}             // NOLINT(google-explicit-constructor)
  Json(int value) : Json(int64_t{value}) {}                                   // NOLINT(google-explicit-constructor)
  Json(uint32_t value) : Json(int64_t{value}) {}                              // NOLINT(google-explicit-constructor)
  Json(uint64_t value) : Json(static_cast<int64_t>(value)) {}                 // NOLINT(google-explicit-constructor)
  Json(double value) : type_(Type::kReal), real_(value) {}                    // NOLINT(google-explicit-constructor)
  Json(std::string value) : type_(Type::kString), text_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Json(std::string_view value) : Json(std::string(value)) {}                  // NOLINT(google-explicit-constructor)
  Json(const char* value) : Json(std::string(value)) {}                       // NOLINT(google-explicit-constructor)
  static Json Array();
  static Json Object();

  // Parses one document (RFC 8259). False: *error says what and at which byte. At most kMaxBytes and kMaxDepth.
  static bool Parse(std::string_view text, Json* value, std::string* error);
  // Non-finite reals become the strings "NaN", "Infinity", "-Infinity", as proto3 JSON wants them.
  std::string Dump() const;

  Type type() const { return type_; }
  bool is_object() const { return type_ == Type::kObject; }
  bool is_array() const { return type_ == Type::kArray; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_number() const { return type_ == Type::kInteger || type_ == Type::kReal; }

  // The value, or the fallback when it is of another type.
  bool AsBool(bool fallback = false) const { return type_ == Type::kBool ? integer_ != 0 : fallback; }
  double AsReal(double fallback = 0) const;
  int64_t AsInteger(int64_t fallback = 0) const;
  const std::string& AsString() const { return text_; }  // "" for other types

  const std::vector<Json>& items() const { return items_; }
  std::vector<Json>& items() { return items_; }
  const std::vector<Member>& members() const { return members_; }

  // Member `key`; nullptr when absent or when this is no object.
  const Json* Find(std::string_view key) const;
  // Member `key`, made as null when absent; turns a null value into an object.
  Json& operator[](std::string_view key);
  void Append(Json value);
  void Remove(std::string_view key);

 private:
  Type type_ = Type::kNull;
  int64_t integer_ = 0;
  double real_ = 0;
  std::string text_;
  std::vector<Json> items_;
  std::vector<Member> members_;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_TORCH_JSON_H_
