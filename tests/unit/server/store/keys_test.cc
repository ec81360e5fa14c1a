#include "server/store/keys.h"

#include <gtest/gtest.h>

#include <vector>

namespace trimtab::server {
namespace {

std::string Encode(const RowKey& key) {
  std::string out;
  EncodeRowKey(key, &out);
  return out;
}

TEST(KeysTest, RowKeysSortByTheirFields) {
  const std::vector<RowKey> ascending = {{1, 2, 3, 4, 5},     {1, 2, 3, 4, 255},         {1, 2, 3, 4, 256},
                                         {1, 2, 3, 4, ~0ULL}, {1, 2, 3, 5, 0},           {1, 2, 4, 0, 0},
                                         {1, 3, 0, 0, 0},     {1, ~0U, ~0U, ~0U, ~0ULL}, {2, 0, 0, 0, 0}};
  for (size_t i = 1; i < ascending.size(); ++i) EXPECT_LT(Encode(ascending[i - 1]), Encode(ascending[i])) << i;
}

TEST(KeysTest, RowKeysComeBack) {
  const std::string bytes = Encode({0x0102030405060708, 9, 10, 11, 0xF0F0F0F0F0F0F0F0});
  ASSERT_EQ(bytes.size(), kRowKeyBytes);
  RowKey key;
  ASSERT_TRUE(DecodeRowKey(bytes, &key));
  EXPECT_EQ(key.run, 0x0102030405060708U);
  EXPECT_EQ(key.metric, 9);
  EXPECT_EQ(key.rank, 10);
  EXPECT_EQ(key.order, 11);
  EXPECT_EQ(key.step, 0xF0F0F0F0F0F0F0F0U);
  EXPECT_FALSE(DecodeRowKey(bytes.substr(1), &key));
  EXPECT_FALSE(DecodeRowKey(bytes + "x", &key));
}

TEST(KeysTest, PrefixesEnd) {
  EXPECT_EQ(AfterPrefix("ab"), "ac");
  EXPECT_EQ(AfterPrefix("a\xFF"), "b");
}

TEST(KeysTest, EventIndexGroupsARunInOrderOfIds) {
  EXPECT_LT(EventIndexKey("run", 255), EventIndexKey("run", 256));
  EXPECT_EQ(EventIndexKey("run", 1).substr(0, 9), EventIndexPrefix("run"));
  EXPECT_NE(EventIndexPrefix("run"), EventIndexPrefix("run2"));
}

}  // namespace
}  // namespace trimtab::server
