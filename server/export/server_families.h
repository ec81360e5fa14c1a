// The series of the server itself.
#ifndef TRIMTAB_SERVER_EXPORT_SERVER_FAMILIES_H_
#define TRIMTAB_SERVER_EXPORT_SERVER_FAMILIES_H_

#include <string>

#include "server/export/series_budget.h"
#include "server/ingest/counters.h"
#include "server/store/store.h"

namespace trimtab::server {

void AddIngestFamilies(const IngestStatistics& ingest, SeriesBudget* budget);
void AddStoreFamilies(const Store::Statistics& store, SeriesBudget* budget);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_EXPORT_SERVER_FAMILIES_H_
