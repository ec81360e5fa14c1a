// The two-phase switch with ranks that refuse, are silent, are late, die or come back, and a server that restarts.
#include "tests/unit/server/control/control_fixture.h"

namespace trimtab::server {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Habit = FakeJob::Habit;
constexpr auto kStabilized = v1::KERNEL_MODE_STABILIZED;
constexpr auto kObserve = v1::KERNEL_MODE_OBSERVE;

class FaultyRanksTest : public ControlFixture {
 protected:
  void ExpectNobodySwitched(FakeJob* job, uint32_t ranks) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_THAT(job->modes(rank), Each(kObserve)) << rank;
      EXPECT_EQ(job->switched_at(rank), 0u);
    }
  }
};

TEST_F(FaultyRanksTest, OneRefusesNobodySwitches) {
  FakeJob job(kRun, 3, 2, true);
  Start(&job);
  job.set_habit(1, Habit::kRefuses);
  job.Step(5);
  ASSERT_TRUE(Switch().ok());
  job.Step(60);
  const v1::Plan plan = PlanNow(1);
  EXPECT_EQ(plan.state(), v1::PLAN_STATE_REFUSED);
  EXPECT_EQ(plan.outcome(), "Nobody switched: rank 1 refused: shadow comparison failed: 0.3 > 0.02.");
  EXPECT_EQ(plan.ranks(1).state(), "refused");
  ExpectNobodySwitched(&job, 3);
  EXPECT_THAT(store_.Kinds("1"), ElementsAre("switch_planned", "switch_refused"));
  EXPECT_THAT(job.seen(0), ElementsAre(v1::COMMAND_PHASE_PREPARE, v1::COMMAND_PHASE_ABORT));
  EXPECT_THAT(job.seen(1), ElementsAre(v1::COMMAND_PHASE_PREPARE));
  EXPECT_EQ(controller_->statistics().acks_unknown, 0u);  // answers that were under way are expected
  job.set_habit(1, Habit::kFollows);
  ASSERT_TRUE(Switch().ok());  // and the way is free again
  job.Step(60);
  EXPECT_EQ(PlanNow(2).state(), v1::PLAN_STATE_APPLIED);
}

TEST_F(FaultyRanksTest, OneSilentUntilTheDeadline) {
  FakeJob job(kRun, 3, 2, true);
  Start(&job, {.deadline_seconds = 30});
  job.set_habit(2, Habit::kSilent);
  job.Step(5);
  ASSERT_TRUE(Switch().ok());
  job.Step(10);
  Advance(29 * kSecond);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_PREPARING);
  Advance(2 * kSecond);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_REFUSED);
  EXPECT_THAT(PlanNow(1).outcome(), HasSubstr("rank 2 did not answer by the deadline"));
  EXPECT_EQ(PlanNow(1).ranks(2).state(), "silent");
  job.set_habit(2, Habit::kFollows);  // it wakes up: PREPARE and ABORT are both there
  job.Step(60);
  ExpectNobodySwitched(&job, 3);
}

TEST_F(FaultyRanksTest, DeadlineOfTheRequestCounts) {
  FakeJob job(kRun, 1, 2, true);
  Start(&job);
  job.set_habit(0, Habit::kSilent);
  job.Step(5);
  v1::SwitchRequest r;
  r.set_run(kRun);
  r.set_mode(kStabilized);
  r.set_deadline_seconds(2);
  ASSERT_TRUE(controller_->Switch(r).ok());
  Advance(3 * kSecond);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_REFUSED);
  r.set_deadline_seconds(1e9);
  EXPECT_EQ(controller_->Switch(r).status().code(), absl::StatusCode::kInvalidArgument);
  r.set_deadline_seconds(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(controller_->Switch(r).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FaultyRanksTest, OneLateAfterCommitTheOthersGoBack) {
  FakeJob job(kRun, 3, 2, true);
  Start(&job);
  job.set_habit(1, Habit::kDeafToCommit, 60);  // reads COMMIT 60 steps later, when its step is over
  job.Step(5);
  ASSERT_TRUE(Switch().ok());
  job.Step(50);
  EXPECT_THAT(job.modes(0), Each(kStabilized));
  EXPECT_THAT(job.modes(1), Each(kObserve));
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_COMMITTING);
  job.Step(30);
  const v1::Plan plan = PlanNow(1);
  EXPECT_EQ(plan.state(), v1::PLAN_STATE_ABORTED);
  EXPECT_THAT(plan.outcome(), HasSubstr("rank 1 refused: late"));
  EXPECT_THAT(plan.outcome(), HasSubstr("2 of 3 ranks had switched and are rolled back"));
  EXPECT_THAT(store_.Kinds("1"), Not(Contains("switch_applied")));
  job.Step(60);
  const v1::Plan rollback = PlanNow(2);
  EXPECT_TRUE(rollback.rollback());
  EXPECT_EQ(rollback.state(), v1::PLAN_STATE_APPLIED);
  ASSERT_THAT(rollback.ranks(), SizeIs(2));
  EXPECT_EQ(rollback.ranks(0).rank(), 0u);
  EXPECT_EQ(rollback.ranks(1).rank(), 2u);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_THAT(job.modes(rank), Each(kObserve)) << rank;
}

// Late before the others have switched: they are told in time, and nobody switches.
TEST_F(FaultyRanksTest, OneDropsOutBetweenCommitAndTheEffectiveStep) {
  FakeJob job(kRun, 3, 2, true);
  Start(&job);
  job.Step(5);
  ASSERT_TRUE(Switch().ok());
  job.Step(3);
  ASSERT_EQ(PlanNow(1).state(), v1::PLAN_STATE_COMMITTING);
  job.Leave(2, LeaveReason::kDied, "signal 9");
  job.Step(60);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_ABORTED);
  EXPECT_THAT(PlanNow(1).outcome(), HasSubstr("rank 2 died: signal 9; no rank had switched"));
  ExpectNobodySwitched(&job, 2);
  EXPECT_THAT(*controller_->ListPlans(kRun), SizeIs(1));
}

TEST_F(FaultyRanksTest, RankDiesBeforeCommit) {
  FakeJob job(kRun, 3, 2, true);
  Start(&job);
  job.set_habit(2, Habit::kSilent);
  job.Step(5);
  ASSERT_TRUE(Switch().ok());
  job.Step();
  job.Leave(2, LeaveReason::kDied, "signal 11");
  controller_->Drain();
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_REFUSED);
  EXPECT_THAT(PlanNow(1).outcome(), HasSubstr("rank 2 died: signal 11"));
  job.Step(60);
  ExpectNobodySwitched(&job, 2);
}

TEST_F(FaultyRanksTest, RankIsReplacedBeforeCommit) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.set_habit(1, Habit::kSilent);
  job.Step(5);
  ASSERT_TRUE(Switch().ok());
  job.Step();
  job.Replace(1);  // the new process says Hello before the old one's end was noticed
  job.Step(60);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_REFUSED);
  EXPECT_THAT(PlanNow(1).outcome(), HasSubstr("rank 1 came back as a new process"));
  ExpectNobodySwitched(&job, 2);
}

TEST_F(FaultyRanksTest, AShortDisconnectionIsForgiven) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.set_habit(1, Habit::kSilent);
  job.Step(5);
  ASSERT_TRUE(Switch().ok());
  job.Step();
  job.Leave(1, LeaveReason::kDisconnected);  // its inbox is lost with the stream
  controller_->Drain();
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_PREPARING);
  job.set_habit(1, Habit::kFollows);
  job.Join(1);  // PREPARE comes again
  job.Step(60);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_APPLIED) << PlanNow(1).outcome();
  EXPECT_EQ(job.switched_at(0), job.switched_at(1));
}

TEST_F(FaultyRanksTest, CommitReachesARankThatWasAway) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job, {.lead_seconds_min = 20});
  job.Step(50);
  job.set_habit(1, Habit::kDeafToCommit, 1000);
  ASSERT_TRUE(Switch().ok());
  job.Step(3);
  ASSERT_EQ(PlanNow(1).state(), v1::PLAN_STATE_COMMITTING);
  job.Leave(1, LeaveReason::kDisconnected);
  job.set_habit(1, Habit::kFollows);
  job.Step(10);
  job.Join(1);
  job.Step(300);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_APPLIED) << PlanNow(1).outcome();
  EXPECT_EQ(job.switched_at(0), job.switched_at(1));
}

TEST_F(FaultyRanksTest, SilentAfterCommitIsSeenInItsTelemetry) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.set_habit(1, Habit::kSilentAfterCommit);
  job.Step(50);
  ASSERT_TRUE(Switch().ok());
  job.Step(60);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_COMMITTING);
  Advance(40 * kSecond);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_APPLIED);
  EXPECT_EQ(PlanNow(1).ranks(1).reason(), "seen in its telemetry");
}

TEST_F(FaultyRanksTest, StuckAfterCommitIsUndone) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.set_habit(1, Habit::kStuckAfterCommit);
  job.Step(50);
  ASSERT_TRUE(Switch().ok());
  job.Step(60);
  EXPECT_THAT(job.modes(0), Each(kStabilized));
  Advance(40 * kSecond);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_ABORTED);
  EXPECT_THAT(PlanNow(1).outcome(), HasSubstr("rank 1 did not confirm the switch in time"));
  EXPECT_EQ(store_.Events("switch_refused").back().severity(), v1::SEVERITY_CRITICAL);
  job.Step(60);
  EXPECT_EQ(PlanNow(2).state(), v1::PLAN_STATE_APPLIED);
  EXPECT_THAT(job.modes(0), Each(kObserve));
  // It was only slow, and switches alone after all: somebody has to know.
  v1::CommandAck late;
  late.set_plan(1);
  late.set_state(v1::ACK_STATE_APPLIED);
  late.set_step(PlanNow(1).effective_step());
  for (int i = 0; i < 2; ++i) controller_->OnAck(job.Key(1), late);
  controller_->Drain();
  EXPECT_THAT(store_.Events("switch_refused"), SizeIs(2));
  EXPECT_EQ(store_.Events("switch_refused").back().severity(), v1::SEVERITY_CRITICAL);
  EXPECT_THAT(LastMessage("switch_refused"), HasSubstr("rank 1 switched at step"));
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_ABORTED);
}

// Case E04: step counters of the ranks differ. The plan is keyed on one number, ahead of the fastest.
TEST_F(FaultyRanksTest, RanksWhoseStepsDifferAgreeOnOneStep) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.set_step(1, 9);
  job.Step(50);
  ASSERT_TRUE(Switch().ok());
  job.Step(80);
  const v1::Plan plan = PlanNow(1);
  EXPECT_EQ(plan.state(), v1::PLAN_STATE_APPLIED);
  EXPECT_GE(plan.effective_step(), 58u + 20u);
  EXPECT_EQ(job.switched_at(0), plan.effective_step());
  EXPECT_EQ(job.switched_at(1), plan.effective_step());
}

TEST_F(FaultyRanksTest, AnApplyAtAnotherStepIsNoSwitchOfAll) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.Step(50);
  ASSERT_TRUE(Switch().ok());
  job.Step(3);
  v1::CommandAck wrong;
  wrong.set_plan(1);
  wrong.set_state(v1::ACK_STATE_APPLIED);
  wrong.set_step(PlanNow(1).effective_step() + 1);
  controller_->OnAck(job.Key(1), wrong);
  job.Step(60);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_ABORTED);
  EXPECT_THAT(PlanNow(1).outcome(), HasSubstr("rank 1 switched at step"));
}

TEST_F(FaultyRanksTest, StrayAcksChangeNothing) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.Step(5);
  v1::CommandAck ack;
  ack.set_plan(77);
  ack.set_state(v1::ACK_STATE_PREPARED);
  controller_->OnAck(job.Key(0), ack);
  ASSERT_TRUE(Switch().ok());
  ack.set_plan(1);
  controller_->OnAck({kRun, 0, 99}, ack);      // a process of the past
  controller_->OnAck({kRun, 9, 1}, ack);       // no rank of the run
  controller_->OnAck({"another", 0, 1}, ack);  // another run
  ack.set_state(v1::ACK_STATE_APPLIED);
  controller_->OnAck(job.Key(0), ack);  // a phase too early
  controller_->Drain();
  EXPECT_EQ(controller_->statistics().acks_unknown, 5u);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_PREPARING);
  job.Step(60);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_APPLIED);
}

TEST_F(FaultyRanksTest, ServerRestartsBeforeCommit) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.set_habit(1, Habit::kSilent);
  job.Step(5);
  ASSERT_TRUE(Switch().ok());
  job.Step();
  RestartServer(false);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_REFUSED);
  EXPECT_THAT(LastMessage("switch_refused"), HasSubstr("the server restarted before every rank was prepared"));
  job.set_habit(1, Habit::kFollows);
  Reconnect();
  EXPECT_THAT(job.seen(0), ElementsAre(v1::COMMAND_PHASE_PREPARE));
  job.Step(60);
  EXPECT_THAT(job.seen(0), ElementsAre(v1::COMMAND_PHASE_PREPARE, v1::COMMAND_PHASE_ABORT));  // told when it came back
  ExpectNobodySwitched(&job, 2);
  ASSERT_TRUE(Switch().ok());
  EXPECT_EQ(controller_->ListPlans(kRun)->back().id(), 2u);
}

TEST_F(FaultyRanksTest, ServerRestartsAfterCommit) {
  for (const bool before_effective : {true, false}) {
    SCOPED_TRACE(before_effective);
    FakeJob job(kRun, 2, 2, true);
    Start(&job);
    job.Step(50);
    const auto plan = Switch();
    ASSERT_TRUE(plan.ok()) << plan.status();
    job.Step(2);
    ASSERT_EQ(PlanNow(plan->id()).state(), v1::PLAN_STATE_COMMITTING);
    job.ConnectTo(nullptr);
    if (!before_effective) job.Step(60);  // they switch while the server is away, and their acks are lost
    RestartServer();
    EXPECT_EQ(PlanNow(plan->id()).state(), v1::PLAN_STATE_COMMITTING);
    job.Step(60);
    controller_->Tick();
    EXPECT_EQ(PlanNow(plan->id()).state(), v1::PLAN_STATE_APPLIED) << PlanNow(plan->id()).outcome();
    EXPECT_EQ(job.switched_at(0), PlanNow(plan->id()).effective_step());
    EXPECT_EQ(job.switched_at(1), PlanNow(plan->id()).effective_step());
    EXPECT_THAT(store_.Kinds(std::to_string(plan->id())), Contains("switch_applied").Times(1));
    controller_.reset();
  }
}

TEST_F(FaultyRanksTest, ServerRestartsAfterCommitAndNobodyComesBack) {
  FakeJob job(kRun, 2, 2, true);
  Start(&job);
  job.Step(50);
  ASSERT_TRUE(Switch().ok());
  job.Step(2);
  RestartServer(false);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_COMMITTING);
  Advance(1000 * kSecond);
  EXPECT_EQ(PlanNow(1).state(), v1::PLAN_STATE_ABORTED);
  EXPECT_THAT(store_.Events("switch_refused"), SizeIs(1));
}

TEST_F(FaultyRanksTest, ProposalsSurviveARestart) {
  FakeJob job(kRun, 1, 2, true);
  Start(&job);
  job.Step(5);
  ASSERT_TRUE(controller_->Submit({.run = kRun, .layers = {1}, .actor = "policy", .needs_approval = true}).ok());
  RestartServer();
  EXPECT_EQ(controller_->statistics().open_proposals, 1u);
  v1::ApproveRequest approve;
  approve.set_run(kRun);
  ASSERT_TRUE(controller_->Approve(approve).ok());
  job.Step(60);
  EXPECT_THAT(job.modes(0), ElementsAre(kObserve, kStabilized));
}

TEST_F(FaultyRanksTest, AnUnreadablePlanIsLeftAlone) {
  ASSERT_TRUE(store_->PutState("control/plan/x/0", "{broken").ok());
  ASSERT_TRUE(store_->PutState("control/plan/x/1", "{\"version\":9}").ok());
  FakeJob job(kRun, 1, 2, true);
  Start(&job);
  EXPECT_EQ(controller_->statistics().event_errors, 2u);
  job.Step(5);
  EXPECT_TRUE(Switch().ok());
}

}  // namespace
}  // namespace trimtab::server
