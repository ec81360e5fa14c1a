#include "server/policy/policy_parser.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/policy/detector_parser.h"
#include "server/policy/known_signals.h"
#include "server/policy/yaml_map.h"

namespace trimtab::server {
namespace {

constexpr absl::string_view kModes[] = {"native", "observe", "stabilized", "paper"};  // KernelMode - 1

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= 64 && absl::ascii_islower(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_'; });
}

bool IsRunLevel(const DetectorParams& d) {
  return std::holds_alternative<StallParams>(d) || std::holds_alternative<MissingRankParams>(d);
}

void ParseSignals(YamlMap& map, Rule* rule) {
  const auto one = map.Get("signal");
  const auto several = map.Get("signals");
  if (one && several) {
    map.problems()->Add(several->Mark(), "Give either 'signal' or 'signals'.");
    return;
  }
  std::vector<YAML::Node> nodes;
  if (one) nodes.push_back(*one);
  if (several) {
    if (!several->IsSequence() || several->size() == 0 || several->size() > 16) {
      map.problems()->Add(several->Mark(), "'signals' must be a list of 1 to 16 metric names.");
      return;
    }
    for (const auto& n : *several) nodes.push_back(n);
  }
  for (const YAML::Node& n : nodes) {
    if (!n.IsScalar() || !IsName(n.Scalar())) {
      map.problems()->Add(n.Mark(), "A signal is a metric name: small letters, digits and '_', at most 64.");
    } else {
      rule->signals.push_back(n.Scalar());
    }
  }
  if (nodes.size() > 1 && !std::holds_alternative<NonFiniteParams>(rule->detector)) {
    map.problems()->Add(several->Mark(), "Only the detector nonfinite takes several signals.");
  }
  if (nodes.empty() && !IsRunLevel(rule->detector)) {
    map.problems()->Add(map.mark(), absl::StrCat(map.what(), " needs 'signal', the metric to watch."));
  }
  if (!nodes.empty() && IsRunLevel(rule->detector)) {
    map.problems()->Add(nodes[0].Mark(),
                        absl::StrCat("The detector ", DetectorName(rule->detector), " takes no signal."));
  }
}

void ParseAction(YamlMap& map, Rule* rule) {
  static constexpr absl::string_view kActions[] = {"alert", "propose", "switch"};
  const auto node = map.Get("action");
  if (!node) return;
  // reset(), since assignment would change the document that `node` belongs to.
  YAML::Node word;
  YAML::Node body(YAML::NodeType::Map);
  word.reset(*node);
  if (node->IsMap() && node->size() == 1) {
    word.reset(node->begin()->first);
    if (!node->begin()->second.IsNull()) body.reset(node->begin()->second);
  }
  const auto kind = WordOf(word, "action", kActions, map.problems());
  if (!kind) return;
  rule->action.kind = static_cast<ActionKind>(*kind);
  YamlMap params(body, absl::StrCat("action ", kActions[*kind]), map.problems());
  if (rule->action.kind != ActionKind::kAlert) {
    if (const auto mode = params.Word("mode", kModes)) rule->action.mode = static_cast<v1::KernelMode>(*mode + 1);
  }
  if (rule->action.kind == ActionKind::kSwitch) {
    params.Count("max_switches_per_run", 1, 1000, &rule->action.max_switches_per_run);
  }
  params.Finish();
  const bool whole_run = rule->signals.empty() || std::find(std::begin(kScalarSignals), std::end(kScalarSignals),
                                                            rule->signals[0]) != std::end(kScalarSignals);
  if (rule->action.kind != ActionKind::kAlert && rule->scope == Scope::kLayersThatFired && whole_run) {
    map.problems()->Add(node->Mark(), "A rule without a per-layer signal can only switch all layers: say scope: all.");
  }
}

void ParseGuard(YamlMap& map, Rule* rule) {
  const auto node = map.Get("guard");
  if (!node) return;
  if (rule->action.kind == ActionKind::kAlert) {
    map.problems()->Add(node->Mark(), "'guard' watches a switch; this rule's action is alert.");
  }
  Guard g;
  YamlMap guard(*node, "guard", map.problems());
  guard.Count("watch_steps", 1, 10'000'000, &g.watch_steps);
  guard.Number("loss_worse_by", 0, 1e6, &g.loss_worse_by);
  guard.Count("loss_worse_for_samples", 1, kMaxForSamples, &g.loss_worse_for_samples);
  guard.Number("step_time_factor_max", 0, 1e6, &g.step_time_factor_max);
  guard.Flag("nonfinite_loss", &g.nonfinite_loss);
  guard.Finish();
  rule->guard = g;
}

void ParseRule(const YAML::Node& node, Policy* policy, Problems* problems) {
  Rule rule;
  rule.line = static_cast<uint32_t>(node.Mark().line + 1);
  YamlMap map(node, "rule", problems);
  if (!node.IsMap()) return;
  if (const auto name = map.Need("name")) {
    if (!name->IsScalar() || !IsName(name->Scalar())) {
      problems->Add(name->Mark(), "'name' must be small letters, digits and '_', at most 64, a letter first.");
    } else if (std::any_of(policy->rules.begin(), policy->rules.end(),
                           [&](const Rule& r) { return r.name == name->Scalar(); })) {
      problems->Add(name->Mark(), absl::StrCat("There is a rule '", name->Scalar(), "' already."));
    } else {
      rule.name = name->Scalar();
    }
  }
  map.Text("about", 500, &rule.about);
  const auto detector_node = map.Need("detector");
  std::optional<DetectorParams> detector;
  if (detector_node) detector = ParseDetector(*detector_node, problems);
  if (detector) rule.detector = *detector;
  map.Count("for_samples", 1, kMaxForSamples, &rule.for_samples);
  map.Number("for_seconds", 0, 86400, &rule.for_seconds);
  map.Count("clear_for_samples", 1, kMaxForSamples, &rule.clear_for_samples);
  map.Count("warm_up_steps", 0, 1'000'000'000, &rule.warm_up_steps);
  map.Count("cool_down_steps", 0, 1'000'000'000, &rule.cool_down_steps);
  if (const auto s = map.Word("severity", {"info", "warning", "critical"})) {
    rule.severity = static_cast<v1::Severity>(*s + 1);
  }
  if (const auto s = map.Word("scope", {"layers_that_fired", "all"})) rule.scope = static_cast<Scope>(*s);
  if (detector) {
    ParseSignals(map, &rule);
    ParseAction(map, &rule);
    ParseGuard(map, &rule);
    map.Finish();
  }
  policy->rules.push_back(std::move(rule));
}

void ParseDocument(const YAML::Node& root, Policy* policy, Problems* problems) {
  YamlMap map(root, "the policy", problems);
  if (!root.IsMap()) return;
  uint64_t version = 0;
  if (map.Need("version")) map.Count("version", 1, 1, &version);
  if (const auto rules = map.Need("rules")) {
    if (!rules->IsSequence()) {
      problems->Add(rules->Mark(), "'rules' must be a list.");
    } else if (rules->size() > kMaxRules) {
      problems->Add(rules->Mark(),
                    absl::StrCat("A policy has at most ", kMaxRules, " rules, not ", rules->size(), "."));
    } else {
      for (const auto& r : *rules) ParseRule(r, policy, problems);
    }
  }
  map.Finish();
}

}  // namespace

PolicyCheck CheckPolicyYaml(const std::string& yaml) {
  PolicyCheck check;
  check.policy.yaml = yaml;
  Problems problems;
  if (yaml.size() > kMaxPolicyBytes) {
    problems.Add(YAML::Mark::null_mark(), absl::StrCat("The policy is longer than ", kMaxPolicyBytes, " bytes."));
  } else {
    try {
      ParseDocument(YAML::Load(yaml), &check.policy, &problems);
    } catch (const YAML::Exception& e) {
      problems.Add(e.mark, absl::StrCat("Not YAML: ", e.msg, "."));
    }
  }
  check.problems = problems.Take();
  std::stable_sort(check.problems.begin(), check.problems.end(), [](const auto& a, const auto& b) {
    return std::pair(a.line(), a.column()) < std::pair(b.line(), b.column());
  });
  return check;
}

absl::StatusOr<Policy> ParsePolicy(const std::string& yaml, const std::string& name) {
  PolicyCheck check = CheckPolicyYaml(yaml);
  if (check.problems.empty()) return std::move(check.policy);
  const v1::PolicyProblem& p = check.problems[0];
  const size_t more = check.problems.size() - 1;
  return absl::InvalidArgumentError(absl::StrCat(name, ":", p.line(), ":", p.column(), ": ", p.message(),
                                                 more > 0 ? absl::StrCat(" (and ", more, " more)") : ""));
}

}  // namespace trimtab::server
