#include "server/http/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace trimtab::server {
namespace {

std::vector<float> Values(const MinMaxCurve& curve) {
  std::vector<float> values;
  for (const CurvePoint& point : curve.Points()) values.push_back(point.value);
  return values;
}

TEST(MinMaxCurve, KeepsEveryRowUpToItsBound) {
  MinMaxCurve curve(100);
  for (uint64_t i = 0; i < 100; ++i) curve.Add(10 * i, static_cast<float>(i));
  ASSERT_EQ(curve.Points().size(), 100U);
  EXPECT_EQ(curve.Points()[42].step, 420U);
  EXPECT_EQ(curve.Points()[42].value, 42.0F);
}

TEST(MinMaxCurve, OneRowOverTheBoundThinsWithoutExceedingIt) {
  MinMaxCurve curve(100);
  for (uint64_t i = 0; i < 101; ++i) curve.Add(i, static_cast<float>(i));
  EXPECT_LE(curve.Points().size(), 100U);
  EXPECT_EQ(curve.Points().front().step, 0U);
  EXPECT_EQ(curve.Points().back().step, 100U);
}

TEST(MinMaxCurve, KeepsASingleSpikeAndDipOfAMillionRows) {
  MinMaxCurve curve(300);
  for (uint64_t i = 0; i < 1000000; ++i) {
    curve.Add(i, i == 777777 ? 1e6F : i == 333333 ? -5.0F : 1.0F + 0.1F * std::sin(static_cast<float>(i)));
  }
  const std::vector<CurvePoint> points = curve.Points();
  EXPECT_LE(points.size(), 300U);
  EXPECT_GE(points.size(), 50U);
  const auto has = [&](uint64_t step, float value) {
    return std::any_of(points.begin(), points.end(), [&](const auto& p) { return p.step == step && p.value == value; });
  };
  EXPECT_TRUE(has(777777, 1e6F));
  EXPECT_TRUE(has(333333, -5.0F));
}

TEST(MinMaxCurve, KeepsExtremesAndOrderOfRandomCurvesOfAnyLength) {
  std::mt19937 random(7);
  for (const size_t rows : {1U, 5U, 6U, 7U, 64U, 99U, 1000U, 12345U}) {
    for (const size_t bound : {6U, 7U, 50U, 1000U}) {
      MinMaxCurve curve(bound);
      float low = std::numeric_limits<float>::infinity(), high = -low;
      for (uint64_t i = 0; i < rows; ++i) {
        const float value = std::normal_distribution<float>()(random);
        low = std::min(low, value);
        high = std::max(high, value);
        curve.Add(i, value);
      }
      const std::vector<CurvePoint> points = curve.Points();
      ASSERT_LE(points.size(), bound);
      EXPECT_TRUE(std::is_sorted(points.begin(), points.end(), [](auto& a, auto& b) { return a.step < b.step; }));
      const std::vector<float> values = Values(curve);
      EXPECT_EQ(*std::min_element(values.begin(), values.end()), low);
      EXPECT_EQ(*std::max_element(values.begin(), values.end()), high);
    }
  }
}

TEST(MinMaxCurve, ValuesThatAreNotFiniteSurviveThinning) {
  MinMaxCurve curve(30);
  for (uint64_t i = 0; i < 10000; ++i) {
    curve.Add(i, i == 4321   ? std::numeric_limits<float>::quiet_NaN()
                 : i == 8765 ? std::numeric_limits<float>::infinity()
                             : 1.0F);
  }
  const std::vector<CurvePoint> points = curve.Points();
  EXPECT_LE(points.size(), 30U);
  EXPECT_TRUE(std::any_of(points.begin(), points.end(), [](auto& p) { return p.step == 4321 && std::isnan(p.value); }));
  EXPECT_TRUE(std::any_of(points.begin(), points.end(), [](auto& p) { return p.step == 8765 && std::isinf(p.value); }));
}

TEST(MinMaxCurve, StepsMayGoBack) {
  MinMaxCurve curve(10);
  curve.Add(100, 1);
  curve.Add(50, 2);
  ASSERT_EQ(curve.Points().size(), 2U);
  EXPECT_EQ(curve.Points()[1].step, 50U);
}

TEST(MinMaxCurve, ShrinksAndNeverGrows) {
  MinMaxCurve curve(1000);
  for (uint64_t i = 0; i < 900; ++i) curve.Add(i, static_cast<float>(i % 17));
  curve.ShrinkTo(40);
  EXPECT_LE(curve.Points().size(), 40U);
  curve.ShrinkTo(5000);
  for (uint64_t i = 900; i < 20000; ++i) curve.Add(i, 3);
  EXPECT_LE(curve.Points().size(), 40U);
  EXPECT_EQ(curve.rows(), 20000U);
  curve.ShrinkTo(0);
  EXPECT_LE(curve.Points().size(), MinMaxCurve::kMinPoints);
}

}  // namespace
}  // namespace trimtab::server
