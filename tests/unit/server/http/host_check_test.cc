#include "server/http/host_check.h"

#include <gtest/gtest.h>

namespace trimtab::server {
namespace {

TEST(HostOf, TakesNameAndAddressFromTheHeader) {
  EXPECT_EQ(HostOf("Example.COM:7071"), "example.com");
  EXPECT_EQ(HostOf("localhost"), "localhost");
  EXPECT_EQ(HostOf("localhost."), "localhost");
  EXPECT_EQ(HostOf("127.0.0.1:80"), "127.0.0.1");
  EXPECT_EQ(HostOf("[::1]:80"), "::1");
  for (const char* broken : {"", "[::1", "a:b", "a:80:90", "[::1]x", ":80"}) EXPECT_EQ(HostOf(broken), "") << broken;
}

TEST(IsLoopbackHost, KnowsLoopbackAndItsLookalikes) {
  for (const char* host : {"localhost", "run.localhost", "127.0.0.1", "127.9.9.9", "::1"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"localhost.evil.com", "127.0.0.1.evil.com", "evil.com", "10.0.0.1", "0.0.0.0", "::2", ""}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

TEST(HostAccepted, RefusesReboundNamesOnLoopback) {
  EXPECT_TRUE(HostAccepted("localhost:9999", true, {}));  // an ssh tunnel
  EXPECT_FALSE(HostAccepted("evil.com", true, {}));
  EXPECT_FALSE(HostAccepted("", true, {}));
  EXPECT_TRUE(HostAccepted("TrimTab.example:1", true, {"trimtab.example"}));
  EXPECT_FALSE(HostAccepted("other.example", true, {"trimtab.example"}));
}

TEST(HostAccepted, BeyondLoopbackAnyNameUnlessSomeAreListed) {
  EXPECT_TRUE(HostAccepted("node-7:7071", false, {}));
  EXPECT_FALSE(HostAccepted("node-7:7071", false, {"node-8"}));
  EXPECT_TRUE(HostAccepted("node-8", false, {"node-8"}));
}

}  // namespace
}  // namespace trimtab::server
