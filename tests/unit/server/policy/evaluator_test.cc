#include "server/policy/evaluator.h"

#include <gmock/gmock.h>

#include "tests/unit/server/policy/replay.h"

namespace trimtab::server {
namespace {

using Kind = Decision::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const char kSwitchPolicy[] = R"(
version: 1
rules:
  - name: runaway
    signal: max_attention_logit
    detector: {threshold: {above: 200, clear_below: 100}}
    for_samples: 3
    warm_up_steps: 100
    cool_down_steps: 50
    severity: critical
    action: {switch: {mode: stabilized, max_switches_per_run: 2}}
    guard: {watch_steps: 200, loss_worse_by: 0.5, loss_worse_for_samples: 10, step_time_factor_max: 1.5}
)";

void Steps(Replay* r, uint64_t from, uint64_t to, std::vector<double> logits, double loss = 2, double seconds = 0.1) {
  for (uint64_t step = from; step < to; ++step) {
    r->Feed(step, {{"max_attention_logit", logits}, {"loss", {loss}}, {"step_time_seconds", {seconds}}});
  }
}

TEST(Evaluator, SwitchesTheLayersThatFired) {
  Replay r(kSwitchPolicy);
  r.evaluator().SetFacts({true, {}, {"h.0.attn", "h.1.attn", "h.2.attn"}});
  Steps(&r, 0, 100, {250, 30, 30});  // warm-up
  EXPECT_THAT(r.Alerts(v1::SEVERITY_INFO), IsEmpty());
  Steps(&r, 100, 103, {250, 30, 260});
  ASSERT_THAT(r.Steps("runaway"), ElementsAre(100, 102));  // layer 2 needs its own three samples
  EXPECT_THAT(r.Of("runaway")[0].message,
              HasSubstr("max_attention_logit of layer 0 (h.0.attn) is 250 at step 100: above 200, 3 samples in a row. "
                        "Asking to switch layer 0 to stabilized."));
  const auto switches = r.Of("runaway", Kind::kSwitch);
  ASSERT_THAT(switches, SizeIs(2));
  EXPECT_THAT(switches[0].layers, ElementsAre(0));
  r.evaluator().OnSwitchAccepted(0, {0});
  EXPECT_THAT(switches[1].layers, ElementsAre(0, 2));  // 0 was not accepted before the second was asked for
}

TEST(Evaluator, ASecondLayerWaitsForTheFirstPlan) {
  Replay r(kSwitchPolicy);
  r.evaluator().SetFacts({true, {}, {}});
  Steps(&r, 100, 110, {250, 30, 30});
  r.evaluator().OnSwitchAccepted(0, {0});
  Steps(&r, 110, 150, {250, 30, 260});
  EXPECT_THAT(r.Of("runaway", Kind::kSwitch), SizeIs(1));
  r.evaluator().SetFacts({true, {v1::KERNEL_MODE_STABILIZED, v1::KERNEL_MODE_OBSERVE, v1::KERNEL_MODE_OBSERVE}, {}});
  r.evaluator().OnSwitchApplied(0, 140);
  Steps(&r, 150, 180, {250, 30, 260});
  ASSERT_THAT(r.Of("runaway", Kind::kSwitch), SizeIs(2));
  EXPECT_THAT(r.Of("runaway", Kind::kSwitch)[1].layers, ElementsAre(2));
}

TEST(Evaluator, ARefusedPlanDoesNotCountAsASwitch) {
  Replay r(kSwitchPolicy);
  r.evaluator().SetFacts({true, {}, {}});
  Steps(&r, 100, 103, {250, 30});
  for (uint64_t i = 0; i < 4; ++i) {
    r.evaluator().OnSwitchAccepted(0, {0});
    r.evaluator().OnSwitchRefused(0, {0}, true);
    Steps(&r, 103 + i * 100, 203 + i * 100, {250, 30});
  }
  EXPECT_THAT(r.Of("runaway", Kind::kSwitch), SizeIs(5));  // two are allowed
}

TEST(Evaluator, EvidenceHoldsWhatTheDecisionRestsOn) {
  Replay r(kSwitchPolicy);
  for (uint64_t step = 100; step < 103; ++step) {
    r.Feed(step, {{"max_attention_logit", {20, 240.0 + static_cast<double>(step - 100), 22}},
                  {"spectral_norm_q", {2, 7, 2.5}},
                  {"repeated_max_share", {0.1, 0.2, 0.3}},
                  {"delta_residual_z", {0.5, 3.5, -1}},
                  {"grad_norm", {0.7}},
                  {"loss", {1.9}}});
  }
  ASSERT_THAT(r.Of("runaway"), SizeIs(1));
  const nlohmann::json e = r.Of("runaway")[0].evidence;
  EXPECT_EQ(e["rule"], "runaway");
  EXPECT_EQ(e["layer"], 1);
  EXPECT_EQ(e["detector"]["name"], "threshold");
  EXPECT_EQ(e["detector"]["above"], 200);
  ASSERT_EQ(e["samples"].size(), 3u);
  EXPECT_EQ(e["samples"][2]["value"], 242);
  EXPECT_EQ(e["samples"][2]["step"], 102);
  EXPECT_EQ(e["samples"][2]["bound"], 200);
  EXPECT_EQ(e["signals"]["spectral_norm_q"]["value"], 7);
  EXPECT_EQ(e["signals"]["spectral_norm_q"]["median_of_layers"], 2.5);
  EXPECT_EQ(e["signals"]["repeated_max_share"]["value"], 0.2);
  EXPECT_EQ(e["signals"]["delta_residual_z"]["value"], 3.5);
  EXPECT_EQ(e["signals"]["grad_norm"]["value"], 0.7);
  EXPECT_EQ(e["signals"]["loss"]["value"], 1.9);
  EXPECT_EQ(e["signals"]["loss"]["repeats"], 2);
}

TEST(Evaluator, SaysWhyNothingIsSwitched) {
  Replay r(kSwitchPolicy);  // the job does not allow it
  Steps(&r, 100, 104, {250, 30});
  ASSERT_THAT(r.Of("runaway"), SizeIs(1));
  EXPECT_THAT(r.Of("runaway")[0].message,
              HasSubstr("Nothing was switched: the owner of the job did not allow it; start "
                        "the job with `trimtab run --act` or attach(act=True)."));
  Replay already(kSwitchPolicy);
  already.evaluator().SetFacts({true, {v1::KERNEL_MODE_STABILIZED, v1::KERNEL_MODE_OBSERVE}, {}});
  Steps(&already, 100, 104, {250, 30});
  EXPECT_THAT(already.Of("runaway")[0].message, HasSubstr("The layer runs stabilized already."));
  EXPECT_THAT(already.Of("runaway", Kind::kSwitch), IsEmpty());
}

// Case E10: a storm of triggers asks once; the number of switches is bounded, also over a restart of the server.
TEST(Evaluator, AsksOnceAndBoundedly) {
  Replay r(kSwitchPolicy);
  r.evaluator().SetFacts({true, {}, {}});
  nlohmann::json saved;
  uint64_t step = 100;
  for (int round = 0; round < 5; ++round) {
    Steps(&r, step, step + 200, {250, 30});
    const auto asked = r.Of("runaway", Kind::kSwitch);
    EXPECT_EQ(asked.size(), std::min(round + 1, 2));
    if (round < 2) {
      r.evaluator().OnSwitchAccepted(0, {0});
      r.evaluator().OnSwitchApplied(0, step + 20);
    }
    Steps(&r, step + 200, step + 500, {50, 30});
    step += 500;
    if (round == 1) {
      saved = r.evaluator().Save();
      r.evaluator().Load(saved);
    }
  }
  EXPECT_THAT(r.Of("runaway").back().message, HasSubstr("has switched 2 times in this run already"));
  EXPECT_THAT(r.Of("runaway"), SizeIs(5));
}

TEST(Evaluator, ARefusedSwitchIsAskedAgainLater) {
  Replay r(kSwitchPolicy);
  r.evaluator().SetFacts({true, {}, {}});
  Steps(&r, 100, 103, {250, 30});
  for (uint32_t i = 0; i < RunEvaluator::kRetriesMax + 5; ++i) {
    if (i < RunEvaluator::kRetriesMax + 1) r.evaluator().OnSwitchRefused(0, {0}, true);
    Steps(&r, 103 + i * 100, 203 + i * 100, {250, 30});
  }
  EXPECT_THAT(r.Of("runaway", Kind::kSwitch), SizeIs(1 + RunEvaluator::kRetriesMax));
  EXPECT_THAT(r.Of("runaway"), SizeIs(1));
}

TEST(Evaluator, GuardRollsBackWhenTheLossGetsWorse) {
  Replay r(kSwitchPolicy);
  r.evaluator().SetFacts({true, {}, {}});
  Steps(&r, 100, 160, {250, 30});
  r.evaluator().OnSwitchAccepted(0, {0});
  r.evaluator().OnSwitchApplied(0, 160);
  Steps(&r, 160, 220, {150, 30}, 2.2);
  EXPECT_THAT(r.Of("runaway", Kind::kRollback), IsEmpty());
  Steps(&r, 220, 280, {150, 30}, 3.5);
  const auto rollbacks = r.Of("runaway", Kind::kRollback);
  ASSERT_THAT(rollbacks, SizeIs(1));
  EXPECT_THAT(rollbacks[0].message, HasSubstr("before the switch it was 2"));
  EXPECT_EQ(rollbacks[0].evidence["guard"]["effective_step"], 160);
  // Case B49: never a second identical switch.
  Steps(&r, 280, 300, {50, 30});
  Steps(&r, 300, 400, {250, 30});
  EXPECT_THAT(r.Of("runaway", Kind::kSwitch), SizeIs(1));
  EXPECT_THAT(r.Of("runaway").back().message, HasSubstr("rolled back by its guard"));
}

TEST(Evaluator, GuardRollsBackOnNanAndOnSlowSteps) {
  Replay nan(kSwitchPolicy), slow(kSwitchPolicy), fine(kSwitchPolicy);
  for (Replay* r : {&nan, &slow, &fine}) {
    r->evaluator().SetFacts({true, {}, {}});
    Steps(r, 100, 160, {250, 30});
    r->evaluator().OnSwitchApplied(0, 160);
  }
  Steps(&nan, 160, 165, {150, 30}, 2);
  Steps(&nan, 165, 166, {150, 30}, kNan);
  EXPECT_THAT(nan.Steps("runaway", Kind::kRollback), ElementsAre(165));
  Steps(&slow, 160, 200, {150, 30}, 2, 0.16);
  ASSERT_THAT(slow.Steps("runaway", Kind::kRollback), ElementsAre(179));
  EXPECT_THAT(slow.Of("runaway", Kind::kRollback)[0].message, HasSubstr("a step takes 0.16 s"));
  Steps(&fine, 160, 400, {150, 30}, 2.1, 0.12);
  Steps(&fine, 400, 500, {150, 30}, 9, 9);  // after the watch
  EXPECT_THAT(fine.Steps("runaway", Kind::kRollback), IsEmpty());
}

TEST(Evaluator, GuardSurvivesARestartOfTheServer) {
  Replay before(kSwitchPolicy), after(kSwitchPolicy);
  before.evaluator().SetFacts({true, {}, {}});
  Steps(&before, 100, 160, {250, 30});
  before.evaluator().OnSwitchApplied(0, 160);
  after.evaluator().Load(before.evaluator().Save());
  Steps(&after, 160, 200, {150, 30}, 4);
  EXPECT_THAT(after.Of("runaway", Kind::kRollback), SizeIs(1));
}

TEST(Evaluator, RestoredAlarmsDoNotFireAgain) {
  Replay before, after;
  for (uint64_t step = 300; step < 320; ++step) {
    before.Feed(step, {{"max_attention_logit", {30, 300, 30}}, {"loss", {kNan}}, {"grad_norm", {kNan}}});
  }
  EXPECT_EQ(before.evaluator().active_alarms(), 2u);
  after.evaluator().Load(before.evaluator().Save());
  EXPECT_EQ(after.evaluator().active_alarms(), 2u);
  for (uint64_t step = 320; step < 400; ++step) {
    after.Feed(step, {{"max_attention_logit", {30, 300, 30}}, {"loss", {kNan}}, {"grad_norm", {kNan}}});
  }
  EXPECT_THAT(after.Alerts(v1::SEVERITY_INFO), IsEmpty());
  for (uint64_t step = 400; step < 420; ++step) after.Feed(step, {{"max_attention_logit", {30, 40, 30}}});
  EXPECT_THAT(after.Steps("logit_runaway", Kind::kResolved), ElementsAre(419));
}

TEST(Evaluator, BestLossSurvivesARestartOfTheServer) {
  Replay before, after;
  for (uint64_t step = 0; step < 200; ++step) before.Feed(step, {{"loss", {2.0}}});
  after.evaluator().Load(before.evaluator().Save());
  for (uint64_t step = 200; step < 400; ++step) after.Feed(step, {{"loss", {3.0}}});
  EXPECT_THAT(after.Steps("loss_explosion"), SizeIs(1));
}

TEST(Evaluator, BrokenStateIsRefusedOrIgnored) {
  Replay r;
  r.evaluator().Load(nlohmann::json::parse("[]"));
  r.evaluator().Load(nlohmann::json::parse(R"({"version": 9})"));
  r.evaluator().Load(nlohmann::json::parse(
      R"({"version":1,"last_step":7,"rules":{"logit_runaway":{"series":99999999,"alarms":[[5000000,true,1],[3]]},"gone":1}})"));
  EXPECT_EQ(r.evaluator().last_step(), 7u);
  EXPECT_EQ(r.evaluator().active_alarms(), 0u);
  EXPECT_THROW(r.evaluator().Load(nlohmann::json::parse(R"({"version":1,"rules":{"nonfinite":{"switches":"x"}}})")),
               nlohmann::json::exception);
}

// Case C23 and E23: going back closes alarms and starts history anew; an end is not a recovery.
TEST(Evaluator, RestartAndEndCloseAlarms) {
  Replay r;
  for (uint64_t step = 300; step < 310; ++step) r.Feed(step, {{"max_attention_logit", {30, 300, 30}}, {"loss", {1.0}}});
  r.Take(r.evaluator().Restart(250));
  ASSERT_THAT(r.Of("logit_runaway", Kind::kResolved), SizeIs(1));
  EXPECT_THAT(r.Of("logit_runaway", Kind::kResolved)[0].message, HasSubstr("started again at step 250"));
  for (uint64_t step = 250; step < 400; ++step) r.Feed(step, {{"max_attention_logit", {30, 40, 30}}, {"loss", {1.9}}});
  EXPECT_THAT(r.Alerts(v1::SEVERITY_INFO), SizeIs(1));  // the jump back is none
  for (uint64_t step = 400; step < 410; ++step) r.Feed(step, {{"max_attention_logit", {30, 300, 30}}});
  r.Take(r.evaluator().End("closed: the run ended, it had not recovered"));
  EXPECT_THAT(r.Of("logit_runaway", Kind::kResolved).back().message, HasSubstr("the run ended, it had not recovered"));
  EXPECT_EQ(r.evaluator().active_alarms(), 0u);
}

TEST(Evaluator, LossScalerOverflowIsNoAlarm) {
  Replay r;
  for (uint64_t step = 1; step < 300; ++step) {
    const bool overflow = step % 100 < 5;
    r.Feed(step, {{"loss", {2.0}}, {"grad_norm", {overflow ? kNan : 1.0}}, {"loss_scale", {65536}}});
  }
  EXPECT_THAT(r.Alerts(v1::SEVERITY_INFO), IsEmpty());
  for (uint64_t step = 300; step < 330; ++step) {
    r.Feed(step, {{"loss", {2.0}}, {"grad_norm", {kNan}}, {"loss_scale", {1024}}});
  }
  EXPECT_THAT(r.Steps("nonfinite"), ElementsAre(320));
}

TEST(Evaluator, MissingRanksAreNamed) {
  Replay r;
  const int64_t second = 1'000'000'000;
  for (int64_t now = 0; now < 100; ++now) r.Take(r.evaluator().Look(now * second, {3, 5}, 2, 6));
  ASSERT_THAT(r.Of("missing_rank"), SizeIs(1));
  EXPECT_THAT(r.Of("missing_rank")[0].message, HasSubstr("2 ranks of the job are not connected"));
  EXPECT_EQ(r.Of("missing_rank")[0].evidence["missing_ranks"], (std::vector<uint32_t>{3, 5}));
  r.Take(r.evaluator().Look(101 * second, {}, 0, 8));
  EXPECT_THAT(r.Of("missing_rank", Kind::kResolved), SizeIs(1));
}

// The same steps give the same decisions: a decision can be made again from what is stored.
TEST(Evaluator, IsDeterministic) {
  std::string texts[2];
  for (std::string& text : texts) {
    Replay r;
    for (const LogLine& l : ReadLog("two_bit_standard.csv")) r.Feed(l.step, l.values);
    for (const char* rule : {"logit_runaway", "spectral_growth_q", "loss_explosion", "loss_spike"}) {
      for (const Decision& d : r.Of(rule)) text += d.message + d.evidence.dump();
    }
  }
  EXPECT_FALSE(texts[0].empty());
  EXPECT_EQ(texts[0], texts[1]);
}

}  // namespace
}  // namespace trimtab::server
