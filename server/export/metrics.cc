#include "server/export/metrics.h"

#include <prometheus/text_serializer.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <utility>

#include "absl/time/clock.h"
#include "server/export/event_counts.h"
#include "server/export/run_families.h"
#include "server/export/series_budget.h"
#include "server/export/server_families.h"

namespace trimtab::server {
namespace {

constexpr double kNanosPerSecond = 1e9;
// Series that are added after the capped ones: trimtab_series, its limit and overflow, and the scrape's own.
constexpr size_t kReservedSeries = 4;

class ExporterImpl final : public MetricsExporter {
 public:
  ExporterImpl(const Registry* registry, const Store* store, MetricsOptions options)
      : registry_(registry),
        store_(store),
        options_(std::move(options)),
        start_unix_seconds_(absl::ToUnixSeconds(absl::Now())) {}

  void OnEvent(const v1::Event& event) override { counts_.Add(event); }

  std::string Render() override {
    const absl::Time start = absl::Now();
    std::string text;
    try {
      text = prometheus::TextSerializer().Serialize(Collect());
    } catch (const std::exception& error) {  // prometheus-cpp throws on bad names and on lack of memory
      spdlog::error("/metrics cannot be rendered: {}", error.what());
    }
    scrape_seconds_ = absl::ToDoubleSeconds(absl::Now() - start);
    return text;
  }

 private:
  std::vector<prometheus::MetricFamily> Collect() const {
    SeriesBudget budget(options_.max_series - std::min(options_.max_series, kReservedSeries));
    AddServer(&budget);
    for (const v1::RunSummary& summary : ShownRuns()) AddRun(summary.run(), &budget);
    left_out_ += budget.left_out();
    SeriesBudget about(kReservedSeries);
    about.Gauge("trimtab_series", "Series on this page.", {}, static_cast<double>(budget.used() + kReservedSeries));
    about.Gauge("trimtab_series_limit", "Most series that this page may have.", {},
                static_cast<double>(options_.max_series));
    about.Counter("trimtab_series_overflow_total", "Series left out of scrapes because of the limit.", {},
                  static_cast<double>(left_out_));
    about.Gauge("trimtab_scrape_seconds", "Time that the scrape before this one took to render.", {}, scrape_seconds_);
    std::vector<prometheus::MetricFamily> families = budget.Take();
    for (prometheus::MetricFamily& family : about.Take()) families.push_back(std::move(family));
    return families;
  }

  void AddServer(SeriesBudget* budget) const {
    budget->Gauge("trimtab_build_info", "1; the label says which version this is.", {{"version", options_.version}}, 1);
    budget->Gauge("trimtab_start_time_seconds", "Unix time at which the server started.", {},
                  static_cast<double>(start_unix_seconds_));
    if (options_.ingest) AddIngestFamilies(options_.ingest(), budget);
    AddStoreFamilies(store_->statistics(), budget);
    budget->Counter("trimtab_registry_refused_total", "Runs and ranks over the registry's limits.", {},
                    static_cast<double>(registry_->refused()));
    for (const ExtraMetric& extra : options_.extra) {
      if (extra.counter) {
        budget->Counter(extra.name.c_str(), extra.help.c_str(), {}, extra.read());
      } else {
        budget->Gauge(extra.name.c_str(), extra.help.c_str(), {}, extra.read());
      }
    }
  }

  // Most recently seen first, so that a cap hits the oldest.
  std::vector<v1::RunSummary> ShownRuns() const {
    const int64_t now = absl::GetCurrentTimeNanos();
    std::vector<v1::RunSummary> runs = registry_->Summaries();
    std::erase_if(runs, [&](const v1::RunSummary& run) {
      const double age = static_cast<double>(now - run.last_seen_unix_nanos()) / kNanosPerSecond;
      if (run.ranks_connected() > 0) return false;
      return age > (run.status() == "finished" ? options_.keep_finished_seconds : options_.keep_silent_seconds);
    });
    std::sort(runs.begin(), runs.end(), [](const v1::RunSummary& a, const v1::RunSummary& b) {
      if (a.last_seen_unix_nanos() != b.last_seen_unix_nanos())
        return a.last_seen_unix_nanos() > b.last_seen_unix_nanos();
      return a.run() < b.run();
    });
    return runs;
  }

  void AddRun(const std::string& run, SeriesBudget* budget) const {
    const auto state = registry_->Snapshot(run, /*with_ranks=*/false);
    if (!state.ok()) return;
    AddRunFamilies(*state, registry_->Counts(run), counts_.Of(run), options_.top_heads, absl::GetCurrentTimeNanos(),
                   budget);
  }

  const Registry* const registry_;
  const Store* const store_;
  const MetricsOptions options_;
  const int64_t start_unix_seconds_;
  EventCounts counts_{options_.rules};
  mutable std::atomic<uint64_t> left_out_{0};
  std::atomic<double> scrape_seconds_{0};
};

}  // namespace

std::unique_ptr<MetricsExporter> MetricsExporter::Create(const Registry* registry, const Store* store,
                                                         MetricsOptions options) {
  return std::make_unique<ExporterImpl>(registry, store, std::move(options));
}

}  // namespace trimtab::server
