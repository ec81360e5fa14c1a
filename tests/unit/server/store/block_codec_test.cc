#include "server/store/block_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"

namespace trimtab::server {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

constexpr char kKey[] = "the key of a row, 28 bytes..";
constexpr int64_t kTime = -123456789;

std::string Encode(const v1::Block& block, v1::DType dtype) {
  std::string value;
  EXPECT_THAT(EncodeBlock(kKey, block, dtype, kTime, &value), IsOk());
  return value;
}

v1::Block RoundTrip(const v1::Block& block, v1::DType dtype) {
  v1::Block decoded;
  int64_t time = 0;
  EXPECT_THAT(DecodeBlock(kKey, Encode(block, dtype), &decoded, &time), IsOk());
  EXPECT_EQ(time, kTime);
  decoded.set_metric(block.metric());
  return decoded;
}

TEST(BlockCodecTest, RandomBitPatternsComeBackExactly) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const uint32_t layers = 1 + random() % 9, heads = 1 + random() % 17;
    v1::Block floats = Floats(3, {layers, heads}, {});
    v1::Block counts = Counts(4, {layers, heads}, {});
    for (uint32_t i = 0; i < layers * heads; ++i) {
      const auto bits = static_cast<uint32_t>(random());
      float value;
      std::memcpy(&value, &bits, 4);
      floats.add_float32(value);
      counts.add_uint64(random());
    }
    // Bytes, since NaN is not equal to itself.
    EXPECT_EQ(RoundTrip(floats, v1::DTYPE_FLOAT32).SerializeAsString(), floats.SerializeAsString());
    EXPECT_EQ(RoundTrip(counts, v1::DTYPE_UINT64).SerializeAsString(), counts.SerializeAsString());
  }
}

TEST(BlockCodecTest, ScalarsHaveNoShape) {
  const v1::Block block = RoundTrip(Scalar(1, -0.0F), v1::DTYPE_FLOAT32);
  EXPECT_EQ(block.shape_size(), 0);
  EXPECT_TRUE(std::signbit(block.float32(0)));
}

TEST(BlockCodecTest, RefusesWhatDoesNotFit) {
  std::string value;
  const auto encode = [&](const v1::Block& block, v1::DType dtype) {
    return EncodeBlock(kKey, block, dtype, 0, &value);
  };
  const auto bad = StatusIs(absl::StatusCode::kInvalidArgument, _);
  EXPECT_THAT(encode(Floats(1, {2, 2}, {1, 2, 3}), v1::DTYPE_FLOAT32), bad);
  EXPECT_THAT(encode(Floats(1, {1}, {1}), v1::DTYPE_UINT64), bad);
  EXPECT_THAT(encode(Floats(1, {0}, {}), v1::DTYPE_FLOAT32), bad);
  EXPECT_THAT(encode(Floats(1, {1, 1, 1}, {1}), v1::DTYPE_FLOAT32), bad);
  EXPECT_THAT(encode(Scalar(1, 1), v1::DTYPE_UNSPECIFIED), bad);
}

TEST(BlockCodecTest, EveryFlippedBitIsFound) {
  const std::string good = Encode(Floats(3, {2, 3}, {1, 2, 3, 4, 5, 6}), v1::DTYPE_FLOAT32);
  v1::Block block;
  int64_t time;
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeBlock(kKey, bad, &block, &time).ok()) << "bit " << bit;
  }
}

TEST(BlockCodecTest, EveryTruncationAndAWrongKeyAreFound) {
  const std::string good = Encode(Counts(3, {2}, {1, 2}), v1::DTYPE_UINT64);
  v1::Block block;
  int64_t time;
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_THAT(DecodeBlock(kKey, good.substr(0, length), &block, &time), StatusIs(absl::StatusCode::kDataLoss, _));
  }
  EXPECT_THAT(DecodeBlock("another key", good, &block, &time),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum")));
}

TEST(BlockCodecTest, ANewerVersionIsNamed) {
  std::string value = Encode(Scalar(1, 1), v1::DTYPE_FLOAT32);
  value[0] = 2;
  v1::Block block;
  int64_t time;
  EXPECT_THAT(DecodeBlock(kKey, value, &block, &time),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("newer trimtabd")));
}

}  // namespace
}  // namespace trimtab::server
