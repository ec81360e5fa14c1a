#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "proto/status/status.h"
#include "server/http/api.h"
#include "server/http/json_writer.h"

namespace trimtab::server {
namespace {

const char* SeverityName(v1::Severity severity) {
  switch (severity) {
    case v1::SEVERITY_WARNING:
      return "warning";
    case v1::SEVERITY_CRITICAL:
      return "critical";
    default:
      return "info";
  }
}

void WriteEvent(JsonWriter& json, const v1::Event& event) {
  json.BeginObject().Key("id").Uint(event.id());
  json.Key("time_unix_seconds").Double(static_cast<double>(event.time_unix_nanos()) * 1e-9);
  json.Key("run").String(event.run()).Key("kind").String(event.kind());
  json.Key("severity").String(SeverityName(event.severity())).Key("step").Uint(event.step());
  json.Key("message").String(event.message()).Key("detector").String(event.detector());
  json.Key("plan_id").String(event.plan_id()).Key("actor").String(event.actor()).Key("evidence");
  if (event.evidence_json().empty()) {
    json.Null();
  } else if (nlohmann::json::accept(event.evidence_json())) {
    json.Raw(event.evidence_json());
  } else {
    json.String(event.evidence_json());
  }
  json.EndObject();
}

}  // namespace

absl::StatusOr<std::string> EventsJson(const ApiContext& context, const QueryParams& params) {
  TRIMTAB_RETURN_IF_ERROR(params.Check({"run", "after", "max"}));
  TRIMTAB_ASSIGN_OR_RETURN(const auto after, params.Uint("after", std::numeric_limits<uint64_t>::max()));
  TRIMTAB_ASSIGN_OR_RETURN(const auto max, params.Uint("max", context.options->max_events));
  const uint64_t limit = std::max<uint64_t>(max.value_or(std::min<size_t>(200, context.options->max_events)), 1);
  TRIMTAB_ASSIGN_OR_RETURN(const std::vector<v1::Event> events,
                           context.store->ReadEvents(params.Text("run"), after.value_or(0), limit, !after.has_value()));
  const std::string run = params.Text("run");
  // A follower's empty page says nothing about its run.
  if (events.empty() && !run.empty() && !after.has_value()) {
    TRIMTAB_RETURN_IF_ERROR(context.store->GetRun(run).status());
  }
  JsonWriter json;
  json.BeginObject().Key("events").BeginArray();
  uint64_t last_id = after.value_or(0);
  for (const v1::Event& event : events) {
    WriteEvent(json, event);
    last_id = std::max(last_id, event.id());
  }
  json.EndArray().Key("last_id").Uint(last_id).EndObject();
  return json.Take();
}

}  // namespace trimtab::server
