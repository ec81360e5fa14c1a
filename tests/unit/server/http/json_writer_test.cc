#include "server/http/json_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace trimtab::server {
namespace {

TEST(JsonWriter, WritesWhatAnotherParserReads) {
  JsonWriter json;
  json.BeginObject().Key("a").BeginArray().Int(-1).Uint(18446744073709551615U).Float(0.1F).Double(0.1).EndArray();
  json.Key("b").BeginObject().EndObject().Key("c").Bool(true).Key("d").Null().Key("e").Raw("[1]").EndObject();
  EXPECT_EQ(json.text(), R"({"a":[-1,18446744073709551615,0.1,0.1],"b":{},"c":true,"d":null,"e":[1]})");
  EXPECT_TRUE(nlohmann::json::accept(json.text()));
}

TEST(JsonWriter, FloatsComeBackExactly) {
  for (const float value : {1e-45F, 3.4028235e38F, 16777217.0F, 0.3333333F, -0.0F, 2.0F}) {
    JsonWriter json;
    json.Float(value);
    EXPECT_EQ(std::strtof(json.text().c_str(), nullptr), value) << json.text();
  }
}

TEST(JsonWriter, NumbersThatAreNotFiniteBecomeTheStringsOfProto3Json) {
  JsonWriter json;
  json.BeginArray().Float(std::numeric_limits<float>::quiet_NaN()).Float(std::numeric_limits<float>::infinity());
  json.Double(-std::numeric_limits<double>::infinity()).EndArray();
  EXPECT_EQ(json.text(), R"(["NaN","Infinity","-Infinity"])");
}

TEST(JsonWriter, EscapesWhatIsHostileInJsonOrHtml) {
  const std::string hostile = std::string("</script>\"\\\n\x01\x7f &\0", 18);
  JsonWriter json;
  json.String(hostile);
  EXPECT_EQ(json.text().find_first_of("<>&\n"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(json.text()).get<std::string>(), hostile);
}

TEST(JsonWriter, KeepsUtf8AndReplacesBrokenBytes) {
  JsonWriter good;
  good.String("σ 🚀 é");
  EXPECT_EQ(good.text(), "\"σ 🚀 é\"");
  // Lone continuation, overlong slash, surrogate, above U+10FFFF, cut sequence.
  for (const char* broken : {"\x80", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    JsonWriter json;
    json.String(std::string("a") + broken + "b");
    const auto parsed = nlohmann::json::parse(json.text(), nullptr, false);
    ASSERT_FALSE(parsed.is_discarded()) << json.text();
    EXPECT_EQ(parsed.get<std::string>().front(), 'a');
    EXPECT_EQ(parsed.get<std::string>().back(), 'b');
    EXPECT_NE(json.text().find("\xEF\xBF\xBD"), std::string::npos);
  }
}

TEST(ErrorJson, IsAnObjectWithOneMessage) { EXPECT_EQ(ErrorJson("no \"x\""), R"({"error":"no \"x\""})"); }

}  // namespace
}  // namespace trimtab::server
