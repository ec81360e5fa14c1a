// What the evaluation of a step can ask for. The engine turns decisions into events and switch requests; a backtest
// only counts them.
#ifndef TRIMTAB_SERVER_POLICY_DECISION_H_
#define TRIMTAB_SERVER_POLICY_DECISION_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/policy/policy.h"

namespace trimtab::server {

struct Decision {
  enum class Kind { kAlert, kResolved, kSwitch, kPropose, kRollback };
  Kind kind = Kind::kAlert;
  size_t rule = 0;                // index into Policy::rules
  std::optional<uint32_t> layer;  // alert, resolved: of a layer rule
  std::vector<uint32_t> layers;   // switch, propose: what to switch; empty: all
  uint64_t step = 0;
  v1::Severity severity = v1::SEVERITY_INFO;
  std::string message;
  nlohmann::json evidence;
};

// What the policy has to know of a run beside its steps.
struct RunFacts {
  bool act = false;                   // every rank's owner allowed switches
  std::vector<v1::KernelMode> modes;  // by layer; empty: not known
  std::vector<std::string> layer_names;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DECISION_H_
