#include "agent/torch/coverage.h"

#include <algorithm>
#include <cstring>

namespace trimtab::agent {

void Coverage::PassBy(const char* op, const char* reason, uint64_t calls) {
  calls_passed += calls;
  for (Reason& row : passed_) {
    if ((row.reason == reason || std::strcmp(row.reason, reason) == 0) && std::strcmp(row.op, op) == 0) {
      row.calls += calls;
      return;
    }
  }
  if (passed_.size() >= kMaxReasons) {
    passed_.back() = {"", "other", passed_.back().calls + calls};
    return;
  }
  passed_.push_back({op, reason, calls});
  ++version_;
}

void Coverage::Note(const std::string& note) {
  if (std::find(notes_.begin(), notes_.end(), note) != notes_.end()) return;
  ++version_;
  if (notes_.size() >= kMaxNotes) {
    ++dropped_texts_;
    return;
  }
  notes_.push_back(note);
}

void Coverage::ReplaceNote(const std::string& prefix, const std::string& text) {
  for (std::string& note : notes_) {
    if (note.starts_with(prefix)) {
      if (note != prefix + text) ++version_;
      note = prefix + text;
      return;
    }
  }
  Note(prefix + text);
}

void Coverage::Error(const std::string& error) {
  if (std::find(errors_.begin(), errors_.end(), error) != errors_.end()) return;
  ++version_;
  if (errors_.size() >= kMaxErrors) {
    ++dropped_texts_;
    return;
  }
  errors_.push_back(error);
}

Json Coverage::ToJson() const {
  Json json = Json::Object();
  Json& hooked = json["hooked_ops"] = Json::Array();
  for (const char* op : hooked_) hooked.Append(op);
  json["calls_hooked"] = calls_hooked;
  json["calls_recomputed"] = calls_recomputed;
  Json& passed = json["passed_by"] = Json::Array();
  for (const Reason& row : passed_) {
    Json item = Json::Object();
    item["op"] = row.op;
    item["reason"] = row.reason;
    item["calls"] = row.calls;
    passed.Append(std::move(item));
  }
  Json& notes = json["notes"] = Json::Array();
  for (const std::string& note : notes_) notes.Append(note);
  if (dropped_texts_ > 0) notes.Append(std::to_string(dropped_texts_) + " more notes or errors were left out");
  Json& errors = json["errors"] = Json::Array();
  for (const std::string& error : errors_) errors.Append(error);
  json["last_sample_step"] = last_sample_step;
  json["last_sample_unix_nanos"] = last_sample_unix_nanos;
  return json;
}

}  // namespace trimtab::agent
