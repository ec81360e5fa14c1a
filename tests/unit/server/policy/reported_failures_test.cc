// Failures that were reported in public, replayed through the default policy. Ids are those of the acceptance cases.
#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "tests/unit/server/policy/replay.h"

namespace trimtab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A01: healthy until 30,000, then the loss ramps from 3 to more than 6 in 200 steps.
void RampA01(Replay* replay, bool with_attention) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(-0.05, 0.05);
  for (uint64_t step = 29000; step <= 30300; ++step) {
    const double ramp = step > 30000 ? 3.3 * std::min(1.0, static_cast<double>(step - 30000) / 200) : 0;
    Values v = {{"loss", {3.0 + noise(random) + ramp}}, {"grad_norm", {0.4}}};
    if (with_attention) {
      v["max_attention_logit"] = {30, 32, 31, 30};
      v["spectral_norm_q"] = {3, 3, 3, 3};
      v["repeated_max_share"] = {0.01, 0.01, 0.01, 0.01};
    }
    replay->Feed(step, v);
  }
}

TEST(ReportedFailures, A01_OneExplosionWithoutPrecursor) {
  Replay replay;
  replay.evaluator().SetFacts({true, {}, {}});
  RampA01(&replay, true);
  const auto alerts = replay.Of("loss_explosion");
  ASSERT_THAT(alerts, SizeIs(1));
  EXPECT_GT(alerts[0].step, 30000u);
  EXPECT_LE(alerts[0].step, 30200u);
  EXPECT_THAT(alerts[0].message, HasSubstr("No attention-precision precursor was seen"));
  EXPECT_EQ(alerts[0].evidence["signals"]["max_attention_logit"]["value"], 32);
  EXPECT_EQ(alerts[0].evidence["signals"]["spectral_norm_q"]["value"], 3);
  EXPECT_EQ(alerts[0].evidence["signals"]["repeated_max_share"]["value"], 0.01);
  EXPECT_FALSE(replay.AskedForSwitch());
}

TEST(ReportedFailures, A01_SaysWhenAttentionIsNotMeasured) {
  Replay replay;
  RampA01(&replay, false);
  ASSERT_THAT(replay.Of("loss_explosion"), SizeIs(1));
  EXPECT_THAT(replay.Of("loss_explosion")[0].message, HasSubstr("Attention metrics are not reported"));
}

TEST(ReportedFailures, A03_StallsAfterRise) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    Replay replay;
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> noise(-0.25, 0.25);
    for (uint64_t i = 0; i < 20; ++i) replay.Feed(i, {{"loss", {10.9 - 4.0 * static_cast<double>(i) / 19}}});
    for (uint64_t i = 20; i < 85; ++i) replay.Feed(i, {{"loss", {7.81 + noise(random)}}});
    const auto steps = replay.Steps("loss_stalled_after_rise");
    ASSERT_THAT(steps, SizeIs(1)) << seed;
    EXPECT_LE(steps[0], 50u);
    EXPECT_THAT(replay.Steps("loss_stalled_after_rise", Decision::Kind::kResolved), IsEmpty());
    EXPECT_THAT(replay.Steps("nonfinite"), IsEmpty());
  }
}

TEST(ReportedFailures, A06_OneNonFiniteAlert) {
  Replay replay;
  int64_t now = 1'000'000'000'000;
  for (const LogLine& l : ReadThread("nanogpt215")) {
    // The clock is looked at every second, also during the evaluation of 35 s.
    const double ms = l.values.contains("step_ms") ? l.values.at("step_ms")[0] : 1000;
    for (const int64_t end = now + static_cast<int64_t>(ms * 1e6); now < end; now += 1'000'000'000) {
      replay.Take(replay.evaluator().Look(now, {}, 0, 1));
    }
    replay.Feed(l.step, l.values, now);
  }
  const auto alerts = replay.Of("nonfinite");
  ASSERT_THAT(alerts, SizeIs(1));
  EXPECT_EQ(alerts[0].step, 3010u);
  EXPECT_THAT(alerts[0].message, HasSubstr("the last finite step was 3000"));
  EXPECT_EQ(alerts[0].evidence["last_finite_step"], 3000);
  EXPECT_EQ(alerts[0].evidence["signals"]["loss"]["value"], "nan");
  EXPECT_THAT(replay.Steps("stall"), IsEmpty());
  EXPECT_THAT(replay.Alerts(v1::SEVERITY_INFO), SizeIs(1));
}

TEST(ReportedFailures, A13_NanNormFirstAndZeroLossIsNoRecovery) {
  Replay replay;
  for (const LogLine& l : ReadThread("gemma31997")) replay.Feed(l.step, l.values);
  for (uint64_t step = 3; step < 400; ++step) replay.Feed(step, {{"loss", {0.0}}, {"grad_norm", {kNan}}});
  EXPECT_THAT(replay.Steps("nonfinite"), ElementsAre(1));
  EXPECT_THAT(replay.Steps("nonfinite", Decision::Kind::kResolved), IsEmpty());
  // 0.0 was never taken as the best loss: coming back to 2.3 is no explosion.
  for (uint64_t step = 400; step < 700; ++step) replay.Feed(step, {{"loss", {2.3}}, {"grad_norm", {1.0}}});
  EXPECT_THAT(replay.Steps("loss_explosion"), IsEmpty());
  EXPECT_THAT(replay.Steps("loss_spike"), IsEmpty());
  EXPECT_THAT(replay.Steps("nonfinite", Decision::Kind::kResolved), SizeIs(1));
}

TEST(ReportedFailures, A15_BothSpikeOneDiverges) {
  for (const bool recovers : {true, false}) {
    Replay replay;
    for (uint64_t step = 0; step < 400; ++step) replay.Feed(step, {{"loss", {3.0 + 0.02 * std::sin(step)}}});
    for (uint64_t step = 400; step < 900; ++step) {
      const double after = static_cast<double>(step - 400);
      replay.Feed(step,
                  {{"loss", {recovers ? std::max(3.02, 9.0 - 0.059 * after) : 6.5 + 2.5 * std::exp(-after / 20)}}});
    }
    EXPECT_THAT(replay.Steps("loss_spike"), ElementsAre(400)) << recovers;
    if (recovers) {
      EXPECT_THAT(replay.Steps("loss_explosion"), IsEmpty());
      EXPECT_THAT(replay.Steps("loss_spike", Decision::Kind::kResolved), SizeIs(1));
    } else {
      EXPECT_THAT(replay.Steps("loss_explosion"), SizeIs(1));
    }
  }
}

TEST(ReportedFailures, A16_NanNormBesideFiniteLoss) {
  Replay replay;
  for (uint64_t step = 1; step <= 64; ++step) {
    replay.Feed(step, {{"loss", {0.69}}, {"grad_norm", {step >= 57 ? kNan : 3.0}}});
  }
  EXPECT_THAT(replay.Steps("nonfinite"), ElementsAre(57));
}

TEST(ReportedFailures, A19_CountersAreNotTrusted) {
  Replay replay;
  for (const LogLine& l : ReadThread("megatronllm33")) replay.Feed(l.step, l.values);
  EXPECT_THAT(replay.Steps("nonfinite"), ElementsAre(3385));
  EXPECT_THAT(replay.Of("nonfinite")[0].message, HasSubstr("grad_norm is not finite"));
}

TEST(ReportedFailures, A21_JumpAtTheSecondStep) {
  Replay replay;
  const double losses[] = {2.276, 11.054, 11.02};
  for (uint64_t step = 1; step <= 3; ++step) replay.Feed(step, {{"loss", {losses[step - 1]}}});
  EXPECT_THAT(replay.Steps("loss_spike"), ElementsAre(2));
}

TEST(ReportedFailures, A22_SameStepAgainAndAgain) {
  Replay replay;
  replay.Feed(338, {{"loss", {kNan}}}, 1'000'000'000);
  for (int i = 0; i < 300; ++i) {
    replay.evaluator().OnRepeatedStep();
    replay.Take(replay.evaluator().Look(2'000'000'000, {}, 0, 1));
  }
  const auto alerts = replay.Of("stall");
  ASSERT_THAT(alerts, SizeIs(1));
  EXPECT_THAT(alerts[0].message, HasSubstr("No progress"));
}

TEST(ReportedFailures, A25_GradNormAnnouncesTheSpike) {
  Replay replay;
  replay.evaluator().SetFacts({true, {}, {}});
  for (const LogLine& l : ReadLog("bloom176b_chronicle.csv")) {
    if (l.step <= 31251) replay.Feed(l.step, l.values);
  }
  EXPECT_THAT(replay.Steps("grad_norm_growth"), ElementsAre(31216));
  EXPECT_THAT(replay.Steps("grad_norm_growth", Decision::Kind::kResolved), ElementsAre(31250));
  EXPECT_THAT(replay.Steps("loss_spike"), ElementsAre(31219));
  EXPECT_THAT(replay.Steps("loss_spike", Decision::Kind::kResolved), ElementsAre(31250));
  EXPECT_THAT(replay.Alerts(v1::SEVERITY_CRITICAL), IsEmpty());
  EXPECT_FALSE(replay.AskedForSwitch());
}

TEST(ReportedFailures, A26_GlitchesAndMissingLoss) {
  std::map<std::string, Replay> segments;
  for (const LogLine& l : ReadLog("bloom104b_glitches.csv")) segments[l.segment].Feed(l.step, l.values);
  EXPECT_THAT(segments["glitch1"].Steps("loss_spike"), ElementsAre(7010));
  EXPECT_THAT(segments["glitch2"].Steps("loss_spike"), ElementsAre(6930));
  EXPECT_THAT(segments["exp11_spike"].Steps("loss_spike"), ElementsAre(11448));
  const Replay& exp12 = segments["exp12_divergence"];
  EXPECT_THAT(exp12.Steps("loss_spike"), ElementsAre(8741));
  EXPECT_THAT(exp12.Steps("loss_missing"), ElementsAre(9027));
  // The trainer repeats the gradient norm of a step that it skipped.
  EXPECT_EQ(exp12.Of("loss_missing")[0].evidence["signals"]["grad_norm"]["repeats"], 1);
  for (const auto& [name, replay] : segments) EXPECT_FALSE(replay.AskedForSwitch()) << name;
}

TEST(ReportedFailures, A28_SpikeWithoutGradNorm) {
  Replay replay;
  for (const LogLine& l : ReadLog("bloom13b_spike.csv")) replay.Feed(l.step, l.values);
  EXPECT_THAT(replay.Steps("loss_spike"), ElementsAre(29050));
  EXPECT_THAT(replay.Steps("loss_spike", Decision::Kind::kResolved), ElementsAre(33240));
  EXPECT_THAT(replay.Steps("grad_norm_growth"), IsEmpty());
  EXPECT_THAT(replay.Alerts(v1::SEVERITY_CRITICAL), IsEmpty());
}

TEST(ReportedFailures, A31_NothingToDoWithAttention) {
  Replay replay;
  replay.evaluator().SetFacts({true, {}, {}});
  for (const LogLine& l : ReadThread("mlx620")) {
    Values v = l.values;
    v["max_attention_logit"] = {12, 12, 13};
    replay.Feed(l.step, v);
  }
  const auto alerts = replay.Of("loss_spike");
  ASSERT_THAT(alerts, SizeIs(1));
  EXPECT_EQ(alerts[0].step, 100u);
  EXPECT_THAT(alerts[0].message, HasSubstr("nothing here points at the attention kernel"));
  EXPECT_FALSE(replay.AskedForSwitch());
}

TEST(ReportedFailures, A36_OneSpikeResolved) {
  Replay replay;
  for (uint64_t step = 100; step < 200; ++step) {
    const bool spike = step == 150;
    replay.Feed(step, {{"loss", {spike ? 3.0 : 0.45}}, {"grad_norm", {spike ? 20.0 : 1.0}}, {"learning_rate", {2e-4}}});
  }
  ASSERT_THAT(replay.Steps("loss_spike"), ElementsAre(150));
  EXPECT_THAT(replay.Steps("loss_spike", Decision::Kind::kResolved), ElementsAre(151));
  EXPECT_EQ(replay.Of("loss_spike")[0].evidence["signals"]["learning_rate"]["value"], 2e-4);
  EXPECT_THAT(replay.Steps("grad_norm_growth"), IsEmpty());  // one step of it is nothing
}

TEST(ReportedFailures, E13_PartRecoveryStaysOpen) {
  for (const bool in_full : {true, false}) {
    Replay replay;
    for (uint64_t step = 0; step < 200; ++step) replay.Feed(step, {{"loss", {3.0}}});
    for (uint64_t step = 200; step < 500; ++step) replay.Feed(step, {{"loss", {8.0}}});
    for (uint64_t step = 500; step < 2500; ++step) replay.Feed(step, {{"loss", {in_full ? 3.05 : 3.45}}});
    EXPECT_THAT(replay.Steps("loss_explosion"), SizeIs(1));
    EXPECT_THAT(replay.Steps("loss_explosion", Decision::Kind::kResolved), SizeIs(in_full ? 1 : 0));
  }
}

TEST(ReportedFailures, E21_FlappingFiresOnce) {
  Replay replay;
  for (uint64_t step = 1000; step < 1010; ++step) replay.Feed(step, {{"max_attention_logit", {30, 250, 31}}});
  for (uint64_t step = 1010; step < 2010; ++step) {
    replay.Feed(step, {{"max_attention_logit", {30, step % 2 == 0 ? 198.0 : 202.0, 31}}});
  }
  EXPECT_THAT(replay.Steps("logit_runaway"), SizeIs(1));
  EXPECT_THAT(replay.Steps("logit_runaway", Decision::Kind::kResolved), IsEmpty());
}

TEST(ReportedFailures, C29_HangAndLegitimateEvaluation) {
  Replay replay;
  const int64_t second = 1'000'000'000;
  int64_t now = second;
  uint64_t step = 44900;
  for (; step < 45000; ++step, now += 111 * second) replay.Feed(step, {{"loss", {2.1}}}, now);
  const int64_t evaluation_end = now + 12 * 60 * second;
  for (; now < evaluation_end; now += second) replay.Take(replay.evaluator().Look(now, {}, 0, 8));
  EXPECT_THAT(replay.Steps("stall"), IsEmpty());
  replay.Feed(step, {{"loss", {2.1}}}, now);
  const int64_t hang_end = now + 30 * 60 * second;
  for (; now < hang_end; now += second) replay.Take(replay.evaluator().Look(now, {}, 0, 8));
  EXPECT_THAT(replay.Steps("stall"), ElementsAre(45000));
}

}  // namespace
}  // namespace trimtab::server
