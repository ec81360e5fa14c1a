#include "server/cli/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace trimtab::cli {
namespace {

TEST(Escape, LeavesOrdinaryTextAlone) {
  for (const char* text : {"", "plain", "a/b \"q\" 'x' \\ $(rm)", "σ(Wq) 日本語 🚀 é"}) EXPECT_EQ(Escape(text), text);
}

TEST(Escape, MakesTerminalSequencesVisible) {
  EXPECT_EQ(Escape("a\x1b[2J\x1b]0;title\x07z"), "a\\x1b[2J\\x1b]0;title\\x07z");
  EXPECT_EQ(Escape("one\ntwo\tthree\r"), "one\\ntwo\\tthree\\x0d");
  EXPECT_EQ(Escape("\xC2\x9B"
                   "31m"),
            "\\x9b31m");                                       // C1 control sequence introducer
  EXPECT_EQ(Escape("\xE2\x80\xAEgpj.exe"), "\\u202egpj.exe");  // right-to-left override
  EXPECT_EQ(Escape("\xE2\x80\xA8|\xEF\xBB\xBF"), "\\u2028|\\ufeff");
  EXPECT_EQ(Escape(std::string("nul\0!", 5)), "nul\\x00!");
}

TEST(Escape, ShowsBytesThatAreNotUtf8) {
  EXPECT_EQ(Escape("\xFF\x80"), "\\xff\\x80");
  EXPECT_EQ(Escape("\xC0\x9B"), "\\xc0\\x9b");           // overlong escape
  EXPECT_EQ(Escape("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // surrogate
  EXPECT_EQ(Escape("a\xE2\x82"), "a\\xe2\\x82");         // cut
}

TEST(DisplayWidth, CountsColumnsNotBytes) {
  EXPECT_EQ(DisplayWidth("abc"), 3U);
  EXPECT_EQ(DisplayWidth("σé"), 2U);
  EXPECT_EQ(DisplayWidth("日本🚀"), 6U);
}

TEST(Shorten, CutsAtColumnsWithAnEllipsis) {
  EXPECT_EQ(Shorten("abcdef", 6), "abcdef");
  EXPECT_EQ(Shorten("abcdef", 4), "abc…");
  EXPECT_EQ(Shorten("日本語", 4), "日…");
  EXPECT_EQ(Shorten("abc", 0), "");
  EXPECT_EQ(Shorten("abc", 1), "…");
}

TEST(Number, HasUnitsAndNamesForWhatIsNotFinite) {
  EXPECT_EQ(Number(0.123456), "0.1235");
  EXPECT_EQ(Number(1234567), "1.235e+06");
  EXPECT_EQ(Number(std::numeric_limits<double>::quiet_NaN(), "seconds"), "NaN");
  EXPECT_EQ(Number(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(Number(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(Number(0.0000123, "seconds"), "12.3 µs");
  EXPECT_EQ(Number(0.25, "seconds"), "250 ms");
  EXPECT_EQ(Number(90, "seconds"), "90 s");
  EXPECT_EQ(Number(3600, "seconds"), "60 min");
  EXPECT_EQ(Number(1536, "bytes"), "1.5 KiB");
  EXPECT_EQ(Number(0.034, "ratio"), "3.4 %");
  EXPECT_EQ(Number(2, "nats"), "2 nats");
}

TEST(Count, GroupsThousands) {
  EXPECT_EQ(Count(0), "0");
  EXPECT_EQ(Count(999), "999");
  EXPECT_EQ(Count(1000), "1,000");
  EXPECT_EQ(Count(18446744073709551615U), "18,446,744,073,709,551,615");
}

TEST(Ago, CoarsensWithAge) {
  constexpr int64_t kSecond = 1000000000;
  const int64_t now = 1800000000 * kSecond;
  EXPECT_EQ(Ago(0, now), "never");
  EXPECT_EQ(Ago(now - 2 * kSecond, now), "2 s ago");
  EXPECT_EQ(Ago(now - 300 * kSecond, now), "5 min ago");
  EXPECT_EQ(Ago(now - 8000 * kSecond, now), "2 h ago");
  EXPECT_EQ(Ago(now - 3 * 86400 * kSecond, now), "3 d ago");
  EXPECT_EQ(Ago(now + 5 * kSecond, now), "0 s ago");
}

TEST(LayerList, NamesRanges) {
  EXPECT_EQ(LayerList({}), "all");
  EXPECT_EQ(LayerList({3}), "3");
  EXPECT_EQ(LayerList({8, 0, 3, 5, 6, 7, 3}), "0, 3, 5-8");
  EXPECT_EQ(LayerList({1, 2}), "1, 2");
}

TEST(Modes, AreSummed) {
  EXPECT_EQ(ModesSummary({}), "not reported");
  EXPECT_EQ(ModesSummary({v1::KERNEL_MODE_STABILIZED, v1::KERNEL_MODE_OBSERVE, v1::KERNEL_MODE_OBSERVE}),
            "2 observe, 1 stabilized");
  EXPECT_EQ(ModeName(static_cast<v1::KernelMode>(99)), "unknown");
}

TEST(Table, AlignsColumnsAndEscapesCells) {
  Table table({"NAME", ">N"});
  table.Add({"a\x1b[31m", "1"});
  table.Add({"日本", "200", "dropped"});
  table.Add({"short"});
  EXPECT_EQ(table.Render(),
            "NAME         N\n"
            "a\\x1b[31m    1\n"
            "日本       200\n"
            "short\n");
  EXPECT_EQ(table.rows(), 3U);
  EXPECT_THAT(table.Render(5), testing::StartsWith("NAME…\n"));
}

}  // namespace
}  // namespace trimtab::cli
