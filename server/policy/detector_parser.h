// The `detector:` part of a rule: one mapping with one key, the detector's name.
#ifndef TRIMTAB_SERVER_POLICY_DETECTOR_PARSER_H_
#define TRIMTAB_SERVER_POLICY_DETECTOR_PARSER_H_

#include <optional>

#include "server/policy/policy.h"
#include "server/policy/yaml_map.h"

namespace trimtab::server {

// Empty when the detector is unknown; problems are reported either way.
std::optional<DetectorParams> ParseDetector(const YAML::Node& node, Problems* problems);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTOR_PARSER_H_
