// The series of one run.
#ifndef TRIMTAB_SERVER_EXPORT_RUN_FAMILIES_H_
#define TRIMTAB_SERVER_EXPORT_RUN_FAMILIES_H_

#include <cstddef>
#include <cstdint>

#include "server/export/event_counts.h"
#include "server/export/series_budget.h"
#include "server/registry/registry.h"
#include "trimtab/v1/query.pb.h"

namespace trimtab::server {

// Health first, then scalars, then layers, then heads: what does not fit is the finest.
void AddRunFamilies(const v1::RunState& state, const RunCounts& counts, const EventCounts::OfRun& decisions,
                    size_t top_heads, int64_t now_unix_nanos, SeriesBudget* budget);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_EXPORT_RUN_FAMILIES_H_
