// Catalog and small state.
#include "server/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"

namespace trimtab::server {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class StoreTest : public testing::Test {
 protected:
  void SetUp() override { Reopen(); }
  void Reopen() {
    store_.reset();
    auto opened = Store::Open({.path = folder_.path()});
    ASSERT_THAT(opened, IsOk());
    store_ = *std::move(opened);
  }

  TempDir folder_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, RunsSurviveReopening) {
  const auto metrics = TestMetrics();
  v1::RankInfo info = Info("a", 3, 4, 77);
  ASSERT_THAT(store_->RegisterRank(info, metrics), IsOk());
  ASSERT_THAT(store_->RegisterRank(Info("b"), metrics), IsOk());
  info.set_emulated_storage("e5m2");
  ASSERT_THAT(store_->UpdateRank(info), IsOk());
  Reopen();
  const auto runs = store_->ListRuns();
  ASSERT_THAT(runs, IsOk());
  ASSERT_THAT(*runs, SizeIs(2));
  EXPECT_EQ((*runs)[0].run, "a");
  EXPECT_EQ((*runs)[0].id, 1);
  EXPECT_EQ((*runs)[1].id, 2);
  EXPECT_GT((*runs)[0].first_seen_unix_nanos, 0);
  ASSERT_THAT((*runs)[0].metrics, SizeIs(metrics.size()));
  EXPECT_EQ((*runs)[0].metrics[2].SerializeAsString(), metrics[2].SerializeAsString());
  ASSERT_THAT((*runs)[0].ranks, SizeIs(1));
  EXPECT_EQ((*runs)[0].ranks[0].emulated_storage(), "e5m2");
  // Ids go on where they were.
  ASSERT_THAT(store_->RegisterRank(Info("c"), metrics), IsOk());
  EXPECT_EQ(store_->GetRun("c")->id, 3);
}

TEST_F(StoreTest, NamesAreDataAndNeverPaths) {
  for (const std::string name : {"../../etc/passwd", "a/b", "it's \"quoted\"", "größe 🚢", "%00", "C:\\x", "E", " "}) {
    ASSERT_THAT(store_->RegisterRank(Info(name), TestMetrics()), IsOk()) << name;
  }
  ASSERT_THAT(store_->RegisterRank(Info(std::string(255, 'x')), TestMetrics()), IsOk());
  Reopen();
  EXPECT_THAT(*store_->ListRuns(), SizeIs(9));
  EXPECT_THAT(store_->GetRun("größe 🚢"), IsOk());
}

TEST_F(StoreTest, BadNamesAreRefusedAndLeaveNoTrace) {
  const auto refused = [&](const std::string& name, const std::string& why) {
    EXPECT_THAT(store_->RegisterRank(Info(name), TestMetrics()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused("", "empty");
  refused(std::string(256, 'x'), "256 bytes");
  refused(std::string(10240, 'x'), "limit is 255");
  refused("two\nlines", "control character at byte 3");
  refused(std::string("nul\0", 4), "control character");
  refused("\xC2\x85", "control character");  // U+0085
  refused("\xFF", "not UTF-8");
  refused("\xC0\xAF", "not UTF-8");      // overlong slash
  refused("\xED\xA0\x80", "not UTF-8");  // surrogate
  refused("cut \xE2\x82", "not UTF-8");
  EXPECT_THAT(*store_->ListRuns(), SizeIs(0));
}

TEST_F(StoreTest, AnUnknownRunNamesTheKnownOnes) {
  EXPECT_THAT(store_->GetRun("x"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none has reported")));
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) {
    ASSERT_THAT(store_->RegisterRank(Info(name), TestMetrics()), IsOk());
  }
  EXPECT_THAT(store_->GetRun("x"),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("\"e\""), HasSubstr("and 2 more"))));
}

TEST_F(StoreTest, AMetricIdMeansOneThingInARun) {
  ASSERT_THAT(store_->RegisterRank(Info("run", 0, 2), TestMetrics()), IsOk());
  auto other = TestMetrics();
  other[0].set_name("perplexity");
  EXPECT_THAT(store_->RegisterRank(Info("run", 1, 2), other),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one agent version a run")));
  EXPECT_THAT(store_->GetRun("run")->ranks, SizeIs(1));
  // Another run may use the id as it likes, and a run may gain metrics.
  EXPECT_THAT(store_->RegisterRank(Info("other"), other), IsOk());
  auto more = TestMetrics();
  more.push_back(Metric(99, "new_metric", v1::DTYPE_FLOAT32, 0, v1::AGGREGATION_MAX));
  EXPECT_THAT(store_->RegisterRank(Info("run", 1, 2), more), IsOk());
  EXPECT_THAT(store_->GetRun("run")->metrics, SizeIs(more.size()));
}

TEST_F(StoreTest, ManyRanksRegisterWithOneSync) {
  std::vector<v1::RankInfo> infos;
  for (uint32_t rank = 0; rank < 500; ++rank) infos.push_back(Info("big", rank, 500));
  infos.push_back(Info("bad\n"));
  const auto metrics = TestMetrics();
  std::vector<RankRegistration> ranks;
  for (const auto& info : infos) ranks.push_back({&info, metrics});
  const uint64_t before = store_->statistics().synced_batches;
  const auto answers = store_->RegisterRanks(ranks);
  ASSERT_THAT(answers, SizeIs(501));
  for (size_t i = 0; i < 500; ++i) EXPECT_THAT(answers[i], IsOk());
  EXPECT_THAT(answers[500], StatusIs(absl::StatusCode::kInvalidArgument, _));
  EXPECT_EQ(store_->statistics().synced_batches, before + 1);
  EXPECT_THAT(store_->GetRun("big")->ranks, SizeIs(500));
}

TEST_F(StoreTest, UpdatesOfAnOlderIncarnationAreIgnored) {
  ASSERT_THAT(store_->RegisterRank(Info("run", 0, 1, 1), TestMetrics()), IsOk());
  ASSERT_THAT(store_->RegisterRank(Info("run", 0, 1, 2), TestMetrics()), IsOk());
  v1::RankInfo old = Info("run", 0, 1, 1);
  old.set_host("old");
  EXPECT_THAT(store_->UpdateRank(old), IsOk());
  EXPECT_EQ(store_->GetRun("run")->ranks[0].incarnation(), 2);
  EXPECT_THAT(store_->UpdateRank(Info("unknown")), StatusIs(absl::StatusCode::kNotFound, _));
}

TEST_F(StoreTest, StateOfOtherRooms) {
  EXPECT_THAT(store_->GetState("plan/1"), StatusIs(absl::StatusCode::kNotFound, _));
  ASSERT_THAT(store_->PutState("plan/2", "two"), IsOk());
  ASSERT_THAT(store_->PutState("plan/1", std::string("o\0ne", 4)), IsOk());
  ASSERT_THAT(store_->PutState("policy", "p"), IsOk());
  ASSERT_THAT(store_->PutState("plan/1", "one"), IsOk());
  Reopen();
  EXPECT_EQ(*store_->GetState("plan/1"), "one");
  EXPECT_THAT(*store_->ListState("plan/"), ElementsAre(std::pair("plan/1", "one"), std::pair("plan/2", "two")));
  EXPECT_THAT(store_->PutState(std::string(256, 'k'), ""), IsOk());
  EXPECT_THAT(store_->PutState(std::string(257, 'k'), ""), StatusIs(absl::StatusCode::kInvalidArgument, _));
}

}  // namespace
}  // namespace trimtab::server
