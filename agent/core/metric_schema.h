// The built-in metric schema: the one list of what an agent can report. Names, units and meaning: docs/ring.md.
// Also reachable through the C ABI (trimtab_metric_info, trimtab_metric_id).
#ifndef TRIMTAB_AGENT_CORE_METRIC_SCHEMA_H_
#define TRIMTAB_AGENT_CORE_METRIC_SCHEMA_H_

#include <cstdint>

#include "trimtab/agent.h"

namespace trimtab::agent {

// Ids are below this; a bit set over ids has this many bits.
inline constexpr uint32_t kMetricIdEnd = 128;

// Values of trimtab.v1.Aggregation.
enum MetricAggregation : int32_t { kMax = 1, kMean = 2, kSum = 3, kLast = 4 };

// nullptr when there is no metric of that id. O(1), thread-safe.
const trimtab_metric* FindMetric(uint32_t id);

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_METRIC_SCHEMA_H_
