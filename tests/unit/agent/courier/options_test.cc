#include "agent/courier/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "agent/courier/backoff.h"
#include "agent/courier/limits.h"

namespace trimtab::courier {
namespace {

struct Result {
  std::optional<Options> options;
  int code = -1;
  std::string out, err;
};

Result Parse(std::vector<const char*> args) {
  args.insert(args.begin(), "trimtab-courier");
  Result result;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  result.options = ParseOptions(static_cast<int>(args.size()), args.data(), &result.code);
  result.out = testing::internal::GetCapturedStdout();
  result.err = testing::internal::GetCapturedStderr();
  return result;
}

TEST(OptionsTest, DefaultsAndValues) {
  const Result minimal = Parse({"--server", "localhost:7701", "--ring-dir", "/r"});
  ASSERT_TRUE(minimal.options.has_value()) << minimal.err;
  EXPECT_EQ(minimal.options->spool_bytes, uint64_t{1} << 30);
  EXPECT_EQ(minimal.options->poll_ms, 20u);
  EXPECT_FALSE(minimal.options->exit_when_idle);
  EXPECT_NE(minimal.options->spool_dir, "");
  const Result full = Parse({"--server=[::1]:1", "--ring-dir=/r", "--spool-dir=/s", "--spool-bytes", "64MiB",
                             "--exit-when-idle", "--wait-lock", "--drain", "--adopt-any", "--poll-ms", "5",
                             "--parent-pid", "12", "--log-level", "debug", "--log-file", "/l"});
  ASSERT_TRUE(full.options.has_value()) << full.err;
  EXPECT_EQ(full.options->spool_bytes, uint64_t{64} << 20);
  EXPECT_TRUE(full.options->exit_when_idle && full.options->wait_lock && full.options->drain &&
              full.options->adopt_any);
  EXPECT_EQ(full.options->parent_pid, 12u);
  EXPECT_EQ(full.options->log_file, "/l");
}

TEST(OptionsTest, HelpAndVersionEndWithZero) {
  const Result help = Parse({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.out.find("--exit-when-idle"), std::string::npos);
  const Result version = Parse({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out.rfind("trimtab-courier ", 0), 0u) << version.out;
}

TEST(OptionsTest, WrongFlagsAreOneLineAndExitTwo) {
  const std::vector<std::vector<const char*>> wrong = {
      {},
      {"--server", "localhost:7701"},
      {"--ring-dir", "/r"},
      {"--server", "localhost", "--ring-dir", "/r"},
      {"--server", ":7701", "--ring-dir", "/r"},
      {"--server", "host:", "--ring-dir", "/r"},
      {"--server", "host:0", "--ring-dir", "/r"},
      {"--server", "host:65536", "--ring-dir", "/r"},
      {"--server", "host:999999999999", "--ring-dir", "/r"},
      {"--server", "http://host:1x", "--ring-dir", "/r"},
      {"--server", "::1:77", "--ring-dir", "/r"},
      {"--server", "a b:77", "--ring-dir", "/r"},
      {"--server", "h:1", "--ring-dir", "/r", "--spool-bytes", "1"},
      {"--server", "h:1", "--ring-dir", "/r", "--spool-bytes", "lots"},
      {"--server", "h:1", "--ring-dir", "/r", "--poll-ms", "0"},
      {"--server", "h:1", "--ring-dir", "/r", "--parent-pid", "-4"},
      {"--server", "h:1", "--ring-dir", "/r", "--log-level", "loud"},
      {"--server", "h:1", "--ring-dir", "/r", "--no-such-flag"},
      {"--server", "h:1", "--ring-dir", "/r", "stray"},
      {"--server", "h:1", "--ring-dir=", "--drain"},
      {"--server", "h:1", "--ring-dir", "/r", "--spool-dir=", "--drain"},
  };
  for (const auto& args : wrong) {
    const Result result = Parse(args);
    EXPECT_FALSE(result.options.has_value());
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.out, "");
    ASSERT_FALSE(result.err.empty());
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    EXPECT_EQ(result.err.rfind("trimtab-courier: ", 0), 0u) << result.err;
  }
}

TEST(BackoffTest, DoublesWithJitterUpToTheBound) {
  using std::chrono::milliseconds;
  Backoff backoff(milliseconds(100), milliseconds(5000), 1);
  Duration full = milliseconds(100);
  for (int i = 0; i < 10; ++i) {
    const Duration wait = backoff.Next();
    EXPECT_GE(wait, full / 2);
    EXPECT_LE(wait, full);
    full = std::min<Duration>(full * 2, milliseconds(5000));
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(), milliseconds(100));
  Backoff a(milliseconds(1000), milliseconds(5000), 1), b(milliseconds(1000), milliseconds(5000), 2);
  EXPECT_NE(a.Next(), b.Next());
}

}  // namespace
}  // namespace trimtab::courier
