#include "server/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "server/config/settings.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"

namespace trimtab::server {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<CommandLine> Parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "trimtabd");
  return ParseCommandLine(static_cast<int>(flags.size()), flags.data(), "1.2.3");
}

auto Refused(const std::string& text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(text), Not(HasSubstr("\n"))));
}

TEST(ConfigTest, FlagsWinOverTheFileOverTheDefaults) {
  TempDir folder;
  std::ofstream(folder.File("c.yaml")) << "# comment\nlisten: 127.0.0.1:1\nmax_series: 500\nlog_level: warn\n";
  const std::string file = folder.File("c.yaml");
  const auto parsed = Parse({"--config", file.c_str(), "--max-series", "600", "--data-dir=/x"});
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->config.listen, "127.0.0.1:1");
  EXPECT_EQ(parsed->config.max_series, 600);
  EXPECT_EQ(parsed->config.log_level, "warn");
  EXPECT_EQ(parsed->config.http, "127.0.0.1:7071");
  EXPECT_EQ(parsed->config.data_dir, "/x");
}

TEST(ConfigTest, EverySettingHasAKeyAndAFlagThatDoTheSame) {
  for (const Setting& setting : Settings()) {
    Config by_key;
    const std::string value = setting.is_switch ? "true" : setting.show(by_key);
    const std::string line = setting.key + ": \"" + value + "\"\n";
    EXPECT_THAT(ApplyConfigText("f", line, &by_key), IsOk()) << line;
    const std::string flag = FlagOf(setting) + (setting.is_switch ? "" : "=" + value);
    const auto by_flag = Parse({"--data-dir=/x", flag.c_str()});
    if (setting.key == "data_dir") continue;  // its default is not empty
    ASSERT_THAT(by_flag, IsOk()) << flag;
    EXPECT_EQ(setting.show(by_flag->config), setting.show(by_key)) << flag;
  }
}

TEST(ConfigTest, UnknownKeysAreNamedWithTheirPlace) {
  Config config;
  EXPECT_THAT(ApplyConfigText("f.yaml", "listen: 127.0.0.1:1\n\n  \nhtpp: x\n", &config),
              Refused("f.yaml:4:1: unknown key \"htpp\"; did you mean \"http\"?"));
  EXPECT_THAT(ApplyConfigText("f.yaml", "silent_after_secs: 3\n", &config),
              Refused("did you mean \"silent_after_seconds\"?"));
  EXPECT_THAT(ApplyConfigText("f.yaml", "completely_different_thing: 3\n", &config),
              Refused("trimtabd --help lists all"));
}

TEST(ConfigTest, BadValuesAreNamedWithTheirPlace) {
  Config config;
  const auto refused = [&](const std::string& text, const std::string& message) {
    EXPECT_THAT(ApplyConfigText("f", text, &config), Refused(message)) << text;
  };
  refused("listen: 7070", "f:1:9: listen: \"7070\" is not HOST:PORT");
  refused("listen: ::1:7070", "not HOST:PORT");
  refused("listen: 127.0.0.1:70700", "not HOST:PORT");
  refused("listen: \"\"", "not HOST:PORT");
  refused("\nmax_series:   ten", "f:2:15: max_series: \"ten\" is not a whole number from 100 to 1000000");
  refused("max_series: 99", "from 100");
  refused("max_series: -1", "whole number");
  refused("silent_after_seconds: nan", "seconds from 1 to 86400");
  refused("silent_after_seconds: 0.5", "seconds from 1 to 86400");
  refused("log_level: loud", "one of debug, info, warn, error");
  refused("allow_remote: maybe", "true or false");
  refused("listen: [a, b]", "f:1:9: listen takes one value");
  refused("listen: {a: b}", "takes one value");
  refused("- listen", "f:1:1: expected \"key: value\"");
  refused("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2", "f:2:1: \"listen\" is set twice");
  refused("listen: 'open", "f:1:");
  refused("a: b: c", "f:1:");
  refused("? [a]\n: b", "one word");
}

TEST(ConfigTest, AnEmptyFileIsFine) {
  Config config;
  EXPECT_THAT(ApplyConfigText("f", "", &config), IsOk());
  EXPECT_THAT(ApplyConfigText("f", "# nothing\n", &config), IsOk());
}

TEST(ConfigTest, BadFlags) {
  EXPECT_THAT(Parse({"--lisen", "x"}), Refused("did you mean --listen?"));
  EXPECT_THAT(Parse({"--max-series"}), Refused("--max-series"));
  EXPECT_THAT(Parse({"--max-series", "many"}), Refused("--max-series: \"many\" is not a whole number"));
  EXPECT_THAT(Parse({"surplus"}), Refused("surplus"));
  EXPECT_THAT(Parse({"--data-dir="}), Refused("--data-dir"));
  EXPECT_THAT(Parse({"--config", "/nowhere/c.yaml"}), Refused("cannot read /nowhere/c.yaml"));
  EXPECT_THAT(Parse({"--config", "/"}), Refused("cannot read /"));
  EXPECT_THAT(Parse({"--allow-remote=maybe"}), Refused("--allow-remote: \"maybe\" is not true or false"));
}

TEST(ConfigTest, BeyondLoopbackOnlyWhenToldSo) {
  EXPECT_THAT(Parse({"--listen", "0.0.0.0:7070"}), Refused("--allow-remote"));
  EXPECT_THAT(Parse({"--http", "[::]:7071"}), Refused("--allow-remote"));
  EXPECT_THAT(Parse({"--listen", "0.0.0.0:7070", "--allow-remote"}), IsOk());
  EXPECT_THAT(Parse({"--listen", "0.0.0.0:7070", "--allow-remote=true"}), IsOk());
  EXPECT_THAT(Parse({"--listen", "0.0.0.0:7070", "--allow-remote=false"}), Refused("--allow-remote"));
  EXPECT_THAT(Parse({"--listen", "[::1]:7070", "--http", "localhost:7071"}), IsOk());
  EXPECT_THAT(Parse({"--listen", "127.0.0.1:7", "--http", "127.0.0.1:7"}), Refused("give two ports"));
  EXPECT_THAT(Parse({"--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}), IsOk());
  EXPECT_THAT(Parse({"--http", ""}), IsOk());
}

TEST(ConfigTest, HelpAndVersion) {
  EXPECT_EQ(Parse({"--version"})->message, "trimtabd 1.2.3\n");
  const std::string help = Parse({"--help"})->message;
  for (const Setting& setting : Settings()) EXPECT_THAT(help, HasSubstr(FlagOf(setting)));
}

TEST(ConfigTest, Addresses) {
  EXPECT_EQ(FormatAddress(*ParseAddress("[::1]:70")), "[::1]:70");
  EXPECT_EQ(FormatAddress(*ParseAddress("host.example:0")), "host.example:0");
  EXPECT_TRUE(IsLoopback("127.1.2.3"));
  EXPECT_FALSE(IsLoopback("128.0.0.1"));
  EXPECT_FALSE(IsLoopback("127.evil.example")) << "a name, of any machine";
}

TEST(ConfigTest, DidYouMeanStaysSilentWhenNothingIsNear) {
  EXPECT_EQ(DidYouMean("listn", {"listen", "http"}), "listen");
  EXPECT_EQ(DidYouMean("zzzzzz", {"listen", "http"}), "");
}

}  // namespace
}  // namespace trimtab::server
