// The server's /metrics page, in the Prometheus text format. Names and meaning: docs/operations.md, "Metrics".
//
// Everything is read at scrape time from the folded state that the registry keeps; nothing here is on the way of a
// step. A training step is never a label. Per layer there is one series a metric, per head only the top
// `top_heads` of each run, and all series together are capped: what does not fit is left out, newest runs last, and
// counted in trimtab_series_overflow_total. Thread-safe.
#ifndef TRIMTAB_SERVER_EXPORT_METRICS_H_
#define TRIMTAB_SERVER_EXPORT_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/ingest/counters.h"
#include "server/model/roles.h"
#include "server/registry/registry.h"
#include "server/store/store.h"

namespace trimtab::server {

// A counter or gauge of another room, read at each scrape.
struct ExtraMetric {
  std::string name;  // trimtab_…; counters end in _total
  std::string help;
  bool counter = true;
  std::function<double()> read;  // thread-safe
};

struct MetricsOptions {
  size_t max_series = 10000;
  size_t top_heads = 8;
  // How long a run stays on the page after its last step: when it finished, and when it fell silent or was lost.
  double keep_finished_seconds = 3600;
  double keep_silent_seconds = 86400;
  std::string version;
  std::vector<std::string> rules;            // of the policy; their alert counters exist from the first step of a run
  std::function<IngestStatistics()> ingest;  // may be null
  std::vector<ExtraMetric> extra;
};

// Listens to the audit log for what it counts (alerts, switches). Register it with Store::AddEventListener.
class MetricsExporter : public EventListener {
 public:
  // `registry` and `store` outlive the exporter.
  static std::unique_ptr<MetricsExporter> Create(const Registry* registry, const Store* store, MetricsOptions options);

  // One scrape. Costs about 1 µs a series. Never throws.
  virtual std::string Render() = 0;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_EXPORT_METRICS_H_
