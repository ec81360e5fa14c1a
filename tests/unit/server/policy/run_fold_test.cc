#include "server/policy/run_fold.h"

#include <gmock/gmock.h>

#include "server/policy/policy_parser.h"

namespace trimtab::server {
namespace {

using Added = RunFold::Added;
using ::testing::ElementsAre;

// One signal, at index 0.
StepCells Cells(uint64_t step, double value, uint32_t rank = 0) {
  StepCells c;
  c.step = step;
  c.ranks = 1;
  c.signals.resize(1);
  c.signals[0].present = true;
  c.signals[0].cells.push_back(Cell{.value = value, .sum = value, .values = 1, .worst_rank = rank});
  return c;
}

std::vector<uint64_t> Ready(RunFold* fold, bool everything = false) {
  std::vector<uint64_t> steps;
  while (auto c = fold->Next(everything)) steps.push_back(c->step);
  return steps;
}

const std::vector<v1::Aggregation> kMax = {v1::AGGREGATION_MAX};

TEST(RunFold, WaitsForAllRanksAndFolds) {
  RunFold fold(256);
  for (uint32_t rank = 0; rank < 3; ++rank) fold.Join(rank, 7, 3, kMax);
  EXPECT_EQ(fold.Add(0, 7, Cells(5, 1, 0)), Added::kQueued);
  EXPECT_EQ(fold.Add(1, 7, Cells(5, 9, 1)), Added::kQueued);
  EXPECT_FALSE(fold.Next());
  EXPECT_EQ(fold.Add(2, 7, Cells(5, 4, 2)), Added::kQueued);
  const auto c = fold.Next();
  ASSERT_TRUE(c);
  EXPECT_EQ(c->ranks, 3u);
  EXPECT_EQ(c->signals[0].cells[0].value, 9);
  EXPECT_EQ(c->signals[0].cells[0].worst_rank, 1u);
  EXPECT_FALSE(fold.Next());
}

TEST(RunFold, ASkippedStepComesWithTheNext) {
  RunFold fold(256);
  fold.Join(0, 1, 2, kMax);
  fold.Join(1, 1, 2, kMax);
  fold.Add(0, 1, Cells(1, 0));
  fold.Add(0, 1, Cells(2, 0));
  EXPECT_THAT(Ready(&fold), ElementsAre());
  fold.Add(1, 1, Cells(2, 0));  // rank 1 lost step 1
  EXPECT_THAT(Ready(&fold), ElementsAre(1, 2));
}

TEST(RunFold, SlowRankIsWaitedForUpToTheBound) {
  RunFold fold(10);
  fold.Join(0, 1, 2, kMax);
  fold.Join(1, 1, 2, kMax);
  std::vector<uint64_t> ready;
  for (uint64_t step = 1; step <= 30; ++step) {
    fold.Add(0, 1, Cells(step, 0));
    for (const uint64_t s : Ready(&fold)) ready.push_back(s);
    EXPECT_EQ(ready.size(), step > 10 ? step - 10 : 0);
  }
  EXPECT_EQ(fold.Add(1, 1, Cells(20, 0)), Added::kLate);
  EXPECT_EQ(fold.Add(1, 1, Cells(21, 0)), Added::kQueued);
  EXPECT_THAT(Ready(&fold), ElementsAre(21));
}

TEST(RunFold, ALeavingRankIsNoLongerWaitedFor) {
  RunFold fold(256);
  fold.Join(0, 1, 2, kMax);
  fold.Join(1, 1, 2, kMax);
  fold.Add(0, 1, Cells(1, 0));
  EXPECT_THAT(Ready(&fold), ElementsAre());
  fold.Leave(1, 1, false);
  EXPECT_THAT(Ready(&fold), ElementsAre(1));
  uint32_t count = 0;
  EXPECT_THAT(fold.Missing(16, &count), ElementsAre(1));
  EXPECT_EQ(count, 1u);
  fold.Leave(0, 1, true);
  EXPECT_THAT(fold.Missing(16, &count), ElementsAre(1));
}

TEST(RunFold, RanksThatNeverJoinDelayOnlyALittle) {
  RunFold fold(256);
  fold.Join(0, 1, 8, kMax);
  std::vector<uint64_t> ready;
  for (uint64_t step = 1; step <= 40; ++step) {
    fold.Add(0, 1, Cells(step, 0));
    for (const uint64_t s : Ready(&fold)) ready.push_back(s);
  }
  EXPECT_EQ(ready.size(), 40 - RunFold::kJoinWaitSteps);
}

// Case C23: steps 1 to 212, a new attempt goes on from 201.
TEST(RunFold, ANewIncarnationThatGoesBackRestartsTheRun) {
  RunFold fold(256);
  fold.Join(0, 1, 2, kMax);
  fold.Join(1, 1, 2, kMax);
  for (uint64_t step = 1; step <= 212; ++step) {
    fold.Add(0, 1, Cells(step, 0));
    fold.Add(1, 1, Cells(step, 0));
  }
  EXPECT_EQ(Ready(&fold).size(), 212u);
  fold.Leave(0, 1, false);
  fold.Leave(1, 1, false);
  fold.Join(0, 2, 2, kMax);
  fold.Join(1, 2, 2, kMax);
  EXPECT_EQ(fold.Add(0, 2, Cells(201, 0)), Added::kRestarted);
  EXPECT_EQ(fold.Add(1, 2, Cells(201, 0)), Added::kQueued);  // once for the run, not once a rank
  EXPECT_THAT(Ready(&fold), ElementsAre(201));
  EXPECT_EQ(fold.Add(1, 1, Cells(213, 0)), Added::kUnknownRank);  // the old process is no more
  EXPECT_EQ(fold.Add(0, 2, Cells(202, 0)), Added::kQueued);
  EXPECT_EQ(fold.Add(0, 2, Cells(202, 0)), Added::kRepeat);
}

TEST(RunFold, GoesOnAfterARestartOfTheServer) {
  RunFold before(256);
  before.Join(0, 5, 1, kMax);
  before.Add(0, 5, Cells(99, 0));
  EXPECT_THAT(Ready(&before), ElementsAre(99));
  RunFold same(256), other(256);
  for (RunFold* f : {&same, &other}) f->Restore(99, before.Incarnations(64));
  same.Join(0, 5, 1, kMax);
  EXPECT_EQ(same.Add(0, 5, Cells(99, 0)), Added::kRepeat);
  EXPECT_EQ(same.Add(0, 5, Cells(100, 0)), Added::kQueued);
  other.Join(0, 6, 1, kMax);
  EXPECT_EQ(other.Add(0, 6, Cells(90, 0)), Added::kRestarted);
}

TEST(RunFold, EverythingAtTheEnd) {
  RunFold fold(256);
  fold.Join(0, 1, 4, kMax);
  fold.Add(0, 1, Cells(3, 0));
  EXPECT_THAT(Ready(&fold), ElementsAre());
  EXPECT_THAT(Ready(&fold, true), ElementsAre(3));
}

}  // namespace
}  // namespace trimtab::server
