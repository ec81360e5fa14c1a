#include "server/export/series_budget.h"

#include <limits>

namespace trimtab::server {

prometheus::ClientMetric* SeriesBudget::Add(const char* name, const char* help, prometheus::MetricType type,
                                            Labels labels, size_t series) {
  if (used_ + series > limit_) {
    left_out_ += series;
    return nullptr;
  }
  used_ += series;
  const auto [at, added] = index_.try_emplace(name, families_.size());
  if (added) families_.push_back({.name = name, .help = help, .type = type, .metric = {}});
  prometheus::ClientMetric& metric = families_[at->second].metric.emplace_back();
  for (auto& [label, value] : labels) metric.label.push_back({label, std::move(value)});
  return &metric;
}

void SeriesBudget::Gauge(const char* name, const char* help, Labels labels, double value) {
  if (auto* metric = Add(name, help, prometheus::MetricType::Gauge, std::move(labels), 1)) metric->gauge.value = value;
}

void SeriesBudget::Counter(const char* name, const char* help, Labels labels, double value) {
  if (auto* metric = Add(name, help, prometheus::MetricType::Counter, std::move(labels), 1)) {
    metric->counter.value = value;
  }
}

void SeriesBudget::Histogram(const char* name, const char* help, Labels labels, const double* bounds,
                             const uint64_t* counts, size_t buckets, double sum) {
  auto* metric = Add(name, help, prometheus::MetricType::Histogram, std::move(labels), HistogramSeries(buckets));
  if (metric == nullptr) return;
  uint64_t cumulative = 0;
  for (size_t i = 0; i <= buckets; ++i) {
    cumulative += counts[i];
    prometheus::ClientMetric::Bucket bucket;
    bucket.cumulative_count = cumulative;
    bucket.upper_bound = i < buckets ? bounds[i] : std::numeric_limits<double>::infinity();
    metric->histogram.bucket.push_back(bucket);
  }
  metric->histogram.sample_count = cumulative;
  metric->histogram.sample_sum = sum;
}

std::vector<prometheus::MetricFamily> SeriesBudget::Take() {
  index_.clear();
  return std::exchange(families_, {});
}

}  // namespace trimtab::server
