#include "agent/torch/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace trimtab::agent {
namespace {

Json MustParse(const std::string& text) {
  Json value;
  std::string error;
  EXPECT_TRUE(Json::Parse(text, &value, &error)) << text << ": " << error;
  return value;
}

std::string ErrorOf(const std::string& text) {
  Json value;
  std::string error;
  EXPECT_FALSE(Json::Parse(text, &value, &error)) << text;
  return error;
}

TEST(JsonTest, RoundTripsWhatItReads) {
  const std::string text =
      R"({"a":[1,-2,3.5,true,false,null,"x"],"b":{"c":"d\"\\","e":{}},"f":[],"g":9007199254740993})";
  EXPECT_EQ(MustParse(text).Dump(), text);
}

TEST(JsonTest, ReadsSpaceEscapesAndSurrogates) {
  const Json value = MustParse(" [ \"\\u0041\\n\\u00e9\\ud83d\\ude00\" , 1e3 ] ");
  EXPECT_EQ(value.items()[0].AsString(), "A\n\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(value.items()[1].AsReal(), 1000);
}

TEST(JsonTest, NonFiniteNumbersAreStringsAsInProtoJson) {
  Json array = Json::Array();
  array.Append(std::nan(""));
  array.Append(std::numeric_limits<double>::infinity());
  array.Append(-std::numeric_limits<double>::infinity());
  EXPECT_EQ(array.Dump(), R"(["NaN","Infinity","-Infinity"])");
}

TEST(JsonTest, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "[1,]", "{\"a\"}", "{\"a\":1,}", "tru", "1 2", "\"a", "\"\\q\"", "\"\\ud800\"", "-",
                           "0x1", "{1:2}", "\"\x01\"", "nan"}) {
    EXPECT_NE(ErrorOf(text), "") << text;
  }
}

TEST(JsonTest, BoundsDepthAndSize) {
  EXPECT_EQ(MustParse(std::string(Json::kMaxDepth, '[') + std::string(Json::kMaxDepth, ']')).items().size(), 1U);
  EXPECT_NE(ErrorOf(std::string(Json::kMaxDepth + 1, '[')).find("nested too deeply"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string(Json::kMaxBytes + 1, ' ')).find("bytes; at most"), std::string::npos);
}

TEST(JsonTest, MembersAreFoundReplacedAndRemoved) {
  Json value = MustParse(R"({"a":1,"a":2})");
  EXPECT_EQ(value.Find("a")->AsInteger(), 2);
  value["b"]["c"] = "d";
  EXPECT_EQ(value.Dump(), R"({"a":2,"b":{"c":"d"}})");
  value.Remove("a");
  EXPECT_EQ(value.Find("a"), nullptr);
  EXPECT_EQ(value.Find("b")->Find("x"), nullptr);
}

}  // namespace
}  // namespace trimtab::agent
