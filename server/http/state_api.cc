#include <algorithm>
#include <chrono>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/status/status.h"
#include "server/http/api.h"
#include "server/http/json_writer.h"

namespace trimtab::server {
namespace {

double NowUnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const char* AggregationName(v1::Aggregation aggregation) {
  switch (aggregation) {
    case v1::AGGREGATION_MAX:
      return "max";
    case v1::AGGREGATION_MEAN:
      return "mean";
    case v1::AGGREGATION_SUM:
      return "sum";
    default:
      return "last";
  }
}

// Times as seconds; the age by the server's clock, so that a wrong clock in the browser does not matter.
void WriteSummary(JsonWriter& json, const v1::RunSummary& run, double now) {
  const double last_seen = static_cast<double>(run.last_seen_unix_nanos()) * 1e-9;
  json.BeginObject().Key("run").String(run.run()).Key("status").String(run.status());
  json.Key("first_seen_unix_seconds").Double(static_cast<double>(run.first_seen_unix_nanos()) * 1e-9);
  json.Key("last_seen_unix_seconds").Double(last_seen).Key("age_seconds");
  if (run.last_seen_unix_nanos() > 0) {
    json.Double(std::max(0.0, now - last_seen));
  } else {
    json.Null();
  }
  json.Key("last_step").Uint(run.last_step()).Key("world_size").Uint(run.world_size());
  json.Key("ranks_connected").Uint(run.ranks_connected()).Key("loss").Float(run.loss());
  json.Key("act").Bool(run.act()).Key("layers").Uint(run.layers()).EndObject();
}

void WriteStringMap(JsonWriter& json, const google::protobuf::Map<std::string, std::string>& map) {
  json.BeginObject();
  for (const auto& [key, value] : map) json.Key(key).String(value);
  json.EndObject();
}

void WriteRank(JsonWriter& json, const v1::RankInfo& rank) {
  json.BeginObject().Key("rank").Uint(rank.rank()).Key("host").String(rank.host()).Key("pid").Uint(rank.pid());
  json.Key("incarnation").String(absl::StrCat(rank.incarnation())).Key("act").Bool(rank.act());
  json.Key("emulated_storage").String(rank.emulated_storage()).Key("versions");
  WriteStringMap(json, rank.versions());
  json.Key("metadata");
  WriteStringMap(json, rank.metadata());
  json.Key("modes").BeginArray();
  for (const int mode : rank.modes()) json.String(ModeName(static_cast<v1::KernelMode>(mode)));
  json.EndArray().EndObject();
}

void WriteCoverage(JsonWriter& json, const v1::Coverage& coverage) {
  const auto strings = [&](const auto& list) {
    json.BeginArray();
    for (const std::string& text : list) json.String(text);
    json.EndArray();
  };
  json.BeginObject().Key("hooked_ops");
  strings(coverage.hooked_ops());
  json.Key("calls_hooked").Uint(coverage.calls_hooked()).Key("calls_recomputed").Uint(coverage.calls_recomputed());
  json.Key("passed_by").BeginArray();
  for (const v1::PassedBy& passed : coverage.passed_by()) {
    json.BeginObject().Key("op").String(passed.op()).Key("reason").String(passed.reason());
    json.Key("calls").Uint(passed.calls()).EndObject();
  }
  json.EndArray().Key("notes");
  strings(coverage.notes());
  json.Key("errors");
  strings(coverage.errors());
  json.Key("last_sample_step").Uint(coverage.last_sample_step()).EndObject();
}

void WriteLayers(JsonWriter& json, const v1::RankInfo& rank) {
  json.BeginArray();
  for (const v1::LayerInfo& layer : rank.layers()) {
    json.BeginObject().Key("index").Uint(layer.index()).Key("name").String(layer.name());
    json.Key("heads").Uint(layer.heads()).Key("kv_heads").Uint(layer.kv_heads());
    json.Key("head_dim").Uint(layer.head_dim()).Key("op").String(layer.op()).Key("dtype").String(layer.dtype());
    json.EndObject();
  }
  json.EndArray();
}

void WriteMetric(JsonWriter& json, const v1::MetricDescriptor& metric, const v1::Block& block, uint64_t step) {
  json.Key(metric.name()).BeginObject().Key("unit").String(metric.unit()).Key("help").String(metric.help());
  json.Key("aggregation").String(AggregationName(metric.aggregation())).Key("step").Uint(step);
  json.Key("shape").BeginArray();
  for (const uint32_t size : block.shape()) json.Uint(size);
  json.EndArray().Key("values").BeginArray();
  for (const float value : block.float32()) json.Float(value);
  for (const uint64_t value : block.uint64()) json.Uint(value);
  json.EndArray().EndObject();
}

absl::Status CheckMetrics(const v1::RunState& state, const std::set<std::string>& wanted) {
  std::set<std::string> known;
  for (const v1::MetricDescriptor& metric : state.metrics()) known.insert(metric.name());
  for (const std::string& name : wanted) {
    if (known.contains(name)) continue;
    return absl::NotFoundError(
        absl::StrCat("run has no metric '", name.substr(0, 64), "'; it has: ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

const char* ModeName(v1::KernelMode mode) {
  switch (mode) {
    case v1::KERNEL_MODE_NATIVE:
      return "native";
    case v1::KERNEL_MODE_OBSERVE:
      return "observe";
    case v1::KERNEL_MODE_STABILIZED:
      return "stabilized";
    case v1::KERNEL_MODE_PAPER:
      return "paper";
    default:
      return "unknown";
  }
}

absl::StatusOr<std::string> RunsJson(const ApiContext& context, const QueryParams& params) {
  TRIMTAB_RETURN_IF_ERROR(params.Check({}));
  const double now = NowUnixSeconds();
  JsonWriter json;
  json.BeginObject().Key("version").String(context.options->version).Key("now_unix_seconds").Double(now);
  json.Key("runs").BeginArray();
  for (const v1::RunSummary& run : context.registry->Summaries()) WriteSummary(json, run, now);
  json.EndArray().EndObject();
  return json.Take();
}

absl::StatusOr<std::string> StateJson(const ApiContext& context, const std::string& run, const QueryParams& params) {
  TRIMTAB_RETURN_IF_ERROR(params.Check({"metrics"}));
  TRIMTAB_ASSIGN_OR_RETURN(const v1::RunState state, context.registry->State(run));
  const std::string wanted_text = params.Text("metrics");
  const std::set<std::string> wanted = absl::StrSplit(wanted_text, ',', absl::SkipEmpty());
  TRIMTAB_RETURN_IF_ERROR(CheckMetrics(state, wanted));
  const double now = NowUnixSeconds();
  JsonWriter json;
  json.BeginObject().Key("now_unix_seconds").Double(now).Key("summary");
  WriteSummary(json, state.summary(), now);
  json.Key("steps_per_second").Double(state.steps_per_second()).Key("modes").BeginArray();
  for (const int mode : state.modes()) json.String(ModeName(static_cast<v1::KernelMode>(mode)));
  json.EndArray().Key("ranks_total").Int(state.ranks_size()).Key("ranks").BeginArray();
  for (int i = 0; i < std::min<int>(state.ranks_size(), kMaxRanksInState); ++i) WriteRank(json, state.ranks(i));
  json.EndArray().Key("layers");
  WriteLayers(json, state.ranks_size() > 0 ? state.ranks(0) : v1::RankInfo());
  json.Key("coverage");
  WriteCoverage(json, state.ranks_size() > 0 ? state.ranks(0).coverage() : v1::Coverage());
  json.Key("metrics").BeginObject();
  for (int i = 0; i < state.latest_size() && i < state.latest_steps_size(); ++i) {
    for (const v1::MetricDescriptor& metric : state.metrics()) {
      if (metric.id() != state.latest(i).metric()) continue;
      if (!wanted_text.empty() && !wanted.contains(metric.name())) continue;
      WriteMetric(json, metric, state.latest(i), state.latest_steps(i));
    }
  }
  json.EndObject().EndObject();
  return json.Take();
}

}  // namespace trimtab::server
