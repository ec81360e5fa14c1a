// Each detector on series that are known by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "server/policy/detectors/missing_rank.h"
#include "server/policy/detectors/missing_signal.h"
#include "server/policy/detectors/nonfinite.h"
#include "server/policy/detectors/stall.h"
#include "server/policy/series_detector.h"

namespace trimtab::server {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kSecond = 1'000'000'000;

Sample At(uint64_t step, double value, double pack = kNotKnown) { return {step, value, pack}; }

TEST(Window, MedianMinimumAndForgetting) {
  Window w(3);
  EXPECT_TRUE(std::isnan(w.Median()));
  w.Push(5);
  EXPECT_EQ(w.Median(), 5);
  w.Push(1);
  EXPECT_EQ(w.Median(), 3);
  w.Push(9);
  EXPECT_EQ(w.Median(), 5);
  EXPECT_EQ(w.MedianDeviation(5), 4);
  w.Push(2);  // forgets 5
  EXPECT_EQ(w.Median(), 2);
  EXPECT_EQ(w.Minimum(), 1);
  EXPECT_EQ(w.Mean(), 4);
}

TEST(Baseline, TakesANewLevelAfterPatience) {
  Baseline b(4, 6);
  for (int i = 0; i < 4; ++i) b.Learn(1, false);
  for (int i = 0; i < 6; ++i) b.Learn(100, true);
  EXPECT_EQ(b.window().Median(), 1);
  for (int i = 0; i < 4; ++i) b.Learn(100, true);
  EXPECT_EQ(b.window().Median(), 100);
  b.Learn(kInf, false);  // never enters
  EXPECT_EQ(b.window().Median(), 100);
}

TEST(Threshold, HysteresisBothWays) {
  ThresholdDetector above({.above = 200, .clear_below = 100});
  EXPECT_EQ(above.Feed(At(0, 200)).verdict, Verdict::kBetween);
  EXPECT_EQ(above.Feed(At(0, 200.1)).verdict, Verdict::kFiring);
  EXPECT_EQ(above.Feed(At(0, kInf)).verdict, Verdict::kFiring);
  EXPECT_EQ(above.Feed(At(0, 150)).verdict, Verdict::kBetween);
  EXPECT_EQ(above.Feed(At(0, 100)).verdict, Verdict::kClear);
  EXPECT_EQ(above.Feed(At(0, -kInf)).verdict, Verdict::kClear);
  ThresholdDetector below({.below = 0.5, .clear_above = 1});
  EXPECT_EQ(below.Feed(At(0, 0.4)).verdict, Verdict::kFiring);
  EXPECT_EQ(below.Feed(At(0, 0.7)).verdict, Verdict::kBetween);
  EXPECT_EQ(below.Feed(At(0, 1)).verdict, Verdict::kClear);
}

TEST(RatioToMedian, NeedsAPackWithAPositiveMedian) {
  RatioToMedianDetector d({.factor = 3, .clear_factor = 2, .at_least = 10});
  EXPECT_EQ(d.Feed(At(0, 100)).verdict, Verdict::kUnknown);
  EXPECT_EQ(d.Feed(At(0, 100, 0)).verdict, Verdict::kUnknown);
  EXPECT_EQ(d.Feed(At(0, 100, -5)).verdict, Verdict::kUnknown);
  EXPECT_EQ(d.Feed(At(0, 30, 10)).verdict, Verdict::kFiring);
  EXPECT_EQ(d.Feed(At(0, 25, 10)).verdict, Verdict::kBetween);
  EXPECT_EQ(d.Feed(At(0, 20, 10)).verdict, Verdict::kClear);
  EXPECT_EQ(d.Feed(At(0, 9, 1)).verdict, Verdict::kClear);  // far from the pack, but small
}

TEST(ZScore, OutlierFiresAndDoesNotTeach) {
  ZScoreDetector d({.sigmas = 6, .clear_sigmas = 3, .window_samples = 32, .min_samples = 16});
  std::mt19937 random(7);
  std::normal_distribution<double> noise(10, 1);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(d.Feed(At(i, noise(random))).verdict, Verdict::kUnknown);
  for (int i = 15; i < 400; ++i) EXPECT_NE(d.Feed(At(i, noise(random))).verdict, Verdict::kFiring);
  for (int i = 0; i < 100; ++i) {
    const Reading r = d.Feed(At(500 + i, 30));
    EXPECT_EQ(r.verdict, Verdict::kFiring);
    EXPECT_NEAR(r.reference, 10, 1);
    EXPECT_GT(r.score, 6);
  }
  EXPECT_EQ(d.Feed(At(700, 10)).verdict, Verdict::kClear);
}

TEST(ZScore, ConstantPastNeedsAFloor) {
  ZScoreDetector without({.sigmas = 6, .window_samples = 8, .min_samples = 4});
  ZScoreDetector with({.sigmas = 6, .window_samples = 8, .min_samples = 4, .scale_floor = 0.1});
  for (int i = 0; i < 8; ++i) (void)without.Feed(At(i, 2)), (void)with.Feed(At(i, 2));
  EXPECT_EQ(without.Feed(At(9, 99)).verdict, Verdict::kUnknown);
  EXPECT_EQ(with.Feed(At(9, 99)).verdict, Verdict::kFiring);
}

TEST(ZScore, SidesAreKept) {
  ZScoreDetector below(
      {.sigmas = 4, .window_samples = 8, .min_samples = 4, .scale_floor = 1, .side = ZScoreParams::Side::kBelow});
  ZScoreDetector both(
      {.sigmas = 4, .window_samples = 8, .min_samples = 4, .scale_floor = 1, .side = ZScoreParams::Side::kBoth});
  for (int i = 0; i < 8; ++i) (void)below.Feed(At(i, 0)), (void)both.Feed(At(i, 0));
  EXPECT_EQ(below.Feed(At(9, 50)).verdict, Verdict::kClear);
  EXPECT_EQ(below.Feed(At(9, -50)).verdict, Verdict::kFiring);
  EXPECT_EQ(both.Feed(At(9, 50)).verdict, Verdict::kFiring);
  EXPECT_EQ(both.Feed(At(9, -50)).verdict, Verdict::kFiring);
}

TEST(Growth, AgainstItsOwnPastAndTheFloor) {
  GrowthDetector d({.factor = 4, .clear_factor = 2, .window_steps = 640, .min_samples = 8, .at_least = 100});
  uint64_t step = 0;
  for (; step < 1000; step += 10) EXPECT_NE(d.Feed(At(step, 20)).verdict, Verdict::kFiring);
  EXPECT_EQ(d.Feed(At(step += 10, 90)).verdict, Verdict::kClear);  // 4.5 x, under the floor
  EXPECT_EQ(d.Feed(At(step += 10, 100)).verdict, Verdict::kFiring);
  EXPECT_EQ(d.Feed(At(step += 10, 100)).bound, 100);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(d.Feed(At(step += 10, 110)).verdict, Verdict::kFiring);
  EXPECT_EQ(d.Feed(At(step += 10, 39)).verdict, Verdict::kClear);
}

TEST(Growth, WindowIsInStepsWhateverTheSampling) {
  for (const uint64_t every : {1, 7, 20}) {
    GrowthDetector d({.factor = 4, .clear_factor = 2, .window_steps = 1280, .min_samples = 8});
    // Doubles every 500 steps: 2 ^ (640 / 500) times its median of 1,280 steps.
    for (uint64_t step = 0; step < 6000; step += every) {
      const Reading r = d.Feed(At(step, std::exp2(static_cast<double>(step) / 500)));
      if (step > 2000) {
        EXPECT_NEAR(r.score, 2.45, 0.25) << every << " " << step;
      }
    }
  }
}

TEST(Growth, PackAndMinimum) {
  GrowthDetector pack({.factor = 2, .clear_factor = 1.5, .window_steps = 64, .min_samples = 2, .pack_factor = 2});
  for (int i = 0; i < 10; ++i) (void)pack.Feed(At(i, 10, 10));
  EXPECT_EQ(pack.Feed(At(11, 30, 30)).verdict, Verdict::kBetween);  // all layers grow
  EXPECT_EQ(pack.Feed(At(12, 30, 10)).verdict, Verdict::kFiring);
  EXPECT_EQ(pack.Feed(At(13, 30)).verdict, Verdict::kUnknown);
  GrowthDetector minimum({.factor = 3,
                          .clear_factor = 2,
                          .window_steps = 64,
                          .min_samples = 2,
                          .reference = GrowthParams::Reference::kMinimum});
  for (int i = 0; i < 10; ++i) (void)minimum.Feed(At(i, i == 3 ? 1 : 2));
  EXPECT_EQ(minimum.Feed(At(11, 3)).verdict, Verdict::kFiring);
  EXPECT_EQ(minimum.Feed(At(12, 3)).reference, 1);
}

TEST(Cusum, FindsASmallLastingShift) {
  CusumDetector d({.baseline_samples = 64, .drift_sigmas = 0.5, .limit_sigmas = 10});
  std::mt19937 random(3);
  std::normal_distribution<double> noise(0, 1);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(d.Feed(At(i, noise(random))).verdict, Verdict::kUnknown);
  for (int i = 64; i < 1000; ++i) EXPECT_NE(d.Feed(At(i, noise(random))).verdict, Verdict::kFiring) << i;
  int needed = 0;
  while (d.Feed(At(1000 + needed, 1.5 + noise(random))).verdict != Verdict::kFiring && needed < 100) ++needed;
  EXPECT_LT(needed, 30);
  int back = 0;
  while (d.Feed(At(2000 + back, 0)).verdict != Verdict::kClear && back < 100) ++back;
  EXPECT_LT(back, 60);
}

TEST(SignPersistence, OneSignFiresNoiseDoesNot) {
  SignPersistenceDetector d({.window_samples = 32, .share = 0.9, .clear_share = 0.7});
  std::mt19937 random(5);
  std::normal_distribution<double> noise(0, 1);
  for (int i = 0; i < 31; ++i) EXPECT_EQ(d.Feed(At(i, noise(random))).verdict, Verdict::kUnknown);
  for (int i = 0; i < 300; ++i) EXPECT_NE(d.Feed(At(i, noise(random))).verdict, Verdict::kFiring);
  Reading r;
  for (int i = 0; i < 32; ++i) r = d.Feed(At(i, -0.01));
  EXPECT_EQ(r.verdict, Verdict::kFiring);
  EXPECT_EQ(r.score, 1);
  for (int i = 0; i < 100; ++i) r = d.Feed(At(i, 0));  // zeros have no sign
  EXPECT_EQ(r.verdict, Verdict::kFiring);
}

TEST(NonFinite, LastFiniteStepAndLossScaler) {
  NonFiniteDetector d({.loss_scaling_grace_steps = 3});
  EXPECT_EQ(d.Feed(9, 0, 0, false).verdict, Verdict::kUnknown);
  EXPECT_FALSE(d.last_finite_step());
  EXPECT_EQ(d.Feed(10, 2, 0, false).verdict, Verdict::kClear);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(d.Feed(11 + i, 2, 1, true).verdict, Verdict::kBetween);
  EXPECT_EQ(d.Feed(14, 2, 1, true).verdict, Verdict::kFiring);  // longer than a scaler explains
  EXPECT_EQ(d.Feed(15, 2, 1, false).verdict, Verdict::kFiring);
  EXPECT_EQ(d.Feed(16, 0, 0, false).verdict, Verdict::kUnknown);
  EXPECT_EQ(d.last_finite_step(), 10u);
}

TEST(MissingSignal, OnlyAfterItCameRegularly) {
  MissingSignalDetector d({.present_before_samples = 3});
  for (int i = 0; i < 20; ++i) EXPECT_NE(d.Feed(i % 2 == 0).verdict, Verdict::kFiring);  // a sparse signal
  EXPECT_EQ(d.Feed(true).verdict, Verdict::kUnknown);
  EXPECT_EQ(d.Feed(true).verdict, Verdict::kUnknown);
  EXPECT_EQ(d.Feed(true).verdict, Verdict::kClear);
  EXPECT_EQ(d.Feed(false).verdict, Verdict::kFiring);
  EXPECT_EQ(d.Feed(false).verdict, Verdict::kFiring);
  EXPECT_EQ(d.Feed(true).verdict, Verdict::kClear);
}

TEST(Stall, MedianTimesAndAtLeast) {
  StallDetector d({.median_step_times = 10, .at_least_seconds = 20, .repeat_limit = 5});
  EXPECT_EQ(d.Look(99 * kSecond).verdict, Verdict::kUnknown);
  for (int i = 1; i <= 10; ++i) d.OnProgress(i * 3 * kSecond, 3);
  EXPECT_EQ(d.Look((30 + 29) * kSecond).verdict, Verdict::kClear);
  EXPECT_EQ(d.Look((30 + 31) * kSecond).verdict, Verdict::kFiring);
  for (int i = 0; i < 5; ++i) d.OnRepeat();
  EXPECT_EQ(d.Look(31 * kSecond).verdict, Verdict::kFiring);
  d.OnProgress(32 * kSecond, 3);
  EXPECT_EQ(d.Look(33 * kSecond).verdict, Verdict::kClear);
}

TEST(MissingRank, WaitsAndForgetsAGoneRun) {
  MissingRankDetector d({.at_least_seconds = 60});
  EXPECT_EQ(d.Look(0, 0, 8).verdict, Verdict::kClear);
  EXPECT_EQ(d.Look(10 * kSecond, 1, 7).verdict, Verdict::kBetween);
  EXPECT_EQ(d.Look(70 * kSecond, 1, 7).verdict, Verdict::kFiring);
  EXPECT_EQ(d.Look(71 * kSecond, 8, 0).verdict, Verdict::kUnknown);
  EXPECT_EQ(d.Look(72 * kSecond, 1, 7).verdict, Verdict::kBetween);
}

TEST(Explosion, FallingBackIsNoExplosion) {
  ExplosionDetector d({.mean_samples = 5, .rise = 0.5, .hold_samples = 20, .falling_ratio = 0.5, .clear_rise = 0.1});
  uint64_t step = 0;
  Reading r;
  for (; step < 50; ++step) r = d.Feed(At(step, 2));
  EXPECT_EQ(r.verdict, Verdict::kClear);
  for (int i = 0; i < 30; ++i) {
    r = d.Feed(At(step++, 6 - 0.1 * i));                                 // falls: 6 to 3.1, the peak rise is about 4
    EXPECT_TRUE(r.verdict != Verdict::kFiring || r.score >= 1.85) << i;  // half of the peak
  }
  EXPECT_NE(r.verdict, Verdict::kFiring);
  for (int i = 0; i < 60; ++i) r = d.Feed(At(step++, 3.1));  // but staying there is one
  EXPECT_EQ(r.verdict, Verdict::kFiring);
  EXPECT_EQ(r.reference, 2);
  d.Feed(At(step++, kInf));  // not a value here
  EXPECT_EQ(d.best(), 2);
}

TEST(Explosion, NoiseRaisesTheBar) {
  ExplosionParams p{.mean_samples = 4, .rise = 0.4, .hold_samples = 20, .clear_rise = 0.1, .noise_sigmas = 8};
  ExplosionDetector d(p);
  std::mt19937 random(11);
  std::normal_distribution<double> noise(3, 0.5);
  for (uint64_t i = 0; i < 20000; ++i) EXPECT_NE(d.Feed(At(i, noise(random))).verdict, Verdict::kFiring) << i;
}

TEST(SeriesDetector, RunDetectorsHaveNone) {
  EXPECT_TRUE(MakeSeriesDetector(ThresholdParams{.above = 1}).has_value());
  EXPECT_TRUE(MakeSeriesDetector(CusumParams{}).has_value());
  EXPECT_FALSE(MakeSeriesDetector(StallParams{}).has_value());
  EXPECT_FALSE(MakeSeriesDetector(NonFiniteParams{}).has_value());
}

}  // namespace
}  // namespace trimtab::server
