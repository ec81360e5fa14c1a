#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/store.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"

namespace trimtab::server {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RowsTest : public testing::Test {
 protected:
  void SetUp() override {
    Reopen();
    ASSERT_THAT(store_->RegisterRank(Info("run"), TestMetrics()), IsOk());
  }
  void Reopen() {
    store_.reset();
    auto opened = Store::Open({.path = folder_.path(), .memtable_bytes = 1 << 20});
    ASSERT_THAT(opened, IsOk());
    store_ = *std::move(opened);
  }
  absl::Status AppendTo(const RankKey& rank, const std::vector<v1::Step>& steps) {
    RankSteps batch{rank, {}};
    for (const v1::Step& step : steps) batch.steps.push_back(&step);
    return store_->AppendSteps({&batch, 1});
  }
  absl::Status Append(const std::vector<v1::Step>& steps) { return AppendTo({"run", 0, 1}, steps); }
  std::vector<uint64_t> Steps(uint64_t from, uint64_t to, const std::string& metric = "loss", uint32_t rank = 0) {
    std::vector<uint64_t> steps;
    EXPECT_THAT(store_->ReadRows("run", metric, rank, from, to,
                                 [&](const Store::Row& row) {
                                   steps.push_back(row.step);
                                   return true;
                                 }),
                IsOk());
    EXPECT_EQ(*store_->CountRows("run", metric, rank, from, to), steps.size());
    return steps;
  }

  TempDir folder_;
  std::unique_ptr<Store> store_;
};

TEST_F(RowsTest, ReadsTheRangeInOrderAfterReopening) {
  ASSERT_THAT(Append({LossStep(1, 300, 3), LossStep(2, 1, 1), LossStep(3, 256, 2)}), IsOk());
  Reopen();
  EXPECT_THAT(Steps(0, 0), ElementsAre(1, 256, 300));
  EXPECT_THAT(Steps(256, 300), ElementsAre(256, 300)) << "both ends are inclusive";
  EXPECT_THAT(Steps(257, 299), IsEmpty());
  EXPECT_THAT(Steps(0, UINT64_MAX), ElementsAre(1, 256, 300));
  EXPECT_THAT(Steps(0, 0, "grad_norm"), IsEmpty());
  EXPECT_THAT(Steps(0, 0, "loss", 7), IsEmpty()) << "a rank without rows is not an error";
}

TEST_F(RowsTest, RowsCarryTheirBlockTimeAndIncarnation) {
  v1::Step step = LossStep(1, 5, 1);
  *step.add_blocks() = Floats(kMaxLogit, {2, 2}, {1, 2, 3, 4});
  *step.add_blocks() = Counts(kMode, {2}, {2, 3});
  ASSERT_THAT(Append({step}), IsOk());
  int visits = 0;
  ASSERT_THAT(store_->ReadRows("run", "max_attention_logit", 0, 0, 0,
                               [&](const Store::Row& row) {
                                 ++visits;
                                 EXPECT_EQ(row.incarnation, 1);
                                 EXPECT_EQ(row.time_unix_nanos, step.time_unix_nanos());
                                 EXPECT_EQ(row.block.SerializeAsString(), step.blocks(1).SerializeAsString());
                                 return true;
                               }),
              IsOk());
  EXPECT_EQ(visits, 1);
  EXPECT_EQ(store_->statistics().rows, 3);
  EXPECT_EQ(store_->statistics().values, 7);
}

TEST_F(RowsTest, IncarnationsFollowEachOtherAsTheyJoined) {
  ASSERT_THAT(store_->RegisterRank(Info("run", 0, 1, 9), TestMetrics()), IsOk());
  ASSERT_THAT(store_->RegisterRank(Info("run", 0, 1, 4), TestMetrics()), IsOk());
  ASSERT_THAT(AppendTo({"run", 0, 4}, {LossStep(1, 2, 1)}), IsOk());
  ASSERT_THAT(AppendTo({"run", 0, 1}, {LossStep(1, 2, 1), LossStep(2, 3, 1)}), IsOk());
  ASSERT_THAT(AppendTo({"run", 0, 9}, {LossStep(1, 1, 1)}), IsOk());
  Reopen();
  std::vector<std::pair<uint64_t, uint64_t>> rows;
  ASSERT_THAT(store_->ReadRows("run", "loss", 0, 2, 0,
                               [&](const Store::Row& row) {
                                 rows.emplace_back(row.incarnation, row.step);
                                 return true;
                               }),
              IsOk());
  EXPECT_THAT(rows, ElementsAre(std::pair(1, 2), std::pair(1, 3), std::pair(4, 2)));
  EXPECT_EQ((*store_->LastRow("run", "loss", 0))->incarnation, 4);
}

TEST_F(RowsTest, LastRowLooksBackOverEmptyIncarnations) {
  EXPECT_FALSE(store_->LastRow("run", "loss", 0)->has_value());
  ASSERT_THAT(Append({LossStep(1, 5, 1), LossStep(2, 6, 2)}), IsOk());
  ASSERT_THAT(store_->RegisterRank(Info("run", 0, 1, 2), TestMetrics()), IsOk());
  const auto row = store_->LastRow("run", "loss", 0);
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ((*row)->step, 6);
  EXPECT_EQ((*row)->incarnation, 1);
  EXPECT_FALSE(store_->LastRow("run", "grad_norm", 0)->has_value()) << "rows of other metrics do not count";
  EXPECT_FALSE(store_->LastRow("run", "loss", 1)->has_value());
}

TEST_F(RowsTest, DurableSequencesComeBackAtRegistration) {
  ASSERT_THAT(Append({LossStep(1, 1, 1), LossStep(7, 2, 1)}), IsOk());
  EXPECT_EQ(*store_->RegisterRank(Info("run"), TestMetrics()), 7);
  Reopen();
  EXPECT_EQ(*store_->RegisterRank(Info("run"), TestMetrics()), 7);
  EXPECT_EQ(*store_->RegisterRank(Info("run", 0, 1, 2), TestMetrics()), 0);
}

TEST_F(RowsTest, SequencesMustFollow) {
  ASSERT_THAT(Append({LossStep(2, 1, 1)}), IsOk());
  EXPECT_THAT(Append({LossStep(2, 1, 9)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not follow 2")));
  EXPECT_THAT(Append({LossStep(3, 2, 1), LossStep(3, 3, 1)}), StatusIs(absl::StatusCode::kInvalidArgument, _));
  EXPECT_THAT(Steps(0, 0), ElementsAre(1)) << "a refused batch leaves nothing";
}

TEST_F(RowsTest, ABatchIsAllOrNothing) {
  ASSERT_THAT(store_->RegisterRank(Info("run", 1, 2), TestMetrics()), IsOk());
  const v1::Step good = LossStep(1, 1, 1);
  v1::Step bad = LossStep(1, 1, 1);
  bad.mutable_blocks(0)->set_metric(1000);
  const std::vector<RankSteps> batch = {{{"run", 0, 1}, {&good}}, {{"run", 1, 1}, {&bad}}};
  EXPECT_THAT(store_->AppendSteps(batch), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not registered")));
  EXPECT_THAT(Steps(0, 0), IsEmpty());
  EXPECT_THAT(AppendTo({"run", 0, 99}, {good}), StatusIs(absl::StatusCode::kFailedPrecondition, _));
  EXPECT_THAT(AppendTo({"nobody", 0, 1}, {good}), StatusIs(absl::StatusCode::kNotFound, _));
}

TEST_F(RowsTest, UnknownNamesSayWhatThereIs) {
  const auto visit = [](const Store::Row&) { return true; };
  EXPECT_THAT(store_->ReadRows("nun", "loss", 0, 0, 0, visit),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("known: \"run\"")));
  EXPECT_THAT(
      store_->ReadRows("run", "lost", 0, 0, 0, visit),
      StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("no metric \"lost\""), HasSubstr("loss, grad_norm"))));
}

TEST_F(RowsTest, VisitMayStop) {
  ASSERT_THAT(Append({LossStep(1, 1, 1), LossStep(2, 2, 1), LossStep(3, 3, 1)}), IsOk());
  int visits = 0;
  ASSERT_THAT(store_->ReadRows("run", "loss", 0, 0, 0, [&](const Store::Row&) { return ++visits < 2; }), IsOk());
  EXPECT_EQ(visits, 2);
}

TEST_F(RowsTest, SurvivesFlushesAndCompaction) {
  // Enough for several memtables.
  constexpr uint64_t kSteps = 2000;
  for (uint64_t s = 1; s <= kSteps; s += 50) {
    std::vector<v1::Step> steps;
    for (uint64_t i = s; i < s + 50; ++i) {
      v1::Step step = LossStep(i, i, static_cast<float>(i));
      std::vector<float> values(1024);
      for (size_t v = 0; v < values.size(); ++v) values[v] = static_cast<float>(i * 7919 + v * 104729 % 9973);
      *step.add_blocks() = Floats(kMaxLogit, {32, 32}, values);
      steps.push_back(std::move(step));
    }
    ASSERT_THAT(Append(steps), IsOk());
  }
  ASSERT_THAT(store_->Compact(), IsOk());
  Reopen();
  ASSERT_THAT(store_->Compact(), IsOk());
  const auto steps = Steps(0, 0, "max_attention_logit");
  ASSERT_EQ(steps.size(), kSteps);
  EXPECT_EQ(steps.back(), kSteps);
  EXPECT_GT(store_->statistics().bytes_on_disk, 0);
}

}  // namespace
}  // namespace trimtab::server
