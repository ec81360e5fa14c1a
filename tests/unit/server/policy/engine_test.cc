#include "server/policy/engine.h"

#include <gmock/gmock.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/policy/policy_parser.h"
#include "server/policy/signals.h"
#include "tests/unit/server/policy/test_store.h"

namespace trimtab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kRun[] = "gpt \"2\"/small";
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// An actuator that remembers, and answers as it is told.
class RememberingActuator final : public Actuator {
 public:
  absl::StatusOr<v1::Plan> Submit(const Request& request) override {
    std::lock_guard lock(mutex_);
    requests_.push_back(request);
    if (!answer_.ok()) return answer_;
    v1::Plan plan;
    plan.set_id(requests_.size());
    return plan;
  }
  std::vector<Request> requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  void Answer(absl::Status status) {
    std::lock_guard lock(mutex_);
    answer_ = std::move(status);
  }

 private:
  std::mutex mutex_;
  std::vector<Request> requests_;
  absl::Status answer_;
};

std::vector<v1::MetricDescriptor> Metrics() {
  std::vector<v1::MetricDescriptor> metrics(3);
  metrics[0].set_id(1);
  metrics[0].set_name("loss");
  metrics[0].set_aggregation(v1::AGGREGATION_MEAN);
  metrics[1].set_id(2);
  metrics[1].set_name("max_attention_logit");
  metrics[1].set_aggregation(v1::AGGREGATION_MAX);
  metrics[1].add_axes(v1::AXIS_LAYER);
  metrics[1].add_axes(v1::AXIS_HEAD);
  metrics[2].set_id(3);
  metrics[2].set_name("step_time_seconds");
  metrics[2].set_aggregation(v1::AGGREGATION_MEAN);
  return metrics;
}

v1::RankInfo Info(const RankKey& key, uint32_t world_size, bool act) {
  v1::RankInfo info;
  info.set_run(key.run);
  info.set_rank(key.rank);
  info.set_incarnation(key.incarnation);
  info.set_world_size(world_size);
  info.set_act(act);
  return info;
}

v1::Step MakeStep(uint64_t step, float loss, const std::vector<float>& logits) {
  v1::Step s;
  s.set_sequence(step + 1);
  s.set_step(step);
  s.set_time_unix_nanos(static_cast<int64_t>(step) * 100'000'000);
  v1::Block* b = s.add_blocks();
  b->set_metric(1);
  b->add_float32(loss);
  if (!logits.empty()) {
    b = s.add_blocks();
    b->set_metric(2);
    b->add_shape(logits.size() / 2);
    b->add_shape(2);
    for (const float v : logits) b->add_float32(v);
  }
  return s;
}

class EngineTest : public ::testing::Test {
 protected:
  void Start(PolicyEngineOptions options = {}) {
    options.tick_seconds = 0;
    options.now_unix_nanos = [this] { return now_.load(); };
    auto engine =
        PolicyEngine::Create(*ParsePolicy(DefaultPolicyYaml()), store_.get(), &actuator_, store_.get(), options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  void RestartServer() {
    engine_.reset();
    store_.Reopen();
    Start();
  }
  void Join(uint32_t ranks, bool act, uint64_t incarnation = 1) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const RankKey key{kRun, rank, incarnation};
      engine_->OnRankJoined(key, Info(key, ranks, act), Metrics());
    }
  }
  void Feed(uint32_t rank, const v1::Step& step, uint64_t incarnation = 1) {
    const v1::Step* const one = &step;
    engine_->OnSteps({kRun, rank, incarnation}, {&one, 1});
  }

  std::atomic<int64_t> now_{1'000'000'000'000};
  TestStore store_;
  RememberingActuator actuator_;
  std::unique_ptr<PolicyEngine> engine_;
};

TEST_F(EngineTest, AlertThenSwitchWithEvidence) {
  Start();
  Join(2, true);
  for (uint64_t step = 300; step < 310; ++step) {
    Feed(0, MakeStep(step, 2, {10, 20, 30, 40}));
    Feed(1, MakeStep(step, 2, {10, 20, 30, 250}));  // only rank 1 sees it
  }
  engine_->Drain();
  const auto alerts = store_.Events("alert");
  ASSERT_THAT(alerts, SizeIs(1));
  EXPECT_EQ(alerts[0].run(), kRun);
  EXPECT_EQ(alerts[0].step(), 302u);
  EXPECT_EQ(alerts[0].detector(), "logit_runaway");
  EXPECT_EQ(alerts[0].severity(), v1::SEVERITY_CRITICAL);
  EXPECT_EQ(alerts[0].actor(), "policy");
  const auto evidence = nlohmann::json::parse(alerts[0].evidence_json());
  EXPECT_EQ(evidence["rank"], 1);
  EXPECT_EQ(evidence["head"], 1);
  EXPECT_EQ(evidence["layer"], 1);
  EXPECT_EQ(evidence["ranks_folded"], 2);
  // Which policy decided is in the log too.
  const auto loaded = store_.Events("policy_loaded");
  ASSERT_THAT(loaded, SizeIs(1));
  EXPECT_EQ(evidence["policy_event"], loaded[0].id());
  EXPECT_EQ(nlohmann::json::parse(loaded[0].evidence_json())["yaml"], DefaultPolicyYaml());
  ASSERT_THAT(actuator_.requests(), SizeIs(1));
  const auto request = actuator_.requests()[0];
  EXPECT_EQ(request.run, kRun);
  EXPECT_EQ(request.mode, v1::KERNEL_MODE_STABILIZED);
  EXPECT_THAT(request.layers, ElementsAre(1));
  EXPECT_FALSE(request.needs_approval);
  EXPECT_EQ(nlohmann::json::parse(request.evidence_json)["layers"], (std::vector<uint32_t>{1}));
}

TEST_F(EngineTest, WithoutActTheAlertSaysWhy) {
  Start();
  Join(1, false);
  actuator_.Answer(absl::FailedPreconditionError("no act"));
  for (uint64_t step = 300; step < 900; ++step) Feed(0, MakeStep(step, 2, {10, 20, 30, 250}));
  engine_->Drain();
  ASSERT_THAT(store_.Events("alert"), SizeIs(1));
  EXPECT_THAT(store_.Events("alert")[0].message(), HasSubstr("trimtab run --act"));
  EXPECT_THAT(actuator_.requests(), SizeIs(1));  // asked once, so that the refusal is on record; not again
}

TEST_F(EngineTest, ARestartedServerDoesNotRepeatAlarms) {
  Start();
  Join(1, true);
  for (uint64_t step = 300; step < 310; ++step) Feed(0, MakeStep(step, kNan, {10, 20, 30, 250}));
  engine_->Drain();
  EXPECT_THAT(store_.Events("alert"), SizeIs(2));
  EXPECT_EQ(engine_->statistics().active_alarms, 2u);
  RestartServer();
  Join(1, true);
  for (uint64_t step = 310; step < 400; ++step) Feed(0, MakeStep(step, kNan, {10, 20, 30, 250}));
  engine_->Drain();
  EXPECT_THAT(store_.Events("alert"), SizeIs(2));
  EXPECT_THAT(actuator_.requests(), SizeIs(1));
  EXPECT_EQ(engine_->statistics().active_alarms, 2u);
  for (uint64_t step = 400; step < 520; ++step) Feed(0, MakeStep(step, 2, {10, 20, 30, 40}));
  engine_->Drain();
  EXPECT_THAT(store_.Events("alert_resolved"), SizeIs(2));
  EXPECT_EQ(engine_->statistics().active_alarms, 0u);
}

TEST_F(EngineTest, GuardAsksForARollbackAfterTheSwitchWasApplied) {
  Start();
  Join(1, true);
  for (uint64_t step = 250; step < 310; ++step) Feed(0, MakeStep(step, 2, {10, 20, 30, 250}));
  engine_->Drain();
  ASSERT_THAT(actuator_.requests(), SizeIs(1));
  v1::Event applied;
  applied.set_run(kRun);
  applied.set_kind("switch_applied");
  applied.set_plan_id("1");
  applied.set_step(310);
  ASSERT_TRUE(store_->Append(applied).ok());
  for (uint64_t step = 310; step < 400; ++step) Feed(0, MakeStep(step, 4, {10, 20, 30, 150}));
  engine_->Drain();
  ASSERT_THAT(actuator_.requests(), SizeIs(2));
  EXPECT_TRUE(actuator_.requests()[1].rollback);
  EXPECT_THAT(store_.Events("alert").back().message(), HasSubstr("made things worse"));
  EXPECT_EQ(engine_->statistics().rollbacks_asked, 1u);
}

TEST_F(EngineTest, ARefusedPlanIsAskedForAgain) {
  Start();
  Join(1, true);
  for (uint64_t step = 300; step < 310; ++step) Feed(0, MakeStep(step, 2, {10, 20, 30, 250}));
  engine_->Drain();
  v1::Event refused;
  refused.set_run(kRun);
  refused.set_kind("switch_refused");
  refused.set_plan_id("1");
  ASSERT_TRUE(store_->Append(refused).ok());
  for (uint64_t step = 310; step < 420; ++step) Feed(0, MakeStep(step, 2, {10, 20, 30, 250}));
  engine_->Drain();
  EXPECT_THAT(actuator_.requests(), SizeIs(2));
  EXPECT_THAT(store_.Events("alert"), SizeIs(1));
}

TEST_F(EngineTest, StallMissingRankAndEnd) {
  Start();
  Join(2, false);
  for (uint64_t step = 0; step < 20; ++step) {
    Feed(0, MakeStep(step, 2, {}));
    Feed(1, MakeStep(step, 2, {}));
  }
  engine_->OnRankLeft({kRun, 1, 1}, LeaveReason::kDied, "signal 9");
  engine_->Tick();
  now_ += 61'000'000'000;
  engine_->Tick();
  ASSERT_THAT(store_.Events("alert"), SizeIs(1));
  EXPECT_EQ(store_.Events("alert")[0].detector(), "missing_rank");
  now_ += 100'000'000'000;
  engine_->Tick();
  ASSERT_THAT(store_.Events("alert"), SizeIs(2));
  EXPECT_EQ(store_.Events("alert")[1].detector(), "stall");
  engine_->OnRankLeft({kRun, 0, 1}, LeaveReason::kFinished, "");
  engine_->Drain();
  const auto resolved = store_.Events("alert_resolved");
  ASSERT_THAT(resolved, SizeIs(2));
  EXPECT_THAT(resolved[0].message(), HasSubstr("the run ended, it had not recovered"));
  now_ += 1'000'000'000'000;
  engine_->Tick();
  EXPECT_THAT(store_.Events("alert"), SizeIs(2));
}

TEST_F(EngineTest, AFullQueueDropsStepsAndCountsThem) {
  // Less than one step: the second call finds the queue full unless the thread was faster.
  Start({.queue_bytes_max = 1});
  Join(1, false);
  constexpr uint64_t kSteps = 2000;
  for (uint64_t step = 0; step < kSteps; ++step) Feed(0, MakeStep(step, 2, {1, 2, 3, 4}));
  engine_->Drain();
  const auto s = engine_->statistics();
  EXPECT_EQ(s.steps_evaluated + s.steps_dropped, kSteps);
  Feed(0, MakeStep(kSteps, 2, {1, 2, 3, 4}));
  engine_->Drain();
  EXPECT_EQ(engine_->statistics().steps_evaluated, s.steps_evaluated + 1);
}

TEST_F(EngineTest, RunsOverTheBoundAreRefusedUntilOneIsIdle) {
  Start({.runs_max = 2});
  for (int i = 0; i < 3; ++i) {
    const RankKey key{absl::StrCat("run", i), 0, 1};
    engine_->OnRankJoined(key, Info(key, 1, false), Metrics());
  }
  engine_->Drain();
  EXPECT_EQ(engine_->statistics().runs_refused, 1u);
  engine_->OnRankLeft({"run0", 0, 1}, LeaveReason::kFinished, "");
  const RankKey key{"run3", 0, 1};
  engine_->OnRankJoined(key, Info(key, 1, false), Metrics());
  engine_->Drain();
  EXPECT_EQ(engine_->statistics().runs_refused, 1u);
}

TEST_F(EngineTest, BrokenStoredStateStartsAnew) {
  ASSERT_TRUE(store_->PutState(absl::StrCat("policy/run/", kRun), "{not json").ok());
  Start();
  Join(1, true);
  for (uint64_t step = 300; step < 310; ++step) Feed(0, MakeStep(step, 2, {10, 20, 30, 250}));
  engine_->Drain();
  EXPECT_THAT(store_.Events("alert"), SizeIs(1));
  EXPECT_EQ(engine_->statistics().event_errors, 1u);
}

TEST_F(EngineTest, ManyThreadsFeedManyRanks) {
  Start({.fold_wait_steps_max = 4096});
  constexpr uint32_t kRanks = 4;
  constexpr uint64_t kSteps = 500;
  Join(kRanks, true);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([this, rank] {
      for (uint64_t step = 0; step < kSteps; ++step)
        Feed(rank, MakeStep(step, 2, {10, 20, 30, step < 400 ? 40.f : 300.f}));
    });
  }
  for (int i = 0; i < 20; ++i) {
    engine_->Tick();
    (void)engine_->statistics();
  }
  for (std::thread& t : threads) t.join();
  engine_->Drain();
  EXPECT_EQ(engine_->statistics().steps_evaluated, kSteps);
  ASSERT_THAT(store_.Events("alert"), SizeIs(2));  // runaway and growth, once for the run, not once a rank
  engine_->Shutdown();
  Feed(0, MakeStep(kSteps, 2, {}));  // does nothing, hangs nobody
  engine_->Drain();
}

}  // namespace
}  // namespace trimtab::server
