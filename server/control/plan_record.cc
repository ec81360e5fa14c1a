#include "server/control/plan_record.h"

#include <google/protobuf/util/json_util.h>

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace trimtab::server {
namespace {

using nlohmann::json;

json GroupsJson(const std::vector<ModeGroup>& groups) {
  json list = json::array();
  for (const ModeGroup& g : groups) list.push_back({{"mode", static_cast<int>(g.mode)}, {"layers", g.layers}});
  return list;
}

}  // namespace

bool PlanRecord::finished() const {
  switch (plan.state()) {
    case v1::PLAN_STATE_APPLIED:
    case v1::PLAN_STATE_REFUSED:
    case v1::PLAN_STATE_REJECTED:
    case v1::PLAN_STATE_ABORTED:
      return true;
    default:
      return false;
  }
}

std::string EncodePlan(const PlanRecord& r) {
  std::string plan;
  if (!google::protobuf::util::MessageToJsonString(r.plan, &plan).ok()) plan = "{}";  // only for invalid UTF-8
  json modes = json::array();
  for (const auto& [layer, mode] : r.modes_before) modes.push_back({layer, static_cast<int>(mode)});
  const json j = {{"version", 1},
                  {"plan", plan},
                  {"incarnations", r.incarnations},
                  {"slot", r.slot},
                  {"lead_steps", r.lead_steps},
                  {"deadline_nanos", r.deadline_nanos},
                  {"deadline_unix_nanos", r.deadline_unix_nanos},
                  {"abort_until_unix_nanos", r.abort_until_unix_nanos},
                  {"undoing", r.undoing},
                  {"partial", r.partial},
                  {"undone", r.undone},
                  {"undoes", r.undoes},
                  {"modes_before", modes},
                  {"follow_ups", GroupsJson(r.follow_ups)},
                  {"evidence", r.evidence_json}};
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<PlanRecord> DecodePlan(const std::string& text) {
  PlanRecord r;
  try {
    const json j = json::parse(text);
    if (j.at("version").get<int>() != 1) return absl::DataLossError("A stored plan is of another version.");
    if (!google::protobuf::util::JsonStringToMessage(j.at("plan").get<std::string>(), &r.plan).ok()) {
      return absl::DataLossError("A stored plan does not read back.");
    }
    r.incarnations = j.at("incarnations").get<std::vector<uint64_t>>();
    r.slot = j.at("slot").get<uint32_t>();
    r.lead_steps = j.at("lead_steps").get<uint32_t>();
    r.deadline_nanos = j.at("deadline_nanos").get<int64_t>();
    r.deadline_unix_nanos = j.at("deadline_unix_nanos").get<int64_t>();
    r.abort_until_unix_nanos = j.at("abort_until_unix_nanos").get<int64_t>();
    r.undoing = j.at("undoing").get<bool>();
    r.partial = j.at("partial").get<bool>();
    r.undone = j.at("undone").get<bool>();
    r.undoes = j.at("undoes").get<uint64_t>();
    for (const json& m : j.at("modes_before")) {
      r.modes_before.emplace_back(m.at(0).get<uint32_t>(), static_cast<v1::KernelMode>(m.at(1).get<int>()));
    }
    for (const json& g : j.at("follow_ups")) {
      r.follow_ups.push_back(
          {static_cast<v1::KernelMode>(g.at("mode").get<int>()), g.at("layers").get<std::vector<uint32_t>>()});
    }
    r.evidence_json = j.at("evidence").get<std::string>();
  } catch (const json::exception& e) {
    return absl::DataLossError(absl::StrCat("A stored plan does not read back: ", e.what()));
  }
  if (r.incarnations.size() != static_cast<size_t>(r.plan.ranks_size()) || r.plan.id() == 0) {
    return absl::DataLossError("A stored plan does not read back.");
  }
  return r;
}

std::vector<std::pair<uint32_t, v1::KernelMode>> ModesNow(const RunView& view, const std::vector<uint32_t>& layers) {
  std::vector<std::pair<uint32_t, v1::KernelMode>> modes;
  if (!layers.empty()) {
    for (const uint32_t l : layers) modes.emplace_back(l, view.mode(l));
  } else {
    for (uint32_t l = 0; l < view.layers; ++l) modes.emplace_back(l, view.mode(l));
  }
  return modes;
}

std::vector<ModeGroup> GroupsToRestore(const std::vector<std::pair<uint32_t, v1::KernelMode>>& modes_before,
                                       const RunView& view, bool skip_current) {
  std::map<v1::KernelMode, std::vector<uint32_t>> by_mode;
  for (const auto& [layer, mode] : modes_before) {
    if (!skip_current || view.mode(layer) != mode) by_mode[mode].push_back(layer);
  }
  std::vector<ModeGroup> groups;
  for (auto& [mode, layers] : by_mode) {
    const bool all = by_mode.size() == 1 && layers.size() == view.layers;
    groups.push_back({mode, all ? std::vector<uint32_t>() : std::move(layers)});
  }
  return groups;
}

std::string LayersText(const std::vector<uint32_t>& layers) {
  constexpr size_t kShown = 12;
  if (layers.empty()) return "all layers";
  std::string text = layers.size() == 1 ? "layer " : "layers ";
  for (size_t i = 0; i < layers.size() && i < kShown; ++i) absl::StrAppend(&text, i > 0 ? ", " : "", layers[i]);
  if (layers.size() > kShown) absl::StrAppend(&text, " and ", layers.size() - kShown, " more");
  return text;
}

std::vector<uint32_t> LayersOf(const v1::Plan& plan) { return {plan.layers().begin(), plan.layers().end()}; }

}  // namespace trimtab::server
