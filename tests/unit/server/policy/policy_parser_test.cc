#include "server/policy/policy_parser.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "server/policy/describe.h"

namespace trimtab::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// The first problem of `yaml` as "line:column message".
std::string First(const std::string& yaml) {
  const PolicyCheck check = CheckPolicyYaml(yaml);
  if (check.problems.empty()) return "";
  const v1::PolicyProblem& p = check.problems[0];
  return absl::StrCat(p.line(), ":", p.column(), " ", p.message());
}

std::string Rule(const std::string& lines) { return "version: 1\nrules:\n  - name: r\n" + lines; }

TEST(PolicyParser, DefaultPolicyIsTheFileInDeploy) {
  std::ifstream in(std::string(TRIMTAB_POLICY_FOLDER) + "/default.yaml");
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(DefaultPolicyYaml(), text.str());
  const auto policy = ParsePolicy(DefaultPolicyYaml());
  ASSERT_TRUE(policy.ok()) << policy.status();
  const auto& runaway = policy->rules[0];
  EXPECT_EQ(runaway.name, "logit_runaway");
  EXPECT_EQ(std::get<ThresholdParams>(runaway.detector).above, 200);
  EXPECT_EQ(runaway.for_samples, 3u);
  EXPECT_EQ(runaway.severity, v1::SEVERITY_CRITICAL);
  EXPECT_EQ(runaway.action.kind, ActionKind::kSwitch);
  EXPECT_EQ(runaway.action.mode, v1::KERNEL_MODE_STABILIZED);
  EXPECT_EQ(runaway.scope, Scope::kLayersThatFired);
  ASSERT_TRUE(runaway.guard.has_value());
  // A slow machine is no reason to give up the run.
  EXPECT_FALSE(runaway.guard->step_time_factor_max > 0);
  // Only max_attention_logit switches; tie counts never alarm.
  for (const auto& rule : policy->rules) {
    const bool logit = rule.name == "logit_runaway" || rule.name == "logit_growth";
    EXPECT_EQ(rule.action.kind, logit ? ActionKind::kSwitch : ActionKind::kAlert) << rule.name;
    for (const std::string& s : rule.signals)
      EXPECT_THAT(s, Not(testing::AnyOf(HasSubstr("tie"), HasSubstr("repeated"))));
  }
}

TEST(PolicyParser, EveryExampleInDeployIsValid) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TRIMTAB_POLICY_FOLDER)) {
    if (entry.path().extension() != ".yaml") continue;
    std::ifstream in(entry.path());
    std::stringstream text;
    text << in.rdbuf();
    const auto policy = ParsePolicy(text.str(), entry.path().filename());
    EXPECT_TRUE(policy.ok()) << policy.status();
    if (policy.ok()) {
      EXPECT_THAT(PolicySummary(*policy), Not(HasSubstr("warning: line"))) << entry.path();
    }
    ++files;
  }
  EXPECT_GE(files, 2u);
}

TEST(PolicyParser, WatchOnlyIsTheDefaultWithoutActions) {
  std::ifstream in(std::string(TRIMTAB_POLICY_FOLDER) + "/watch_only.yaml");
  std::stringstream text;
  text << in.rdbuf();
  const auto watch = ParsePolicy(text.str());
  const auto acts = ParsePolicy(DefaultPolicyYaml());
  ASSERT_TRUE(watch.ok() && acts.ok());
  ASSERT_EQ(watch->rules.size(), acts->rules.size());
  for (size_t i = 0; i < acts->rules.size(); ++i) {
    EXPECT_EQ(watch->rules[i].name, acts->rules[i].name);
    EXPECT_EQ(DetectorJson(watch->rules[i].detector), DetectorJson(acts->rules[i].detector)) << acts->rules[i].name;
    EXPECT_EQ(watch->rules[i].for_samples, acts->rules[i].for_samples);
    EXPECT_EQ(watch->rules[i].severity, acts->rules[i].severity);
    EXPECT_EQ(watch->rules[i].action.kind, ActionKind::kAlert);
  }
}

TEST(PolicyParser, EveryDetectorReads) {
  const auto policy = ParsePolicy(R"(
version: 1
rules:
  - {name: a, signal: x_1, detector: {threshold: {below: 0.5, clear_above: 0.6}}}
  - {name: b, signal: spectral_norm_q, detector: {ratio_to_median: {factor: 5, at_least: 2}}}
  - {name: c, signal: loss, detector: {zscore: {sigmas: 9, window_samples: 16, side: both}}}
  - {name: d, signal: spectral_norm_q, detector: {growth: {factor: 1.5, reference: minimum, pack_factor: 2}},
     action: {propose: {mode: paper}}, scope: layers_that_fired}
  - {name: e, signal: loss, detector: {cusum: {baseline_samples: 10}}}
  - {name: f, signal: delta_residual_sum, detector: {sign_persistence: {share: 0.95}}}
  - {name: g, signals: [loss, grad_norm], detector: nonfinite}
  - {name: h, signal: loss, detector: {explosion: {rise: 1}}, action: {switch: {mode: stabilized}}, scope: all,
     guard: {watch_steps: 10, loss_worse_by: 0.25, loss_worse_for_samples: 5, nonfinite_loss: false}}
  - {name: i, detector: stall}
  - {name: j, detector: {missing_rank: {at_least_seconds: 5}}, severity: critical}
  - {name: k, signal: loss, detector: {missing_signal: }}
)");
  ASSERT_TRUE(policy.ok()) << policy.status();
  ASSERT_THAT(policy->rules, SizeIs(11));
  EXPECT_EQ(std::get<ThresholdParams>(policy->rules[0].detector).below, 0.5);
  EXPECT_EQ(std::get<RatioToMedianParams>(policy->rules[1].detector).at_least, 2);
  EXPECT_EQ(std::get<ZScoreParams>(policy->rules[2].detector).side, ZScoreParams::Side::kBoth);
  EXPECT_EQ(std::get<ZScoreParams>(policy->rules[2].detector).min_samples, 16u);  // not more than the window
  EXPECT_EQ(std::get<GrowthParams>(policy->rules[3].detector).reference, GrowthParams::Reference::kMinimum);
  EXPECT_EQ(policy->rules[3].action.mode, v1::KERNEL_MODE_PAPER);
  EXPECT_EQ(policy->rules[3].line, 7u);
  EXPECT_THAT(policy->rules[6].signals, SizeIs(2));
  EXPECT_EQ(policy->rules[7].scope, Scope::kAll);
  EXPECT_FALSE(policy->rules[7].guard->nonfinite_loss);
  const char* names[] = {"threshold", "ratio_to_median", "zscore", "growth",       "cusum",         "sign_persistence",
                         "nonfinite", "explosion",       "stall",  "missing_rank", "missing_signal"};
  for (size_t i = 0; i < 11; ++i) {
    EXPECT_STREQ(DetectorName(policy->rules[i].detector), names[i]);
    EXPECT_EQ(DetectorJson(policy->rules[i].detector)["name"], names[i]);
    EXPECT_FALSE(DescribeDetector(policy->rules[i].detector).empty());
  }
  const std::string summary = PolicySummary(*policy);
  EXPECT_THAT(summary, HasSubstr("a: x_1 below 0.5 -> warning alert."));
  EXPECT_THAT(summary, HasSubstr("switch all layers to stabilized (at most 8 times a run), rolled back"));
  // Case E24: a rule on a metric that nobody reports is kept, and warned about.
  EXPECT_THAT(summary, HasSubstr("warning: line 4: no agent of this version reports 'x_1'"));
}

TEST(PolicyParser, UnknownKeysAreNamedWithTheirPlace) {
  EXPECT_EQ(First(Rule("    signal: loss\n    detector: {threshold: {abov: 2}}\n")),
            "5:16 detector threshold: give either 'above' or 'below'.");
  EXPECT_THAT(CheckPolicyYaml(Rule("    signal: loss\n    detector: {threshold: {abov: 2}}\n")).problems[1].message(),
              HasSubstr("Unknown key 'abov' in detector threshold. Did you mean 'above'?"));
  EXPECT_EQ(First(Rule("    signal: loss\n    detector: nonfinite\n    sevirity: info\n")),
            "6:5 Unknown key 'sevirity' in rule. Did you mean 'severity'?");
  EXPECT_EQ(First("version: 1\nrulez: []\n"), "1:1 the policy needs 'rules'.");
  EXPECT_EQ(First(Rule("    signal: loss\n    detector: {treshold: {above: 2}}\n")),
            "5:16 Unknown detector 'treshold'. Did you mean 'threshold'?");
  EXPECT_THAT(First(Rule("    signal: loss\n    detector: nonfinite\n    severity: fatal\n")),
              HasSubstr("6:15 'severity' must be one of info, warning, critical, not 'fatal'."));
}

TEST(PolicyParser, BadValuesAreNamedWithTheirPlace) {
  const auto threshold = [](const std::string& v) {
    return First(Rule("    signal: loss\n    detector: {threshold: {above: " + v + "}}\n"));
  };
  EXPECT_EQ(threshold("1"), "");
  EXPECT_THAT(threshold(".nan"), HasSubstr("'above' must be a number, not '.nan'"));
  EXPECT_THAT(threshold("nan"), HasSubstr("'above' must be a number"));
  EXPECT_THAT(threshold("1e999"), HasSubstr("'above' must be a number"));
  EXPECT_THAT(threshold("\"200\""), HasSubstr("not the text '200'"));
  EXPECT_THAT(threshold("[1]"), HasSubstr("not a list"));
  EXPECT_THAT(threshold("~"), HasSubstr("'above' must be a number"));
  EXPECT_EQ(First(Rule("    signal: loss\n    detector: nonfinite\n    for_samples: -3\n")),
            "6:18 'for_samples' must be a whole number, not '-3'.");
  EXPECT_EQ(First(Rule("    signal: loss\n    detector: nonfinite\n    for_seconds: 86401\n")),
            "6:18 'for_seconds' must lie between 0 and 86400, not 86401.");
  EXPECT_EQ(First(Rule("    signal: loss\n    detector: nonfinite\n    for_samples: 0\n")),
            "6:18 'for_samples' must lie between 1 and 100000, not 0.");
  EXPECT_THAT(First(Rule("    signal: loss\n    detector: {growth: {factor: 0.5}}\n")),
              HasSubstr("'factor' must lie between 1 and"));
  EXPECT_THAT(First(Rule("    signal: loss\n    detector: {zscore: {window_samples: 100000}}\n")),
              HasSubstr("between 2 and 4096"));
  EXPECT_THAT(First(Rule("    signal: loss\n    detector: {threshold: {above: 2, clear_below: 3}}\n")),
              HasSubstr("'clear_below' goes with 'above' and may not exceed it"));
}

TEST(PolicyParser, RulesThatMakeNoSenseAreRefused) {
  EXPECT_EQ(First(Rule("    detector: {threshold: {above: 2}}\n")), "3:5 rule needs 'signal', the metric to watch.");
  EXPECT_THAT(First(Rule("    signal: loss\n    detector: stall\n")), HasSubstr("The detector stall takes no signal."));
  EXPECT_THAT(First(Rule("    signals: [loss, grad_norm]\n    detector: {threshold: {above: 2}}\n")),
              HasSubstr("Only the detector nonfinite takes several signals."));
  EXPECT_THAT(First(Rule("    signal: loss\n    detector: nonfinite\n    action: {switch: {mode: stabilized}}\n")),
              HasSubstr("can only switch all layers: say scope: all"));
  EXPECT_THAT(First(Rule("    signal: loss\n    detector: nonfinite\n    guard: {watch_steps: 3}\n")),
              HasSubstr("'guard' watches a switch; this rule's action is alert."));
  EXPECT_THAT(First(Rule("    signal: \"lo ss\"\n    detector: nonfinite\n")), HasSubstr("A signal is a metric name"));
  EXPECT_THAT(First("version: 1\nrules:\n  - {name: a, signal: loss, detector: nonfinite}\n"
                    "  - {name: a, signal: loss, detector: nonfinite}\n"),
              HasSubstr("4:12 There is a rule 'a' already."));
  EXPECT_THAT(First("version: 2\nrules: []\n"), HasSubstr("1:10 'version' must lie between 1 and 1"));
  EXPECT_THAT(First("version: 1\nrules: []\nrules: []\n"), HasSubstr("Key 'rules' comes twice"));
  EXPECT_THAT(First("[]"), HasSubstr("the policy must be a mapping"));
  EXPECT_THAT(First(""), HasSubstr("the policy must be a mapping"));
  EXPECT_THAT(First("version: 1\nrules:\n  - 3\n"), HasSubstr("3:5 rule must be a mapping"));
}

TEST(PolicyParser, BoundsHold) {
  std::string many = "version: 1\nrules:\n";
  for (size_t i = 0; i <= kMaxRules; ++i)
    absl::StrAppend(&many, "  - {name: r", i, ", signal: loss, detector: nonfinite}\n");
  EXPECT_THAT(First(many), HasSubstr("at most 64 rules, not 65"));
  EXPECT_THAT(First(std::string(kMaxPolicyBytes + 1, ' ')), HasSubstr("longer than"));
  std::string keys = "version: 1\nrules: []\n";
  for (int i = 0; i < 300; ++i) absl::StrAppend(&keys, "k", i, ": 1\n");
  EXPECT_THAT(CheckPolicyYaml(keys).problems, SizeIs(100));
}

TEST(PolicyParser, BrokenYamlIsAProblemNotAnException) {
  EXPECT_THAT(First("version: 1\nrules: [\n"), HasSubstr("Not YAML"));
  EXPECT_THAT(First("version: 1\nrules: {a: *nowhere}\n"), HasSubstr("Not YAML"));
  EXPECT_THAT(First(std::string("\0\1\2", 3)), Not(IsEmpty()));
  EXPECT_THAT(First(std::string(5000, '[')), Not(IsEmpty()));
  const absl::StatusOr<Policy> policy = ParsePolicy("version: 1\nrules: 3\nx: 1\n", "mine.yaml");
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(policy.status().message(), "mine.yaml:2:8: 'rules' must be a list. (and 1 more)");
}

}  // namespace
}  // namespace trimtab::server
