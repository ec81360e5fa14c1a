// Policy YAML to values. Every unknown key and bad value is named with its line and column; nothing is guessed.
#ifndef TRIMTAB_SERVER_POLICY_POLICY_PARSER_H_
#define TRIMTAB_SERVER_POLICY_POLICY_PARSER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/policy/policy.h"
#include "trimtab/v1/control.pb.h"

namespace trimtab::server {

struct PolicyCheck {
  Policy policy;                            // meaningful when problems is empty
  std::vector<v1::PolicyProblem> problems;  // in the order of the text, at most 100
};

// Finds all problems of the text. Pure; throws nothing.
PolicyCheck CheckPolicyYaml(const std::string& yaml);

// INVALID_ARGUMENT names the first problem as "<name>:<line>:<column>: <message>" and how many more there are.
absl::StatusOr<Policy> ParsePolicy(const std::string& yaml, const std::string& name = "policy");

// What would be watched and done, in words, one line a rule.
std::string PolicySummary(const Policy& policy);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_POLICY_PARSER_H_
