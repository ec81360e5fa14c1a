// A rule in words and as JSON, for summaries, alerts and evidence.
#ifndef TRIMTAB_SERVER_POLICY_DESCRIBE_H_
#define TRIMTAB_SERVER_POLICY_DESCRIBE_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "server/policy/policy.h"

namespace trimtab::server {

// "above 200", "at least 4 x its own median over 2000 steps and 100", …
std::string DescribeDetector(const DetectorParams& params);
// How long it must fire, to follow the above: ", 20 samples in a row, for 30 s"; may be empty.
std::string DescribeHold(const Rule& rule);
// Name and every parameter, also those that were left at their default.
nlohmann::json DetectorJson(const DetectorParams& params);
// "native", "observe", "stabilized", "paper", "unknown".
std::string ModeName(v1::KernelMode mode);
// The first `max_bytes` of `text`, without half a character at the end.
std::string ClipUtf8(absl::string_view text, size_t max_bytes);
// At most 6 significant digits; "nan", "inf", "-inf".
std::string NumberText(double value);
// A JSON number; the texts "nan", "inf", "-inf" for what JSON has no number for.
nlohmann::json NumberJson(double value);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DESCRIBE_H_
