#include "server/store/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace trimtab::server {
namespace {

TEST(Crc32cTest, KnownAnswers) {
  // RFC 3720, B.4, and the check value of the catalogue of CRC algorithms.
  EXPECT_EQ(ExtendCrc32c(0, std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(ExtendCrc32c(0, std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(ExtendCrc32c(0, "123456789"), 0xE3069283U);
  EXPECT_EQ(ExtendCrc32c(0, ""), 0U);
}

TEST(Crc32cTest, ExtendsOverAnySplit) {
  const std::string text = "a dense block of thirty-two floats";
  const uint32_t whole = ExtendCrc32c(0, text);
  for (size_t at = 0; at <= text.size(); ++at) {
    EXPECT_EQ(ExtendCrc32c(ExtendCrc32c(0, text.substr(0, at)), text.substr(at)), whole) << at;
  }
}

}  // namespace
}  // namespace trimtab::server
