// RankInfo for the courier, and the status for the owner of the process.
#include <algorithm>
#include <chrono>
#include <mutex>

#include "agent/torch/session.h"

namespace trimtab::agent {
namespace {

constexpr int64_t kInfoMinNanos = 1'000'000'000;   // between two writes after a change
constexpr int64_t kInfoMaxNanos = 10'000'000'000;  // counters alone: refreshed this often

int64_t SteadyNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

const char* DtypeName(trimtab_dtype dtype) {
  switch (dtype) {
    case TRIMTAB_F32:
      return "float32";
    case TRIMTAB_BF16:
      return "bfloat16";
    case TRIMTAB_F16:
      return "float16";
  }
  return "";
}

// The entry of `layers` whose index is `layer` (an absent index is 0, as proto3 JSON writes it); nullptr: none.
const Json* LayerEntry(const Json* layers, uint32_t layer) {
  if (layers == nullptr) return nullptr;
  for (const Json& item : layers->items()) {
    const Json* index = item.Find("index");
    if ((index == nullptr ? 0 : index->AsInteger(-1)) == layer) return &item;
  }
  return nullptr;
}

void MergeLayers(const Json& from, Json* to) {
  for (const Json& item : from.items()) {
    const Json* index = item.Find("index");
    const Json* known = LayerEntry(to, index == nullptr ? 0 : static_cast<uint32_t>(index->AsInteger()));
    if (known == nullptr) {
      if (to->items().size() < TRIMTAB_MAX_LAYERS) to->Append(item);
    } else {
      for (const auto& [key, value] : item.members()) (*const_cast<Json*>(known))[key] = value;
    }
  }
}

}  // namespace

void Session::MergeInfo(const Json& info) {
  for (const auto& [key, value] : info.members()) {
    if (key == "layers" && value.is_array()) {
      Json& layers = info_["layers"];
      if (!layers.is_array()) layers = Json::Array();
      MergeLayers(value, &layers);
    } else if (key == "coverage" && value.is_object()) {
      if (const Json* notes = value.Find("notes")) {
        for (const Json& note : notes->items()) coverage_.Note(note.AsString());
      }
      if (const Json* errors = value.Find("errors")) {
        for (const Json& error : errors->items()) coverage_.Error(error.AsString());
      }
      if (const Json* passed = value.Find("passed_by")) {
        if (passed->is_array()) info_["passed_by_python"] = *passed;
      }
    } else if (value.is_object()) {
      for (const auto& [name, item] : value.members()) info_[key][name] = item;
    } else {
      info_[key] = value;
    }
  }
  info_dirty_ = true;
}

void Session::SetInfo(const std::string& text) {
  if (!running()) return;
  Json info;
  std::string error;
  const bool good = Json::Parse(text, &info, &error) && info.is_object();
  std::lock_guard guard(lock_);
  if (!good) {
    coverage_.Error("set_info: " + (error.empty() ? std::string("not a JSON object") : error));
    return;
  }
  MergeInfo(info);
  PublishInfo(false);
}

Json Session::LayersJson() {
  Json layers = Json::Array();
  const Json* named = info_.Find("layers");
  const auto& known = ledger_.layers();
  for (uint32_t i = 0; i < known.size(); ++i) {
    Json layer = Json::Object();
    layer["index"] = i;
    layer["name"] = "attention." + std::to_string(i);
    if (known[i].seen) {
      const CallSignature& s = known[i].signature;
      layer["heads"] = s.heads;
      layer["kv_heads"] = s.kv_heads;
      layer["head_dim"] = s.head_dim;
      layer["op"] = known[i].op;
      layer["dtype"] = DtypeName(s.dtype);
    }
    if (const Json* entry = LayerEntry(named, i)) {
      for (const auto& [key, value] : entry->members()) layer[key] = value;
    }
    layers.Append(std::move(layer));
  }
  if (named != nullptr) {  // named but not called yet
    for (const Json& item : named->items()) {
      const Json* index = item.Find("index");
      if (index != nullptr && index->AsInteger() >= static_cast<int64_t>(known.size())) layers.Append(item);
    }
  }
  return layers;
}

Json Session::InfoJson() {
  Json info = info_;
  info["act"] = options_.act;
  info["layers"] = LayersJson();
  info["emulated_storage"] = options_.storage_name;
  Json coverage = coverage_.ToJson();
  if (const Json* python = info_.Find("passed_by_python")) {
    for (const Json& item : python->items()) coverage["passed_by"].Append(item);
  }
  info.Remove("passed_by_python");
  info["coverage"] = std::move(coverage);
  Json modes = Json::Array();
  for (size_t i = 0; i < ledger_.layers().size(); ++i) modes.Append(ModeEnumName(modes_.of_layer[i]));
  info["modes"] = std::move(modes);
  return info;
}

void Session::PublishInfo(bool force) {
  if (agent_ == nullptr) return;
  const int64_t now = SteadyNanos();
  const bool changed = info_dirty_ || coverage_.version() != info_version_ || ledger_.layers().size() != info_layers_;
  if (!force && now - info_written_nanos_ < (changed ? kInfoMinNanos : kInfoMaxNanos)) return;
  std::string json = InfoJson().Dump();
  if (json.size() > kMaxInfoBytes) {  // names give way to numbers
    Json info = InfoJson();
    info["layers"] = Json::Array();
    info["metadata"] = Json::Object();
    json = info.Dump();
  }
  trimtab_set_info(agent_, json.data(), json.size());
  info_dirty_ = false;
  info_version_ = coverage_.version();
  info_layers_ = ledger_.layers().size();
  info_written_nanos_ = now;
}

std::string Session::Status() {
  Json status = Json::Object();
  status["running"] = running();
  if (!running()) return status.Dump();
  std::lock_guard guard(lock_);
  status["step"] = step_;
  status["engaged"] = engaged();
  status["sampled"] = sampled();
  status["ring_open"] = agent_ != nullptr;
  status["dropped_steps"] = agent_ == nullptr ? uint64_t{0} : trimtab_dropped_steps(agent_);
  status["emulated_storage"] = options_.storage_name;
  status["default_mode"] = ModeName(modes_.other);
  Json modes = Json::Array();
  for (size_t i = 0; i < ledger_.layers().size(); ++i) modes.Append(ModeName(modes_.of_layer[i]));
  status["modes"] = std::move(modes);
  status["layers"] = LayersJson();
  Json coverage = coverage_.ToJson();
  status["errors"] = *coverage.Find("errors");
  status["coverage"] = std::move(coverage);
  status["calls_in_flight"] = ledger_.live();
  status["layer_order_changes"] = ledger_.order_changes();
  status["overhead_share"] = sampling_.share();
  status["sample_every_steps"] = sampling_.stride();
  status["probe_rows"] = sampling_.rows();
  status["switch"] = latch_->state_name();
  status["projections"] = static_cast<uint64_t>(spectral_.size());
  return status.Dump();
}

}  // namespace trimtab::agent
