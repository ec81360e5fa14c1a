#include "server/http/query_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trimtab::server {
namespace {

using testing::HasSubstr;
using P = std::multimap<std::string, std::string>;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(QueryParams, ReadsTextAndNumbers) {
  const QueryParams params(P{{"run", "a/b"}, {"from", "18446744073709551615"}});
  EXPECT_TRUE(params.Check({"run", "from"}).ok());
  EXPECT_EQ(params.Text("run"), "a/b");
  EXPECT_EQ(params.Text("absent"), "");
  EXPECT_EQ(*params.Uint("from", UINT64_MAX), UINT64_MAX);
  EXPECT_EQ(*params.Uint("absent", 7), std::nullopt);
}

TEST(QueryParams, RefusesUnknownDoubledAndOversizedOnes) {
  EXPECT_THAT(Message(QueryParams(P{{"rnu", "x"}}).Check({"run"})), HasSubstr("'rnu'"));
  EXPECT_THAT(Message(QueryParams(P{{"run", "x"}, {"run", "y"}}).Check({"run"})), HasSubstr("twice"));
  const std::string most(QueryParams::kMaxValueBytes, 'x');
  EXPECT_TRUE(QueryParams(P{{"run", most}}).Check({"run"}).ok());
  EXPECT_THAT(Message(QueryParams(P{{"run", most + "x"}}).Check({"run"})), HasSubstr("at most 4096"));
}

TEST(QueryParams, RefusesWhatIsNoWholeNumberInRange) {
  for (const char* text : {"", "-1", "1.5", "abc", "0x10", " 1", "1 ", "101", "99999999999999999999999"}) {
    const auto value = QueryParams(P{{"n", text}}).Uint("n", 100);
    EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(**QueryParams(P{{"n", "100"}}).Uint("n", 100), 100U);
}

TEST(QueryParams, NamesWhatIsMissing) {
  EXPECT_THAT(Message(QueryParams(P{}).RequiredText("run").status()), HasSubstr("'run' is missing"));
  EXPECT_THAT(Message(QueryParams(P{{"run", ""}}).RequiredText("run").status()), HasSubstr("missing"));
}

}  // namespace
}  // namespace trimtab::server
