// The two-phase switch with ranks that keep the protocol: what is refused before any rank is asked, and what follows.
#include "server/control/controller.h"

#include <thread>

#include "tests/unit/server/control/control_fixture.h"

namespace trimtab::server {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Habit = FakeJob::Habit;
constexpr auto kStabilized = v1::KERNEL_MODE_STABILIZED;
constexpr auto kObserve = v1::KERNEL_MODE_OBSERVE;

class ControllerTest : public ControlFixture {};

TEST_F(ControllerTest, AllRanksSwitchAtOneStep) {
  FakeJob job(kRun, 4, 3, true);
  Start(&job);
  job.Step(100);
  const auto plan = Switch({2, 0, 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->state(), v1::PLAN_STATE_PREPARING);
  EXPECT_THAT(plan->layers(), ElementsAre(0, 2));
  EXPECT_THAT(plan->ranks(), SizeIs(4));
  job.Step();
  const v1::Plan committed = PlanNow(plan->id());
  EXPECT_EQ(committed.state(), v1::PLAN_STATE_COMMITTING);
  // 10 steps/s: 2 s are 20 steps.
  EXPECT_GE(committed.effective_step(), 101u + 20u);
  EXPECT_LE(committed.effective_step(), 101u + 22u);
  job.Step(30);
  const v1::Plan applied = PlanNow(plan->id());
  EXPECT_EQ(applied.state(), v1::PLAN_STATE_APPLIED) << applied.outcome();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(job.switched_at(rank), applied.effective_step());
    EXPECT_THAT(job.modes(rank), ElementsAre(kStabilized, kObserve, kStabilized));
    EXPECT_EQ(applied.ranks(rank).state(), "applied");
    EXPECT_EQ(applied.ranks(rank).step(), applied.effective_step());
  }
  EXPECT_THAT(store_.Kinds(std::to_string(plan->id())),
              ElementsAre("switch_planned", "switch_prepared", "switch_committed", "switch_applied"));
  EXPECT_EQ(store_.Events("switch_applied")[0].step(), applied.effective_step());
  EXPECT_THAT(LastMessage("switch_planned"), HasSubstr("layers 0, 2 to stabilized"));
  EXPECT_THAT(LastMessage("switch_planned"), HasSubstr("asked by alice: try it"));
  EXPECT_EQ(controller_->statistics().applied, 1u);
  EXPECT_EQ(controller_->statistics().acks_unknown, 0u);
}

TEST_F(ControllerTest, LeadFollowsTheStepRate) {
  FakeJob job(kRun, 1, 2, true);
  Start(&job, {.lead_seconds_min = 100});
  job.Step(100);
  ASSERT_TRUE(Switch().ok());
  job.Step();
  EXPECT_NEAR(static_cast<double>(PlanNow(1).effective_step()), 101 + 1000, 10);
}

TEST_F(ControllerTest, LeadOfTheRequestCounts) {
  FakeJob job(kRun, 1, 2, true);
  Start(&job);
  job.Step(100);
  v1::SwitchRequest r;
  r.set_run(kRun);
  r.set_mode(kStabilized);
  r.set_lead_steps(5);
  ASSERT_TRUE(controller_->Switch(r).ok());
  job.Step();
  EXPECT_EQ(PlanNow(1).effective_step(), 101u + 5u);
  job.Step(10);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_APPLIED);
  r.set_mode(kObserve);
  r.set_lead_steps(100'000'000);
  EXPECT_EQ(controller_->Switch(r).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ControllerTest, RefusalsSayWhatStandsAgainstItAndWhatToDo) {
  FakeJob job(kRun, 2, 3, false);
  Start(&job);
  job.Step(10);
  const auto no_act = Switch();
  EXPECT_EQ(no_act.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(no_act.status().message(), HasSubstr("start the job with `trimtab run --act` or attach(act=True)"));
  EXPECT_THAT(LastMessage("switch_refused"), HasSubstr("trimtab run --act"));
  EXPECT_EQ(store_.Events("switch_refused").back().step(), 10u);
  EXPECT_EQ(Switch().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(store_.Events("switch_refused"), SizeIs(1));  // the same refusal within seconds is one event
  v1::SwitchRequest unknown;
  unknown.set_run("other");
  unknown.set_mode(kStabilized);
  EXPECT_EQ(controller_->Switch(unknown).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(controller_->Switch(unknown).status().message(), HasSubstr("runs: \"run/1\"."));
  EXPECT_EQ(Switch({3}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Switch({0, 3}).status().message(), HasSubstr("There is no layer 3: the run has layers 0 to 2."));
  EXPECT_EQ(Switch({}, v1::KERNEL_MODE_UNSPECIFIED).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Switch({}, static_cast<v1::KernelMode>(77)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(job.sent(), 0u);
}

TEST_F(ControllerTest, MissingRanksAreRefused) {
  FakeJob job(kRun, 3, 2, true);
  Start(&job);
  job.Step(5);
  job.Leave(1, LeaveReason::kDisconnected);
  EXPECT_THAT(Switch().status().message(), HasSubstr("rank 1 of 3 of run \"run/1\" is not connected"));
  job.Leave(0, LeaveReason::kDied);
  EXPECT_THAT(Switch().status().message(), HasSubstr("ranks 0, 1 of 3"));
  job.Leave(2, LeaveReason::kDied);
  EXPECT_THAT(Switch().status().message(), HasSubstr("No rank of run \"run/1\" is connected"));
  EXPECT_EQ(job.sent(), 0u);
}

TEST_F(ControllerTest, ModeInForceIsRefused) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.Step(5);
  EXPECT_THAT(Switch({}, kObserve).status().message(), HasSubstr("all layers already run observe on every rank"));
  ASSERT_TRUE(Switch({1}).ok());
  job.Step(40);
  EXPECT_THAT(Switch({1}).status().message(), HasSubstr("layer 1 already runs stabilized"));
  EXPECT_TRUE(Switch().ok());  // layer 0 does not yet
}

TEST_F(ControllerTest, OnePlanInFlight) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.Step(5);
  const auto first = Switch({0});
  ASSERT_TRUE(first.ok());
  const auto second = Switch({1});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr(absl::StrCat("Plan ", first->id(), " (layer 0 to stabilized)")));
  job.Step(40);
  EXPECT_EQ(PlanNow(first->id()).state(), v1::PLAN_STATE_APPLIED);
  EXPECT_TRUE(Switch({1}).ok());
}

TEST_F(ControllerTest, RollbackGoesBackPlanByPlan) {
  FakeJob job(kRun, 2, 3, true);
  Start(&job);
  job.Step(5);
  EXPECT_THAT(Rollback().status().message(), HasSubstr("nothing to roll back"));
  ASSERT_TRUE(Switch({0}).ok());
  job.Step(40);
  ASSERT_TRUE(Switch({1}, v1::KERNEL_MODE_PAPER).ok());
  job.Step(40);
  EXPECT_THAT(job.modes(0), ElementsAre(kStabilized, v1::KERNEL_MODE_PAPER, kObserve));
  const auto first = Rollback();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->rollback());
  job.Step(40);
  EXPECT_EQ(PlanNow(first->id()).state(), v1::PLAN_STATE_APPLIED);
  EXPECT_THAT(job.modes(1), ElementsAre(kStabilized, kObserve, kObserve));
  EXPECT_THAT(store_.Kinds(std::to_string(first->id())),
              ElementsAre("rollback_planned", "switch_prepared", "switch_committed", "switch_applied"));
  ASSERT_TRUE(Rollback().ok());
  job.Step(40);
  EXPECT_THAT(job.modes(0), Each(kObserve));
  EXPECT_THAT(Rollback().status().message(), HasSubstr("nothing to roll back"));
}

// Layers that ran different modes before go back to each its own.
TEST_F(ControllerTest, RollbackToSeveralModes) {
  FakeJob job(kRun, 2, 4, true);
  Start(&job);
  job.Step(5);
  ASSERT_TRUE(Switch({1}, v1::KERNEL_MODE_PAPER).ok());
  job.Step(40);
  ASSERT_TRUE(Switch({2}, v1::KERNEL_MODE_NATIVE).ok());
  job.Step(40);
  ASSERT_TRUE(Switch().ok());
  job.Step(40);
  EXPECT_THAT(job.modes(0), Each(kStabilized));
  ASSERT_TRUE(Rollback().ok());
  job.Step(200);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(job.modes(rank), ElementsAre(kObserve, v1::KERNEL_MODE_PAPER, v1::KERNEL_MODE_NATIVE, kObserve));
  }
  EXPECT_THAT(store_.Events("rollback_planned"), SizeIs(3));
}

TEST_F(ControllerTest, RollbackOfAJobThatStartedAnewHasNothingToDo) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.Step(5);
  ASSERT_TRUE(Switch().ok());
  job.Step(40);
  for (const uint32_t rank : {0, 1}) {
    job.Leave(rank, LeaveReason::kDied);
    job.Replace(rank);
  }
  job.Step(5);
  EXPECT_THAT(Rollback().status().message(), HasSubstr("nothing to roll back"));
}

TEST_F(ControllerTest, ProposalWaitsForAPerson) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.Step(5);
  Actuator::Request ask{.run = kRun,
                        .layers = {1},
                        .reason = "logit_runaway",
                        .actor = "policy",
                        .evidence_json = "{\"x\":1}",
                        .needs_approval = true};
  const auto proposal = controller_->Submit(ask);
  ASSERT_TRUE(proposal.ok()) << proposal.status();
  EXPECT_EQ(proposal->state(), v1::PLAN_STATE_PROPOSED);
  EXPECT_EQ(controller_->Submit(ask)->id(), proposal->id());  // it is not proposed twice
  EXPECT_EQ(store_.Events("proposal").size(), 1u);
  EXPECT_EQ(store_.Events("proposal")[0].evidence_json(), "{\"x\":1}");
  job.Step(40);
  EXPECT_THAT(job.modes(0), Each(kObserve));
  v1::ApproveRequest approve;
  approve.set_run(kRun);
  approve.set_actor("bob");
  const auto plan = controller_->Approve(approve);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->id(), proposal->id());
  job.Step(40);
  EXPECT_THAT(job.modes(1), ElementsAre(kObserve, kStabilized));
  EXPECT_THAT(
      store_.Kinds(std::to_string(plan->id())),
      ElementsAre("proposal", "approved", "switch_planned", "switch_prepared", "switch_committed", "switch_applied"));
  EXPECT_EQ(store_.Events("approved")[0].actor(), "bob");
  EXPECT_EQ(controller_->Approve(approve).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ControllerTest, SeveralProposalsNeedAName) {
  FakeJob job(kRun, 1, 20, true);
  Start(&job, {.open_proposals_per_run = 3});
  job.Step(5);
  Actuator::Request ask{.run = kRun, .layers = {0}, .actor = "policy", .needs_approval = true};
  ASSERT_TRUE(controller_->Submit(ask).ok());
  ask.layers = {1};
  ASSERT_TRUE(controller_->Submit(ask).ok());
  v1::ApproveRequest r;
  r.set_run(kRun);
  EXPECT_THAT(controller_->Approve(r).status().message(), HasSubstr("1, 2; name one with --plan"));
  r.set_plan(1);
  r.set_reject(true);
  ASSERT_EQ(controller_->Approve(r)->state(), v1::PLAN_STATE_REJECTED);
  EXPECT_EQ(controller_->Approve(r).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(store_.Events("rejected"), SizeIs(1));
  for (const uint32_t layer : {2, 3}) {
    ask.layers = {layer};
    ASSERT_TRUE(controller_->Submit(ask).ok());
  }
  ask.layers = {4};
  EXPECT_EQ(controller_->Submit(ask).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(controller_->statistics().open_proposals, 3u);
  job.Leave(0, LeaveReason::kDied);
  v1::ApproveRequest second;
  second.set_run(kRun);
  second.set_plan(2);
  EXPECT_EQ(controller_->Approve(second).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(PlanNow(2).state(), v1::PLAN_STATE_PROPOSED);  // stays open
}

TEST_F(ControllerTest, PolicyRollsBackThroughSubmit) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.Step(5);
  ASSERT_TRUE(controller_->Submit({.run = kRun, .actor = "policy"}).ok());
  job.Step(40);
  EXPECT_THAT(job.modes(0), Each(kStabilized));
  ASSERT_TRUE(controller_->Submit({.run = kRun, .reason = "worse", .actor = "policy", .rollback = true}).ok());
  job.Step(40);
  EXPECT_THAT(job.modes(0), Each(kObserve));
}

TEST_F(ControllerTest, OnlySoManyPlansAreKept) {
  FakeJob job(kRun, 1, 2, true);
  Start(&job, {.plans_kept_per_run = 4});
  job.Step(5);
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(Switch({}, i % 2 == 0 ? kStabilized : v1::KERNEL_MODE_PAPER).ok()) << i;
    job.Step(40);
  }
  EXPECT_THAT(*controller_->ListPlans(kRun), SizeIs(4));
  EXPECT_EQ(controller_->ListPlans(kRun)->back().id(), 12u);
  EXPECT_THAT(*store_->ListState("control/plan/"), SizeIs(4));
  RestartServer();
  EXPECT_EQ(controller_->ListPlans(kRun)->back().id(), 12u);
  ASSERT_TRUE(Rollback().ok());
  EXPECT_EQ(controller_->ListPlans(kRun)->back().id(), 13u);
}

TEST_F(ControllerTest, WaitDecided) {
  FakeJob job(kRun, 1, 2, true);
  Start(&job);
  job.Step(5);
  const auto plan = Switch();
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(controller_->WaitDecided(plan->id(), absl::Milliseconds(1)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(controller_->WaitDecided(999, absl::Milliseconds(1)).status().code(), absl::StatusCode::kNotFound);
  std::thread steps([&] { job.Step(); });
  const auto decided = controller_->WaitDecided(plan->id(), absl::Seconds(60));
  steps.join();
  ASSERT_TRUE(decided.ok()) << decided.status();
  EXPECT_EQ(decided->state(), v1::PLAN_STATE_COMMITTING);
  ASSERT_TRUE(controller_->Submit({.run = kRun, .mode = v1::KERNEL_MODE_PAPER, .needs_approval = true}).ok());
  std::thread stop([&] { controller_->Shutdown(); });
  EXPECT_EQ(controller_->WaitDecided(plan->id() + 1, absl::Seconds(60)).status().code(),
            absl::StatusCode::kUnavailable);
  stop.join();
  EXPECT_EQ(Switch().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ControllerTest, ManyThreadsAtOnce) {
  FakeJob job(kRun, 4, 4, true);
  Start(&job);
  job.Step(5);
  std::atomic<bool> stop{false};
  std::atomic<int> planned{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 30; ++n) {
        if (Switch({i}, n % 2 == 0 ? kStabilized : v1::KERNEL_MODE_PAPER).ok()) ++planned;
        if (n % 7 == 0) (void)Rollback();
        (void)controller_->ListPlans(kRun);
        (void)controller_->statistics();
      }
    });
  }
  threads.emplace_back([&] {
    for (int n = 0; n < 50; ++n) controller_->Tick();
  });
  std::thread steps([&] {
    while (!stop) job.Step();
  });
  for (std::thread& t : threads) t.join();
  stop = true;
  steps.join();
  job.Step(200);
  EXPECT_GE(planned, 1);
  const auto plans = controller_->ListPlans(kRun);
  ASSERT_TRUE(plans.ok());
  for (const v1::Plan& p : *plans) {
    EXPECT_TRUE(p.state() == v1::PLAN_STATE_APPLIED || p.state() == v1::PLAN_STATE_REFUSED) << p.DebugString();
  }
  for (uint32_t rank = 1; rank < 4; ++rank) EXPECT_EQ(job.modes(rank), job.modes(0));
}

}  // namespace
}  // namespace trimtab::server
