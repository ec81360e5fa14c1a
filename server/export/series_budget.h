// Builds metric families under one cap on the number of series of a scrape.
#ifndef TRIMTAB_SERVER_EXPORT_SERIES_BUDGET_H_
#define TRIMTAB_SERVER_EXPORT_SERIES_BUDGET_H_

#include <prometheus/metric_family.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trimtab::server {

using Labels = std::vector<std::pair<const char*, std::string>>;

// Series that one histogram with `buckets` finite bounds makes in the text format: buckets, +Inf, sum, count.
inline constexpr size_t HistogramSeries(size_t buckets) { return buckets + 3; }

// Of one scrape and one thread.
class SeriesBudget {
 public:
  explicit SeriesBudget(size_t limit) : limit_(limit) {}

  // Each adds one series to the family `name`, made at its first use, or counts it as left out. For histograms
  // `counts` are not cumulative and have one entry more than `bounds`.
  void Gauge(const char* name, const char* help, Labels labels, double value);
  void Counter(const char* name, const char* help, Labels labels, double value);
  void Histogram(const char* name, const char* help, Labels labels, const double* bounds, const uint64_t* counts,
                 size_t buckets, double sum);

  size_t used() const { return used_; }
  size_t left_out() const { return left_out_; }
  // In order of first use. The budget is empty afterwards.
  std::vector<prometheus::MetricFamily> Take();

 private:
  // nullptr when `series` more do not fit.
  prometheus::ClientMetric* Add(const char* name, const char* help, prometheus::MetricType type, Labels labels,
                                size_t series);

  const size_t limit_;
  size_t used_ = 0, left_out_ = 0;
  std::vector<prometheus::MetricFamily> families_;
  std::map<std::string, size_t> index_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_EXPORT_SERIES_BUDGET_H_
