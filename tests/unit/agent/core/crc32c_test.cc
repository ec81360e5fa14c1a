#include "agent/core/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace trimtab::agent {
namespace {

// Vectors of RFC 3720, appendix B.4.
TEST(Crc32cTest, KnownAnswers) {
  std::vector<uint8_t> bytes(32, 0);
  EXPECT_EQ(Crc32c(0, bytes.data(), bytes.size()), 0x8A9136AAu);
  bytes.assign(32, 0xFF);
  EXPECT_EQ(Crc32c(0, bytes.data(), bytes.size()), 0x62A8AB43u);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  EXPECT_EQ(Crc32c(0, bytes.data(), bytes.size()), 0x46DD794Eu);
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xE3069283u);
  EXPECT_EQ(Crc32c(0, "", 0), 0u);
}

TEST(Crc32cTest, PortableAgreesAtEveryLengthAlignmentAndCut) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(600);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (size_t length = 0; length < 300; ++length) {
    const size_t start = length % 9;
    const uint32_t whole = Crc32c(0, bytes.data() + start, length);
    EXPECT_EQ(Crc32cPortable(0, bytes.data() + start, length), whole);
    const size_t cut = length == 0 ? 0 : random() % length;
    EXPECT_EQ(Crc32c(Crc32cPortable(0, bytes.data() + start, cut), bytes.data() + start + cut, length - cut), whole);
  }
}

}  // namespace
}  // namespace trimtab::agent
