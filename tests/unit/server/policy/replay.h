// Runs a policy over a series or a log file, and remembers what it decided.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_POLICY_REPLAY_H_
#define TRIMTAB_TESTS_UNIT_SERVER_POLICY_REPLAY_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "server/policy/evaluator.h"
#include "server/policy/policy_parser.h"

namespace trimtab::server {

using Values = std::map<std::string, std::vector<double>>;  // one value: a scalar; several: by layer

class Replay {
 public:
  explicit Replay(const std::string& yaml = DefaultPolicyYaml()) {
    auto parsed = ParsePolicy(yaml);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    policy_ = *std::move(parsed);
    table_ = std::make_unique<SignalTable>(policy_);
    evaluator_ = std::make_unique<RunEvaluator>(&policy_, table_.get());
  }

  void Feed(uint64_t step, const Values& values, int64_t now_unix_nanos = 0) {
    StepCells cells;
    cells.step = step;
    cells.ranks = 1;
    cells.time_unix_nanos = now_unix_nanos;
    cells.signals.resize(table_->size());
    for (const auto& [name, list] : values) {
      const auto i = table_->Find(name);
      if (!i || list.empty()) continue;
      SignalCells& s = cells.signals[*i];
      s.present = true;
      s.layered = list.size() > 1;
      for (const double v : list) {
        Cell c;
        c.value = std::isnan(v) ? kNotKnown : v;
        c.values = std::isnan(v) ? 0 : 1;
        c.nonfinite = std::isfinite(v) ? 0 : 1;
        s.cells.push_back(c);
      }
    }
    Take(evaluator_->Evaluate(cells, now_unix_nanos));
  }
  void Take(std::vector<Decision> decisions) {
    for (Decision& d : decisions) decisions_.push_back(std::move(d));
  }

  std::vector<Decision> Of(const std::string& rule, Decision::Kind kind = Decision::Kind::kAlert) const {
    std::vector<Decision> found;
    for (const Decision& d : decisions_) {
      if (policy_.rules[d.rule].name == rule && d.kind == kind) found.push_back(d);
    }
    return found;
  }
  std::vector<uint64_t> Steps(const std::string& rule, Decision::Kind kind = Decision::Kind::kAlert) const {
    std::vector<uint64_t> steps;
    for (const Decision& d : Of(rule, kind)) steps.push_back(d.step);
    return steps;
  }
  // Alerts of at least this severity, as "rule@step".
  std::vector<std::string> Alerts(v1::Severity least) const {
    std::vector<std::string> found;
    for (const Decision& d : decisions_) {
      if (d.kind != Decision::Kind::kAlert || d.severity < least) continue;
      found.push_back(policy_.rules[d.rule].name + "@" + std::to_string(d.step));
    }
    return found;
  }
  bool AskedForSwitch() const {
    for (const Decision& d : decisions_) {
      if (d.kind == Decision::Kind::kSwitch || d.kind == Decision::Kind::kPropose) return true;
    }
    return false;
  }

  RunEvaluator& evaluator() { return *evaluator_; }
  const Policy& policy() const { return policy_; }
  const SignalTable& table() const { return *table_; }

 private:
  Policy policy_;
  std::unique_ptr<SignalTable> table_;
  std::unique_ptr<RunEvaluator> evaluator_;
  std::vector<Decision> decisions_;
};

struct LogLine {
  std::string segment;
  uint64_t step = 0;
  Values values;
};

// A file of data/: columns `step`, `segment`, metrics, and metrics by layer as name_0, name_1, … Empty: absent.
inline std::vector<LogLine> ReadLog(const std::string& file) {
  std::ifstream in(std::string(TRIMTAB_POLICY_DATA) + "/" + file);
  EXPECT_TRUE(in.good()) << file;
  std::string line, field;
  std::getline(in, line);
  std::vector<std::string> columns;
  for (std::stringstream s(line); std::getline(s, field, ',');) columns.push_back(field);
  std::vector<LogLine> lines;
  while (std::getline(in, line)) {
    LogLine l;
    std::stringstream s(line);
    for (const std::string& column : columns) {
      field.clear();
      std::getline(s, field, ',');
      if (column == "segment")
        l.segment = field;
      else if (column == "step")
        l.step = std::strtoull(field.c_str(), nullptr, 10);
      else if (!field.empty()) {
        const size_t bar = column.find_last_of('_');
        const bool layer = bar + 2 == column.size() && std::isdigit(static_cast<unsigned char>(column.back()));
        l.values[layer ? column.substr(0, bar) : column].push_back(std::strtod(field.c_str(), nullptr));
      }
    }
    lines.push_back(std::move(l));
  }
  return lines;
}

// One series of issue_thread_series.csv.
inline std::vector<LogLine> ReadThread(const std::string& series) {
  std::ifstream in(std::string(TRIMTAB_POLICY_DATA) + "/issue_thread_series.csv");
  std::string line;
  std::map<uint64_t, Values> by_step;
  while (std::getline(in, line)) {
    std::stringstream s(line);
    std::string name, step, metric, value;
    std::getline(s, name, ',');
    std::getline(s, step, ',');
    std::getline(s, metric, ',');
    std::getline(s, value, ',');
    if (name != series) continue;
    Values& values = by_step[std::strtoull(step.c_str(), nullptr, 10)];
    if (!value.empty()) values[metric] = {std::strtod(value.c_str(), nullptr)};
  }
  std::vector<LogLine> lines;
  for (auto& [step, values] : by_step) lines.push_back({"", step, std::move(values)});
  EXPECT_FALSE(lines.empty()) << series;
  return lines;
}

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_POLICY_REPLAY_H_
