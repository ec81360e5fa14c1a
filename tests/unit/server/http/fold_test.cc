#include "server/http/fold.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trimtab::server {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

v1::Block Block(std::vector<uint32_t> shape, std::vector<float> values) {
  v1::Block block;
  block.mutable_shape()->Assign(shape.begin(), shape.end());
  block.mutable_float32()->Assign(values.begin(), values.end());
  return block;
}

TEST(Fold, FoldsHeadsByAggregation) {
  const v1::Block block = Block({2, 3}, {1, 2, 6, -4, -5, -3});
  EXPECT_EQ(FoldLayer(block, v1::AGGREGATION_MAX, 0, std::nullopt), 6);
  EXPECT_EQ(FoldLayer(block, v1::AGGREGATION_MAX, 1, std::nullopt), -3);
  EXPECT_EQ(FoldLayer(block, v1::AGGREGATION_MEAN, 0, std::nullopt), 3);
  EXPECT_EQ(FoldLayer(block, v1::AGGREGATION_SUM, 1, std::nullopt), -12);
  EXPECT_EQ(FoldLayer(block, v1::AGGREGATION_LAST, 0, std::nullopt), 6);
  EXPECT_EQ(FoldLayer(block, v1::AGGREGATION_MAX, 1, 1U), -5);
}

TEST(Fold, NaNIsNoSampleAndInfinityIsAValue) {
  const v1::Block block = Block({3, 2}, {kNaN, 4, kNaN, kNaN, kInf, 1});
  EXPECT_EQ(FoldLayer(block, v1::AGGREGATION_MEAN, 0, std::nullopt), 4);
  EXPECT_TRUE(std::isnan(FoldLayer(block, v1::AGGREGATION_SUM, 1, std::nullopt)));
  EXPECT_EQ(FoldLayer(block, v1::AGGREGATION_MAX, 2, std::nullopt), kInf);
}

TEST(Fold, ScalarsVectorsAndWholeNumbers) {
  EXPECT_EQ(FoldLayer(Block({}, {2.5F}), v1::AGGREGATION_MEAN, 0, std::nullopt), 2.5F);
  EXPECT_EQ(FoldLayer(Block({2}, {1, 7}), v1::AGGREGATION_MAX, 1, std::nullopt), 7);
  v1::Block whole;
  whole.add_shape(1);
  whole.add_uint64(3);
  EXPECT_EQ(Cell(whole, 0, 0), 3);
}

TEST(Fold, CellsThatAreNotThereAreNaN) {
  EXPECT_TRUE(std::isnan(Cell(Block({2, 2}, {1, 2, 3, 4}), 2, 0)));
  EXPECT_TRUE(std::isnan(Cell(Block({2, 2}, {1, 2, 3, 4}), 0, 2)));
  EXPECT_TRUE(std::isnan(Cell(Block({2, 2}, {1}), 1, 1)));  // ragged
  EXPECT_TRUE(std::isnan(FoldLayer(Block({2, 0}, {}), v1::AGGREGATION_MAX, 0, std::nullopt)));
  EXPECT_TRUE(std::isnan(Cell(Block({4294967295U, 4294967295U}, {1}), 4294967294U, 1)));
}

}  // namespace
}  // namespace trimtab::server
