// False alarms of the default policy on logs of healthy runs.
#include <gmock/gmock.h>

#include "tests/unit/server/policy/replay.h"

namespace trimtab::server {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Case E14: 19,560 steps; grad norm 15 at the start, later 2.02 at step 9025 (z near 98) and 1.44 at 7435, no harm
// done.
TEST(HealthyLogs, E14_LlmcRaisesNoAlert) {
  Replay replay;
  size_t steps = 0;
  for (const LogLine& l : ReadLog("llmc_gpt2_124m_healthy.csv")) replay.Feed(l.step, l.values), ++steps;
  EXPECT_EQ(steps, 19560u);
  EXPECT_THAT(replay.Alerts(v1::SEVERITY_INFO), IsEmpty());
  EXPECT_FALSE(replay.AskedForSwitch());
}

// Case E16: 20,344 steps of one rank's last micro-batch; 108 jumps of more than 1.0 above the median, the largest 2.67.
TEST(HealthyLogs, E16_NoisySpeedrunRaisesNoAlert) {
  Replay replay;
  size_t steps = 0;
  for (const LogLine& l : ReadLog("speedrun_1b_noisy_a.csv")) replay.Feed(l.step, l.values), ++steps;
  EXPECT_EQ(steps, 20344u);
  EXPECT_THAT(replay.Alerts(v1::SEVERITY_INFO), IsEmpty());
  EXPECT_FALSE(replay.AskedForSwitch());
}

TEST(HealthyLogs, Fp32AttentionRaisesNoAlert) {
  Replay replay;
  for (const LogLine& l : ReadLog("fp32_healthy.csv")) replay.Feed(l.step, l.values);
  EXPECT_THAT(replay.Alerts(v1::SEVERITY_INFO), IsEmpty());
}

// Case E15: a huge loss at the first iterations is normal, and so is a gradient norm of any scale.
TEST(HealthyLogs, E15_HugeFirstLossesRaiseNoAlert) {
  Replay replay;
  const double losses[] = {63.8, 41.2, 20.0, 18.1, 15.7, 14.0, 13.1, 12.6, 12.2, 12.0};
  for (uint64_t step = 2; step < 12; ++step) {
    replay.Feed(step, {{"loss", {losses[step - 2]}}, {"grad_norm", {15906.0 / static_cast<double>(step)}}});
  }
  EXPECT_THAT(replay.Alerts(v1::SEVERITY_INFO), IsEmpty());
}

// Case A29: a gradient norm that is printed as 0.000 for 14,000 iterations is no baseline.
TEST(HealthyLogs, A29_FirstRealGradNormIsNoOutlier) {
  Replay replay;
  for (uint64_t step = 29020; step < 43680; step += 10) replay.Feed(step, {{"loss", {2.7}}, {"grad_norm", {0.0}}});
  for (uint64_t step = 43680; step < 43780; step += 10)
    replay.Feed(step, {{"loss", {2.64}}, {"grad_norm", {17224.723}}});
  EXPECT_THAT(replay.Alerts(v1::SEVERITY_INFO), IsEmpty());
}

// The accelerated failure: the alarm comes thousands of steps before the loss explodes.
TEST(AcceleratedFailure, AlarmsLongBeforeTheExplosion) {
  Replay replay;
  replay.evaluator().SetFacts({true, {}, {}});
  for (const LogLine& l : ReadLog("two_bit_standard.csv")) replay.Feed(l.step, l.values);
  const auto alarms = replay.Of("logit_runaway");
  ASSERT_FALSE(alarms.empty());
  EXPECT_EQ(alarms[0].layer, 0u);
  EXPECT_EQ(alarms[0].severity, v1::SEVERITY_CRITICAL);
  // By the definition on every step (mean of 20 more than 0.5 above its minimum for 100 steps) it explodes at 3842.
  EXPECT_LT(alarms[0].step + 1000, 3842u);
  EXPECT_GT(alarms[0].step, 1000u);
  const auto switches = replay.Of("logit_runaway", Decision::Kind::kSwitch);
  ASSERT_FALSE(switches.empty());
  EXPECT_EQ(switches[0].step, alarms[0].step);
  EXPECT_EQ(switches[0].layers, std::vector<uint32_t>{0});
  ASSERT_FALSE(replay.Steps("spectral_growth_q").empty());
  EXPECT_LT(replay.Steps("spectral_growth_q")[0], 3000u);
  const auto explosions = replay.Of("loss_explosion");
  ASSERT_FALSE(explosions.empty());
  EXPECT_GT(explosions[0].step, alarms[0].step);
  EXPECT_NE(explosions[0].message.find("Attention precursor: logit_runaway of layer 0"), std::string::npos)
      << explosions[0].message;
}

// With each layer switched when it fires, the log holds one alarm a layer, and no loss alarm.
TEST(AcceleratedFailure, SwitchedRunStaysHealthy) {
  Replay replay;
  for (const LogLine& l : ReadLog("two_bit_switched_per_layer.csv")) replay.Feed(l.step, l.values);
  EXPECT_THAT(replay.Steps("loss_explosion"), IsEmpty());
  EXPECT_THAT(replay.Steps("loss_spike"), IsEmpty());
  EXPECT_THAT(replay.Steps("grad_norm_growth"), IsEmpty());
  EXPECT_THAT(replay.Steps("nonfinite"), IsEmpty());
}

}  // namespace
}  // namespace trimtab::server
