#include "server/policy/alarm.h"

#include <gtest/gtest.h>

namespace trimtab::server {
namespace {

using Change = Alarm::Change;

Rule RuleOf(uint32_t for_samples, uint32_t clear_for_samples, uint64_t warm_up, uint64_t cool_down) {
  Rule r;
  r.for_samples = for_samples;
  r.clear_for_samples = clear_for_samples;
  r.warm_up_steps = warm_up;
  r.cool_down_steps = cool_down;
  return r;
}

TEST(Alarm, ForSamplesInARow) {
  const Rule rule = RuleOf(3, 2, 0, 0);
  Alarm a;
  EXPECT_EQ(a.Update(rule, 1, 0, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 2, 0, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 3, 0, Verdict::kBetween), Change::kNone);  // breaks the row
  EXPECT_EQ(a.Update(rule, 4, 0, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 5, 0, Verdict::kUnknown), Change::kNone);  // says nothing
  EXPECT_EQ(a.Update(rule, 6, 0, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 7, 0, Verdict::kFiring), Change::kFired);
  EXPECT_EQ(a.Update(rule, 8, 0, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 9, 0, Verdict::kClear), Change::kNone);
  EXPECT_EQ(a.Update(rule, 10, 0, Verdict::kBetween), Change::kNone);
  EXPECT_EQ(a.Update(rule, 11, 0, Verdict::kClear), Change::kNone);
  EXPECT_EQ(a.Update(rule, 12, 0, Verdict::kClear), Change::kResolved);
  EXPECT_FALSE(a.active());
}

TEST(Alarm, ForSecondsFromTheFirstSampleOfTheRow) {
  Rule rule = RuleOf(2, 1, 0, 0);
  rule.for_seconds = 1.5;
  constexpr int64_t kSecond = 1'000'000'000;
  Alarm a;
  EXPECT_EQ(a.Update(rule, 1, 10 * kSecond, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 2, 11 * kSecond, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 3, 12 * kSecond, Verdict::kClear), Change::kNone);  // breaks the row
  EXPECT_EQ(a.Update(rule, 4, 13 * kSecond, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 5, 14 * kSecond, Verdict::kUnknown), Change::kNone);
  EXPECT_EQ(a.Update(rule, 6, 14 * kSecond, Verdict::kFiring), Change::kNone);  // two samples, one second
  EXPECT_EQ(a.Update(rule, 7, 14 * kSecond + kSecond / 2, Verdict::kFiring), Change::kFired);
}

TEST(Alarm, WarmUpAndCoolDown) {
  const Rule rule = RuleOf(1, 1, 100, 50);
  Alarm a;
  for (uint64_t step = 0; step < 100; ++step) EXPECT_EQ(a.Update(rule, step, 0, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 100, 0, Verdict::kFiring), Change::kFired);
  EXPECT_EQ(a.Update(rule, 101, 0, Verdict::kClear), Change::kResolved);
  for (uint64_t step = 102; step < 150; ++step) EXPECT_EQ(a.Update(rule, step, 0, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 150, 0, Verdict::kFiring), Change::kFired);
  EXPECT_EQ(a.fired_step(), 150u);
}

TEST(Alarm, RestoredAlarmDoesNotFireAgain) {
  const Rule rule = RuleOf(1, 1, 0, 100);
  Alarm a;
  a.Restore(true, 70);
  for (uint64_t step = 71; step < 300; ++step) EXPECT_EQ(a.Update(rule, step, 0, Verdict::kFiring), Change::kNone);
  EXPECT_EQ(a.Update(rule, 300, 0, Verdict::kClear), Change::kResolved);
}

}  // namespace
}  // namespace trimtab::server
