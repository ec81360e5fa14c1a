#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/status/status.h"
#include "server/http/api.h"
#include "server/http/curve.h"
#include "server/http/fold.h"
#include "server/http/json_writer.h"

namespace trimtab::server {
namespace {

constexpr size_t kDefaultPoints = 500;
constexpr uint32_t kRowsBetweenClockReads = 64;

struct SeriesQuery {
  std::string run, metric;
  uint32_t rank = 0;
  std::optional<uint64_t> layer, head;
  uint64_t from = 0, to = std::numeric_limits<uint64_t>::max();
  size_t points = kDefaultPoints;  // of each curve
};

absl::StatusOr<SeriesQuery> ParseQuery(const ApiContext& context, const QueryParams& params) {
  TRIMTAB_RETURN_IF_ERROR(params.Check({"run", "metric", "rank", "layer", "head", "from", "to", "points"}));
  constexpr uint64_t kMax32 = std::numeric_limits<uint32_t>::max();
  constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();
  SeriesQuery query;
  TRIMTAB_ASSIGN_OR_RETURN(query.run, params.RequiredText("run"));
  TRIMTAB_ASSIGN_OR_RETURN(query.metric, params.RequiredText("metric"));
  TRIMTAB_ASSIGN_OR_RETURN(const auto rank, params.Uint("rank", kMax32));
  TRIMTAB_ASSIGN_OR_RETURN(query.layer, params.Uint("layer", kMax32));
  TRIMTAB_ASSIGN_OR_RETURN(query.head, params.Uint("head", kMax32));
  TRIMTAB_ASSIGN_OR_RETURN(const auto from, params.Uint("from", kMax64));
  TRIMTAB_ASSIGN_OR_RETURN(const auto to, params.Uint("to", kMax64));
  TRIMTAB_ASSIGN_OR_RETURN(const auto points, params.Uint("points", context.options->max_points));
  query.rank = static_cast<uint32_t>(rank.value_or(0));
  query.from = from.value_or(0);
  query.to = to.value_or(query.to);
  query.points = points.value_or(kDefaultPoints);
  if (query.from > query.to) return absl::InvalidArgumentError("parameter 'from' is above 'to'");
  if (query.head.has_value() && !query.layer.has_value()) {
    return absl::InvalidArgumentError("parameter 'head' needs 'layer'");
  }
  return query;
}

absl::StatusOr<v1::MetricDescriptor> FindMetric(const StoredRun& run, const SeriesQuery& query) {
  std::vector<std::string> names;
  for (const v1::MetricDescriptor& metric : run.metrics) {
    names.push_back(metric.name());
    if (metric.name() != query.metric) continue;
    if (query.layer.has_value() && metric.axes_size() < 1) {
      return absl::InvalidArgumentError(absl::StrCat("metric '", metric.name(), "' has no layers"));
    }
    if (query.head.has_value() && metric.axes_size() < 2) {
      return absl::InvalidArgumentError(absl::StrCat("metric '", metric.name(), "' has no heads"));
    }
    return metric;
  }
  return absl::NotFoundError(
      absl::StrCat("run has no metric '", query.metric.substr(0, 64), "'; it has: ", absl::StrJoin(names, ", ")));
}

// Curves of one incarnation: one for each layer, or the one asked for.
struct Life {
  uint64_t incarnation = 0;
  uint64_t rows = 0;
  std::vector<MinMaxCurve> curves;
};

class SeriesReader {
 public:
  SeriesReader(const ApiContext& context, const SeriesQuery& query, const v1::MetricDescriptor& metric)
      : context_(context), query_(query), metric_(metric), start_(std::chrono::steady_clock::now()) {}

  // False ends the reading: out of time.
  bool Visit(const Store::Row& row) {
    if (lives_.empty() || lives_.back().incarnation != row.incarnation) {
      lives_.push_back({row.incarnation, 0, {}});
      if (lives_.size() > kMaxIncarnations) {
        lives_.pop_front();
        ++left_out_;
      }
    }
    const uint32_t layers = query_.layer.has_value() ? 1 : ShapeOf(row.block).layers;
    most_layers_ = std::max(most_layers_, ShapeOf(row.block).layers);
    most_heads_ = std::max(most_heads_, ShapeOf(row.block).heads);
    ++lives_.back().rows;
    std::vector<MinMaxCurve>& curves = lives_.back().curves;
    const size_t points = std::min<size_t>(query_.points, context_.options->max_points / std::max(layers, 1U));
    while (curves.size() < layers) curves.emplace_back(points);
    for (uint32_t i = 0; i < layers; ++i) {
      const auto layer = static_cast<uint32_t>(query_.layer.value_or(i));
      if (layer >= ShapeOf(row.block).layers) continue;
      const auto head = query_.head.has_value() ? std::optional(static_cast<uint32_t>(*query_.head)) : std::nullopt;
      const float value = FoldLayer(row.block, metric_.aggregation(), layer, head);
      const bool no_sample = metric_.axes_size() > 0 && std::isnan(value);
      if (!no_sample) curves[i].Add(row.step, value);
    }
    last_step_ = row.step;
    if (++rows_ % kRowsBetweenClockReads != 0) return true;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
    truncated_ = spent.count() > context_.options->max_query_seconds;
    return !truncated_;
  }

  bool LayerMissing() const { return rows_ > 0 && query_.layer.has_value() && *query_.layer >= most_layers_; }
  bool HeadMissing() const { return rows_ > 0 && query_.head.has_value() && *query_.head >= most_heads_; }
  uint32_t layers() const { return most_layers_; }
  uint32_t heads() const { return most_heads_; }

  std::string Json() {
    JsonWriter json;
    json.BeginObject().Key("run").String(query_.run).Key("metric").String(metric_.name());
    json.Key("unit").String(metric_.unit()).Key("rank").Uint(query_.rank).Key("rows").Uint(rows_);
    json.Key("truncated").Bool(truncated_).Key("last_step");
    if (rows_ > 0) {
      json.Uint(last_step_);
    } else {
      json.Null();
    }
    json.Key("incarnations_left_out").Uint(left_out_).Key("series").BeginArray();
    uint64_t kept_rows = 0;
    for (const Life& life : lives_) kept_rows += life.rows;
    for (Life& life : lives_) {
      for (size_t i = 0; i < life.curves.size(); ++i) {
        // The lives share the points by their length.
        const double share = static_cast<double>(life.rows) / static_cast<double>(kept_rows);
        life.curves[i].ShrinkTo(static_cast<size_t>(share * static_cast<double>(query_.points)));
        WriteCurve(json, life, i);
      }
    }
    json.EndArray().EndObject();
    return json.Take();
  }

 private:
  void WriteCurve(JsonWriter& json, const Life& life, size_t i) const {
    const std::vector<CurvePoint> points = life.curves[i].Points();
    json.BeginObject().Key("incarnation").String(absl::StrCat(life.incarnation)).Key("layer");
    if (metric_.axes_size() > 0) {
      json.Uint(query_.layer.value_or(i));
    } else {
      json.Null();
    }
    json.Key("head");
    if (query_.head.has_value()) {
      json.Uint(*query_.head);
    } else {
      json.Null();
    }
    json.Key("steps").BeginArray();
    for (const CurvePoint& point : points) json.Uint(point.step);
    json.EndArray().Key("values").BeginArray();
    for (const CurvePoint& point : points) json.Float(point.value);
    json.EndArray().EndObject();
  }

  const ApiContext& context_;
  const SeriesQuery& query_;
  const v1::MetricDescriptor& metric_;
  const std::chrono::steady_clock::time_point start_;
  std::deque<Life> lives_;
  uint64_t rows_ = 0, left_out_ = 0, last_step_ = 0;
  uint32_t most_layers_ = 0, most_heads_ = 0;
  bool truncated_ = false;
};

}  // namespace

absl::StatusOr<std::string> SeriesJson(const ApiContext& context, const QueryParams& params) {
  TRIMTAB_ASSIGN_OR_RETURN(const SeriesQuery query, ParseQuery(context, params));
  TRIMTAB_ASSIGN_OR_RETURN(const StoredRun run, context.store->GetRun(query.run));
  TRIMTAB_ASSIGN_OR_RETURN(const v1::MetricDescriptor metric, FindMetric(run, query));
  if (std::none_of(run.ranks.begin(), run.ranks.end(), [&](const auto& rank) { return rank.rank() == query.rank; })) {
    return absl::NotFoundError(absl::StrCat("run has no rank ", query.rank, "; ", run.ranks.size(), " ranks reported"));
  }
  SeriesReader reader(context, query, metric);
  TRIMTAB_RETURN_IF_ERROR(context.store->ReadRows(query.run, query.metric, query.rank, query.from, query.to,
                                                  [&](const Store::Row& row) { return reader.Visit(row); }));
  if (reader.LayerMissing()) {
    return absl::NotFoundError(
        absl::StrCat("metric '", query.metric, "' has ", reader.layers(), " layers; there is no layer ", *query.layer));
  }
  if (reader.HeadMissing()) {
    return absl::NotFoundError(
        absl::StrCat("metric '", query.metric, "' has ", reader.heads(), " heads; there is no head ", *query.head));
  }
  return reader.Json();
}

}  // namespace trimtab::server
