#include "agent/core/text_check.h"

#include <gtest/gtest.h>

#include <string>

namespace trimtab::agent {
namespace {

bool Utf8(const std::string& text) { return IsUtf8(text.data(), text.size()); }
bool Printable(const std::string& text) { return IsPrintableUtf8(text.data(), text.size()); }

TEST(TextCheckTest, AcceptsEveryLengthOfCharacter) {
  EXPECT_TRUE(Utf8(""));
  for (const char* text :
       {"gpt2-small", "a/b \"c\" 'd' \\", "\x7E", "\xC2\xA0", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF",
        "\xEE\x80\x80", "\xEF\xBF\xBD", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "実験 №1 🚀"}) {
    EXPECT_TRUE(Printable(text)) << text;
  }
}

TEST(TextCheckTest, RefusesMalformedSequences) {
  for (const char* text : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2\x41", "\xE0\x9F\xBF", "\xE2\x82",
                           "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF0\x90\x80", "\xF4\x90\x80\x80",
                           "\xF5\x80\x80\x80", "\xFE", "\xFF", "ok\xE2\x28\xA1"}) {
    EXPECT_FALSE(Utf8(text)) << testing::PrintToString(text);
  }
  EXPECT_FALSE(Utf8(std::string("a\0b", 3)));
}

TEST(TextCheckTest, RefusesWhatBreaksALineOrHides) {
  for (const char* text :
       {"a\nb", "a\rb", "\t", "\x1B[2J", "\x7F", "\xC2\x85", "\xC2\x80", "\xE2\x80\xA8", "\xE2\x80\xA9"}) {
    EXPECT_TRUE(Utf8(text));
    EXPECT_FALSE(Printable(text)) << testing::PrintToString(text);
  }
}

TEST(TextCheckTest, PrefixNeverCutsACharacter) {
  const std::string text = "aé€🚀";  // 1 + 2 + 3 + 4 bytes
  const size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (size_t limit = 0; limit < std::size(expected); ++limit) {
    EXPECT_EQ(Utf8Prefix(text.data(), text.size(), limit), expected[limit]) << limit;
  }
}

}  // namespace
}  // namespace trimtab::agent
