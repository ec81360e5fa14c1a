#include "server/registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/time/clock.h"
#include "server/store/store.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"

namespace trimtab::server {
namespace {

using ::testing::_;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

class RegistryTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = Store::Open({.path = folder_.path()});
    ASSERT_THAT(opened, IsOk());
    store_ = *std::move(opened);
    registry_ = Registry::Create(options_, store_.get());
  }
  void Join(uint32_t rank, uint32_t world = 1, uint64_t incarnation = 1) {
    registry_->OnRankJoined({"run", rank, incarnation}, Info("run", rank, world, incarnation), TestMetrics());
  }
  void Step(uint32_t rank, const v1::Step& step, uint64_t incarnation = 1) {
    const v1::Step* const one = &step;
    registry_->OnSteps({"run", rank, incarnation}, {&one, 1});
  }
  void Leave(uint32_t rank, LeaveReason reason, uint64_t incarnation = 1) {
    registry_->OnRankLeft({"run", rank, incarnation}, reason, "");
  }
  std::vector<std::string> Kinds() {
    std::vector<std::string> kinds;
    const auto events = store_->ReadEvents("run", 0, 10000, false);
    EXPECT_THAT(events, IsOk());
    for (const v1::Event& event : *events) kinds.push_back(event.kind());
    return kinds;
  }
  v1::RunSummary Summary() { return registry_->Summaries().at(0); }
  int64_t Later(double seconds) { return absl::GetCurrentTimeNanos() + static_cast<int64_t>(seconds * kSecond); }

  TempDir folder_;
  RegistryOptions options_{.max_runs = 3, .max_ranks_per_run = 300};
  std::unique_ptr<Store> store_;
  std::unique_ptr<Registry> registry_;
};

TEST_F(RegistryTest, ARunFromStartToFinish) {
  Join(0);
  EXPECT_EQ(Summary().status(), "running");
  EXPECT_TRUE(std::isnan(Summary().loss()));
  Step(0, LossStep(1, 10, 2.5F));
  Step(0, LossStep(2, 11, 2.25F));
  EXPECT_EQ(Summary().last_step(), 11);
  EXPECT_EQ(Summary().loss(), 2.25F);
  EXPECT_EQ(Summary().ranks_connected(), 1);
  EXPECT_DOUBLE_EQ(registry_->State("run")->steps_per_second(), 10);
  Leave(0, LeaveReason::kFinished);
  EXPECT_EQ(Summary().status(), "finished");
  EXPECT_THAT(Kinds(), ElementsAre("run_started", "rank_joined", "rank_left", "run_finished"));
}

TEST_F(RegistryTest, StateHoldsEveryMetricsLatestFoldedValue) {
  Join(0, 2);
  Join(1, 2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::Step step = LossStep(1, 5, static_cast<float>(1 + rank));
    *step.add_blocks() = Floats(kMaxLogit, {2, 2}, {1, 2, 3, static_cast<float>(10 * rank)});
    *step.add_blocks() = Counts(kMode, {2}, {2, 3});
    Step(rank, step);
    Step(rank, LossStep(2, 6, 4));
  }
  const auto state = registry_->State("run");
  ASSERT_THAT(state, IsOk());
  ASSERT_EQ(state->latest_size(), 3);
  EXPECT_EQ(state->latest(0).float32(0), 4) << "loss of step 6";
  EXPECT_EQ(state->latest_steps(0), 6);
  EXPECT_THAT(state->latest(1).float32(), ElementsAre(1, 2, 3, 10)) << "logits keep their last sampled step";
  EXPECT_EQ(state->latest_steps(1), 5);
  EXPECT_THAT(state->modes(), ElementsAre(v1::KERNEL_MODE_OBSERVE, v1::KERNEL_MODE_STABILIZED));
  EXPECT_EQ(state->ranks_size(), 2);
  EXPECT_EQ(state->metrics_size(), static_cast<int>(TestMetrics().size()));
  EXPECT_EQ(Summary().layers(), 2);
  EXPECT_THAT(registry_->State("nun"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("known: \"run\"")));
}

TEST_F(RegistryTest, CountsWhatIsNotFinite) {
  Join(0);
  v1::Step step = LossStep(1, 1, NAN);
  *step.add_blocks() = Scalar(kGradNorm, INFINITY);
  *step.add_blocks() = Floats(kMaxLogit, {1, 2}, {NAN, 1});
  *step.add_blocks() = Counts(kAttentionNonfinite, {1, 2}, {3, 4});
  Step(0, step);
  Step(0, LossStep(2, 2, -INFINITY));
  Step(0, LossStep(3, 3, 1));
  const RunCounts counts = registry_->Counts("run");
  EXPECT_THAT(counts.nonfinite,
              ElementsAre(std::pair("attention", 7), std::pair("grad_norm", 1), std::pair("loss", 2)));
  EXPECT_EQ(counts.steps, 3);
  EXPECT_EQ(registry_->Counts("nun").steps, 0);
}

TEST_F(RegistryTest, ADiedRankIsLostAtOnceAndAnotherLifeStartsAgain) {
  Join(0);
  Step(0, LossStep(1, 100, 1));
  Leave(0, LeaveReason::kDied);
  EXPECT_EQ(Summary().status(), "lost");
  Join(0, 1, 2);
  EXPECT_EQ(Summary().status(), "running");
  Step(0, LossStep(1, 90, 3), 2);
  EXPECT_EQ(Summary().last_step(), 90);
  EXPECT_EQ(Summary().loss(), 3);
  EXPECT_THAT(Kinds(), ElementsAre("run_started", "rank_joined", "rank_lost", "run_started", "rank_joined"));
  // Late words about the first life change nothing.
  Leave(0, LeaveReason::kDisconnected, 1);
  Step(0, LossStep(2, 500, 9), 1);
  EXPECT_EQ(Summary().ranks_connected(), 1);
  EXPECT_EQ(Summary().last_step(), 90);
}

TEST_F(RegistryTest, AReconnectWithinTheGracePeriodIsNoNews) {
  Join(0);
  Leave(0, LeaveReason::kDisconnected);
  EXPECT_EQ(Summary().status(), "running");
  registry_->Tick(Later(1));
  Join(0);
  registry_->Tick(Later(100));
  EXPECT_THAT(Kinds(), ElementsAre("run_started", "rank_joined", "run_silent"));
}

TEST_F(RegistryTest, ADisconnectedRankIsLostAfterTheGracePeriod) {
  Join(0);
  Leave(0, LeaveReason::kDisconnected);
  registry_->Tick(Later(options_.reconnect_grace_seconds + 1));
  registry_->Tick(Later(options_.reconnect_grace_seconds + 2));
  EXPECT_EQ(Summary().status(), "lost");
  EXPECT_THAT(Kinds(), ElementsAre("run_started", "rank_joined", "rank_lost"));
  Join(0);
  EXPECT_EQ(Kinds().back(), "rank_joined") << "it was told lost, so its return is news";
}

TEST_F(RegistryTest, SilenceIsToldOnceUntilAStepArrives) {
  Join(0);
  Step(0, LossStep(1, 7, 1));
  registry_->Tick(Later(options_.silent_after_seconds - 1));
  EXPECT_EQ(Summary().status(), "running");
  registry_->Tick(Later(options_.silent_after_seconds + 1));
  registry_->Tick(Later(options_.silent_after_seconds + 2));
  EXPECT_EQ(Summary().status(), "silent");
  const auto events = store_->ReadEvents("run", 0, 100, false);
  EXPECT_EQ(events->back().kind(), "run_silent");
  EXPECT_EQ(events->back().step(), 7);
  EXPECT_EQ(events->size(), 3);
  Step(0, LossStep(2, 8, 1));
  EXPECT_EQ(Summary().status(), "running");
}

TEST_F(RegistryTest, LargeWorldsAreToldInGroups) {
  for (uint32_t rank = 0; rank < 200; ++rank) Join(rank, 200);
  registry_->Tick(Later(0));
  EXPECT_THAT(Kinds(), ElementsAre("run_started", "rank_joined", "rank_joined", "rank_joined", "rank_joined"));
  const auto events = store_->ReadEvents("run", 0, 100, false);
  EXPECT_THAT((*events)[1].message(), HasSubstr("64 of 200 ranks joined: 0 to 63"));
  EXPECT_THAT((*events)[4].message(), HasSubstr("8 of 200 ranks joined: 192 to 199"));
  for (uint32_t rank = 0; rank < 200; ++rank) Leave(rank, LeaveReason::kFinished);
  const auto kinds = Kinds();
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), "rank_left"), 4);
  EXPECT_EQ(kinds.back(), "run_finished");
}

TEST_F(RegistryTest, OneRankOfTwoFinishingIsNotTheEnd) {
  Join(0, 2);
  Join(1, 2);
  Leave(0, LeaveReason::kFinished);
  EXPECT_EQ(Summary().status(), "running");
  Leave(1, LeaveReason::kDied);
  registry_->Tick(Later(1000));
  EXPECT_EQ(Summary().status(), "lost");
  EXPECT_THAT(Kinds(), testing::Not(testing::Contains("run_finished")));
}

TEST_F(RegistryTest, AJobThatStartsAgainSmallerCanFinish) {
  Join(0, 2);
  Join(1, 2);
  Leave(0, LeaveReason::kDied);
  Leave(1, LeaveReason::kDied);
  Join(0, 1, 2);
  EXPECT_EQ(Summary().world_size(), 1);
  Leave(0, LeaveReason::kFinished, 2);
  EXPECT_EQ(Summary().status(), "finished");
  EXPECT_EQ(registry_->State("run")->ranks_size(), 1);
  EXPECT_EQ(registry_->Snapshot("run", false)->ranks_size(), 0);
}

TEST_F(RegistryTest, LimitsAreCounted) {
  for (const char* run : {"a", "b", "c", "d"}) {
    registry_->OnRankJoined({run, 0, 1}, Info(run), TestMetrics());
    const v1::Step step = LossStep(1, 1, 1);
    const v1::Step* const one = &step;
    registry_->OnSteps({run, 0, 1}, {&one, 1});
  }
  EXPECT_EQ(registry_->Summaries().size(), 3);
  EXPECT_EQ(registry_->refused(), 1);
  for (uint32_t rank = 0; rank < 302; ++rank) {
    registry_->OnRankJoined({"a", rank, 1}, Info("a", rank, 302), TestMetrics());
  }
  EXPECT_EQ(registry_->State("a")->ranks_size(), 300);
  EXPECT_EQ(registry_->refused(), 3);
}

TEST_F(RegistryTest, RestoresWhatTheStoreKnows) {
  const v1::Step step = LossStep(1, 42, 1.5F);
  for (const char* run : {"running", "finished"}) {
    ASSERT_THAT(store_->RegisterRank(Info(run), TestMetrics()), IsOk());
    const RankSteps steps{{run, 0, 1}, {&step}};
    ASSERT_THAT(store_->AppendSteps({&steps, 1}), IsOk());
    registry_->OnRankJoined({run, 0, 1}, Info(run), TestMetrics());
  }
  registry_->OnRankLeft({"finished", 0, 1}, LeaveReason::kFinished, "");
  const auto restored = Registry::Create({}, store_.get());
  ASSERT_THAT(restored->Restore(store_.get()), IsOk());
  const auto runs = restored->Summaries();
  ASSERT_EQ(runs.size(), 2);
  EXPECT_EQ(runs[0].status(), "finished");
  EXPECT_EQ(runs[1].status(), "silent");
  EXPECT_EQ(runs[1].last_step(), 42);
  EXPECT_EQ(runs[1].loss(), 1.5F);
  EXPECT_EQ(runs[1].ranks_connected(), 0);
  EXPECT_EQ(runs[1].last_seen_unix_nanos(), step.time_unix_nanos());
  const size_t events = store_->ReadEvents("", 0, 1000, false)->size();
  restored->Tick(Later(1000));
  EXPECT_EQ(store_->ReadEvents("", 0, 1000, false)->size(), events) << "a restart is no news about runs";
  restored->OnRankJoined({"running", 0, 1}, Info("running"), TestMetrics());
  EXPECT_EQ(restored->Summaries()[1].status(), "running");
}

}  // namespace
}  // namespace trimtab::server
