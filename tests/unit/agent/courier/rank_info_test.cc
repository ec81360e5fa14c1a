#include "agent/courier/rank_info.h"

#include <gtest/gtest.h>

#include <string>

#include "agent/courier/limits.h"

namespace trimtab::courier {
namespace {

agent::RingIdentity Identity() {
  agent::RingIdentity identity;
  identity.run = "run/\"quoted\"";
  identity.host = "node-7";
  identity.rank = 3;
  identity.world_size = 8;
  identity.local_rank = 1;
  identity.pid = 4711;
  identity.incarnation = UINT64_MAX;
  identity.act = true;
  return identity;
}

TEST(RankInfoTest, IdentityIsTakenOver) {
  const auto info = RankInfoFromIdentity(Identity());
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->run(), "run/\"quoted\"");
  EXPECT_EQ(info->host(), "node-7");
  EXPECT_EQ(info->rank(), 3u);
  EXPECT_EQ(info->world_size(), 8u);
  EXPECT_EQ(info->local_rank(), 1u);
  EXPECT_EQ(info->pid(), 4711u);
  EXPECT_EQ(info->incarnation(), UINT64_MAX);
  EXPECT_TRUE(info->act());
}

TEST(RankInfoTest, TextThatCannotBeSentIsRefusedOrLeftOut) {
  agent::RingIdentity identity = Identity();
  identity.host = "\xff\xfe";
  EXPECT_EQ(RankInfoFromIdentity(identity)->host(), "");
  identity.run = "\xc3\x28";
  EXPECT_FALSE(RankInfoFromIdentity(identity).ok());
  identity.run = "";
  EXPECT_FALSE(RankInfoFromIdentity(identity).ok());
}

TEST(RankInfoTest, JsonAddsButNeverChangesWhoTheRankIs) {
  const v1::RankInfo base = *RankInfoFromIdentity(Identity());
  const auto info = RankInfoFromJson(base, R"({
    "run": "other", "rank": 0, "worldSize": 1, "localRank": 5, "incarnation": "1", "host": "evil", "pid": 1, "act": false,
    "layers": [{"index": 0, "name": "h.0.attn", "heads": 4}], "modes": ["KERNEL_MODE_OBSERVE", 3],
    "metadata": {"seed": "1"}, "coverage": {"notes": ["n"]}, "somethingNew": {"a": [1, 2]}})");
  ASSERT_TRUE(info.ok()) << info.status();
  v1::RankInfo identity_only = *info;
  identity_only.clear_layers();
  identity_only.clear_modes();
  identity_only.clear_metadata();
  identity_only.clear_coverage();
  EXPECT_EQ(identity_only.SerializeAsString(), base.SerializeAsString());
  EXPECT_EQ(info->layers(0).name(), "h.0.attn");
  EXPECT_EQ(info->modes(1), v1::KERNEL_MODE_STABILIZED);
}

TEST(RankInfoTest, HostileTextIsRefused) {
  const v1::RankInfo base = *RankInfoFromIdentity(Identity());
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += "{\"x\":";
  std::string many = "{\"layers\":[{}";
  for (int i = 0; i < kMaxInfoEntries; ++i) many += ",{}";
  many += "]}";
  std::string notes = "{\"coverage\":{\"notes\":[\"\"";
  for (int i = 0; i < kMaxInfoEntries; ++i) notes += ",\"\"";
  notes += "]}}";
  for (const std::string& json :
       {std::string(), std::string("{"), std::string("[]"), std::string("null x"), std::string("{\"layers\": 3}"),
        std::string("{\"rank\": -1}"), std::string("{\"host\": \"\xff\"}"), std::string("{}\0{}", 5), deep, many, notes,
        "{\"host\": \"" + std::string(kMaxInfoBytes, 'x') + "\"}"}) {
    EXPECT_FALSE(RankInfoFromJson(base, json).ok()) << json.substr(0, 60);
  }
}

TEST(RankInfoTest, WhatPassesCanBeParsedByTheOtherSide) {
  const v1::RankInfo base = *RankInfoFromIdentity(Identity());
  for (const char* json : {R"({"metadata": {"a": "\ud800"}})", R"({"metadata": {"a": "\udc00\ud800"}})",
                           R"({"metadata": {"\ud83d\ude00": "\u0000"}})"}) {
    const auto info = RankInfoFromJson(base, json);
    if (!info.ok()) continue;
    v1::RankInfo copy;
    EXPECT_TRUE(copy.ParseFromString(info->SerializeAsString())) << json;
  }
  EXPECT_TRUE(RankInfoFromJson(base, R"({"metadata": {"\ud83d\ude00": "é"}})").ok());
}

TEST(RankInfoTest, ListsAtTheBoundPass) {
  const v1::RankInfo base = *RankInfoFromIdentity(Identity());
  std::string many = "{\"layers\":[{}";
  for (int i = 1; i < kMaxInfoEntries; ++i) many += ",{}";
  const auto info = RankInfoFromJson(base, many + "]}");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->layers_size(), kMaxInfoEntries);
}

}  // namespace
}  // namespace trimtab::courier
