#include "server/query/select_cell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"

namespace trimtab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::Block Select(v1::Block block, std::optional<uint32_t> layer, std::optional<uint32_t> head) {
  EXPECT_THAT(SelectCell(layer, head, &block), IsOk());
  return block;
}

TEST(SelectCellTest, LayersAndHeads) {
  const v1::Block block = Floats(1, {2, 3}, {0, 1, 2, 10, 11, 12});
  EXPECT_THAT(Select(block, 1, 2).float32(), ElementsAre(12));
  EXPECT_THAT(Select(block, 1, 2).shape(), IsEmpty());
  EXPECT_THAT(Select(block, 1, std::nullopt).float32(), ElementsAre(10, 11, 12));
  EXPECT_THAT(Select(block, 1, std::nullopt).shape(), ElementsAre(3));
  EXPECT_THAT(Select(block, std::nullopt, 2).float32(), ElementsAre(2, 12));
  EXPECT_THAT(Select(block, std::nullopt, 2).shape(), ElementsAre(2));
  EXPECT_THAT(Select(block, std::nullopt, std::nullopt).float32(), ElementsAre(0, 1, 2, 10, 11, 12));
}

TEST(SelectCellTest, LayersOnly) {
  const v1::Block block = Counts(1, {3}, {5, 6, 7});
  EXPECT_THAT(Select(block, 1, std::nullopt).uint64(), ElementsAre(6));
  EXPECT_THAT(Select(block, 1, std::nullopt).shape(), IsEmpty());
}

TEST(SelectCellTest, WhatIsNotThere) {
  const auto select = [](v1::Block block, std::optional<uint32_t> layer, std::optional<uint32_t> head) {
    return SelectCell(layer, head, &block);
  };
  const v1::Block block = Floats(1, {2, 3}, {0, 1, 2, 10, 11, 12});
  EXPECT_THAT(select(block, 2, 0), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("there are 2")));
  EXPECT_THAT(select(block, 0, 3), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("there are 3")));
  EXPECT_THAT(select(Scalar(1, 1), 0, std::nullopt), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("scalar")));
  EXPECT_THAT(select(Floats(1, {1}, {1}), 0, 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no heads")));
}

}  // namespace
}  // namespace trimtab::server
