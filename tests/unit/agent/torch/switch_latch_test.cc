#include "agent/torch/switch_latch.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace trimtab::agent {
namespace {

using Answer = std::tuple<trimtab_ack_state, uint64_t, uint64_t>;

class SwitchLatchTest : public testing::Test {
 protected:
  SwitchLatchTest()
      : latch_([this](uint64_t plan, trimtab_ack_state state, uint64_t step, const std::string& reason) {
          answers_.emplace_back(state, plan, step);
          reason_ = reason;
        }) {
    modes_.Fill(TRIMTAB_MODE_OBSERVE);
    known_[0] = known_[1] = known_[4] = true;
  }

  bool Boundary(uint64_t step, const trimtab_command* command = nullptr, int64_t now = 0) {
    return latch_.AtBoundary(step, now, known_, true, command, &modes_);
  }
  static trimtab_command Command(uint64_t plan, trimtab_phase phase, trimtab_mode mode, uint64_t effective = 0) {
    trimtab_command command = {};
    command.plan = plan;
    command.phase = phase;
    command.mode = mode;
    command.effective_step = effective;
    return command;
  }

  std::vector<Answer> answers_;
  std::string reason_;
  LayerModes modes_;
  LayerSet known_;
  SwitchLatch latch_;
};

TEST_F(SwitchLatchTest, PreparesWhenEverySeenLayerWasCompared) {
  const auto prepare = Command(1, TRIMTAB_PHASE_PREPARE, TRIMTAB_MODE_STABILIZED);
  EXPECT_FALSE(Boundary(5, &prepare));
  for (const int layer : {0, 1, 4}) {
    EXPECT_TRUE(latch_.WantsShadow(layer));
    EXPECT_FALSE(Boundary(6));
    EXPECT_TRUE(answers_.empty());
    latch_.ReportShadow(layer, true, "");
    EXPECT_FALSE(latch_.WantsShadow(layer));
  }
  EXPECT_FALSE(latch_.WantsShadow(2));  // a gap between named layers
  Boundary(7);
  EXPECT_EQ(answers_, (std::vector<Answer>{{TRIMTAB_ACK_PREPARED, 1, 7}}));
}

TEST_F(SwitchLatchTest, AppliesBeforeTheEffectiveStepAndNotEarlier) {
  const auto prepare = Command(1, TRIMTAB_PHASE_PREPARE, TRIMTAB_MODE_NATIVE);
  const auto commit = Command(1, TRIMTAB_PHASE_COMMIT, TRIMTAB_MODE_NATIVE, 9);
  Boundary(5, &prepare);
  EXPECT_FALSE(Boundary(7, &commit));
  EXPECT_FALSE(Boundary(8));
  EXPECT_EQ(modes_.Of(0), TRIMTAB_MODE_OBSERVE);
  EXPECT_TRUE(Boundary(9));
  EXPECT_EQ(modes_.Of(0), TRIMTAB_MODE_NATIVE);
  EXPECT_EQ(modes_.Of(-1), TRIMTAB_MODE_NATIVE);  // layers to come, too
  EXPECT_EQ(answers_.back(), (Answer{TRIMTAB_ACK_APPLIED, 1, 9}));
}

TEST_F(SwitchLatchTest, CommitForTheVeryNextStepIsInTime) {
  const auto prepare = Command(1, TRIMTAB_PHASE_PREPARE, TRIMTAB_MODE_NATIVE);
  const auto commit = Command(1, TRIMTAB_PHASE_COMMIT, TRIMTAB_MODE_NATIVE, 6);
  Boundary(5, &prepare);
  EXPECT_TRUE(Boundary(6, &commit));
  EXPECT_EQ(answers_.size(), 3U);
}

TEST_F(SwitchLatchTest, OneBadLayerRefusesAll) {
  const auto prepare = Command(1, TRIMTAB_PHASE_PREPARE, TRIMTAB_MODE_STABILIZED);
  Boundary(5, &prepare);
  latch_.ReportShadow(1, false, "error 3e-1");
  EXPECT_FALSE(Boundary(6));
  EXPECT_EQ(answers_, (std::vector<Answer>{{TRIMTAB_ACK_REFUSED, 1, 6}}));
  EXPECT_NE(reason_.find("layer 1"), std::string::npos);
  EXPECT_NE(reason_.find("error 3e-1"), std::string::npos);
  EXPECT_FALSE(latch_.shadow_pending());
}

TEST_F(SwitchLatchTest, TheDeadlineEndsPreparing) {
  auto prepare = Command(1, TRIMTAB_PHASE_PREPARE, TRIMTAB_MODE_PAPER);
  prepare.deadline_unix_nanos = 100;
  Boundary(5, &prepare, 99);
  EXPECT_TRUE(answers_.empty());
  Boundary(6, nullptr, 101);
  EXPECT_EQ(answers_, (std::vector<Answer>{{TRIMTAB_ACK_REFUSED, 1, 6}}));
}

TEST_F(SwitchLatchTest, OnlyTheNamedLayersAreComparedAndSwitched) {
  auto prepare = Command(1, TRIMTAB_PHASE_PREPARE, TRIMTAB_MODE_STABILIZED);
  prepare.layer_count = 1;
  prepare.layers[0] = 1 << 4;
  Boundary(5, &prepare);
  EXPECT_FALSE(latch_.WantsShadow(0));
  latch_.ReportShadow(4, true, "");
  auto commit = prepare;
  commit.phase = TRIMTAB_PHASE_COMMIT;
  commit.effective_step = 6;
  EXPECT_TRUE(Boundary(6) || Boundary(6, &commit));
  EXPECT_EQ(modes_.Of(4), TRIMTAB_MODE_STABILIZED);
  EXPECT_EQ(modes_.Of(0), TRIMTAB_MODE_OBSERVE);
  EXPECT_EQ(modes_.Of(-1), TRIMTAB_MODE_OBSERVE);
}

TEST_F(SwitchLatchTest, UnknownModesAndLayersAreRefused) {
  auto command = Command(1, TRIMTAB_PHASE_PREPARE, static_cast<trimtab_mode>(9));
  Boundary(5, &command);
  EXPECT_NE(reason_.find("mode 9"), std::string::npos);
  command = Command(2, TRIMTAB_PHASE_PREPARE, TRIMTAB_MODE_STABILIZED);
  command.layer_count = 1;
  command.layers[TRIMTAB_MAX_LAYERS / 8 - 1] = 0x80;
  Boundary(5, &command);
  EXPECT_NE(reason_.find("layer 1023"), std::string::npos);
  EXPECT_EQ(std::get<0>(answers_.back()), TRIMTAB_ACK_REFUSED);
}

TEST_F(SwitchLatchTest, AbortOfAnUnknownPlanIsConfirmed) {
  const auto abort = Command(5, TRIMTAB_PHASE_ABORT, TRIMTAB_MODE_NATIVE);
  Boundary(5, &abort);
  EXPECT_EQ(answers_, (std::vector<Answer>{{TRIMTAB_ACK_ABORTED, 5, 5}}));
}

}  // namespace
}  // namespace trimtab::agent
