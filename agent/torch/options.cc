#include "agent/torch/options.h"

#include <cstdlib>
#include <limits>
#include <string_view>

namespace trimtab::agent {
namespace {

struct StorageName {
  const char* name;
  trimtab_storage storage;
};
constexpr StorageName kStorages[] = {{"fp32", TRIMTAB_STORE_FP32},
                                     {"bf16", TRIMTAB_STORE_BF16},
                                     {"fp16", TRIMTAB_STORE_FP16},
                                     {"e4m3", TRIMTAB_STORE_E4M3},
                                     {"e5m2", TRIMTAB_STORE_E5M2}};
constexpr trimtab_mode kModes[] = {TRIMTAB_MODE_NATIVE, TRIMTAB_MODE_OBSERVE, TRIMTAB_MODE_STABILIZED,
                                   TRIMTAB_MODE_PAPER};

class Reader {
 public:
  Reader(const Json& object, std::string* error) : object_(object), error_(error) {}

  bool Text(const char* key, std::string* value) {
    const Json* member = Member(key);
    if (member == nullptr) return ok_;
    if (!member->is_string()) return Fail(key, "must be a string");
    *value = member->AsString();
    return true;
  }
  template <typename T>
  bool Whole(const char* key, T* value, int64_t low, int64_t high) {
    const Json* member = Member(key);
    if (member == nullptr) return ok_;
    if (member->type() != Json::Type::kInteger || member->AsInteger() < low || member->AsInteger() > high) {
      return Fail(key, "must be a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    *value = static_cast<T>(member->AsInteger());
    return true;
  }
  bool Real(const char* key, double* value, double low, double high) {
    const Json* member = Member(key);
    if (member == nullptr) return ok_;
    if (!member->is_number() || !(member->AsReal() >= low && member->AsReal() <= high)) {
      return Fail(key, "must be a number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    *value = member->AsReal();
    return true;
  }
  bool Flag(const char* key, bool* value) {
    const Json* member = Member(key);
    if (member == nullptr) return ok_;
    if (member->type() != Json::Type::kBool) return Fail(key, "must be true or false");
    *value = member->AsBool();
    return true;
  }
  bool Fail(const char* key, const std::string& what) {
    *error_ = std::string(key) + " " + what;
    return ok_ = false;
  }

 private:
  const Json* Member(const char* key) const {
    const Json* member = ok_ ? object_.Find(key) : nullptr;
    return member == nullptr || member->type() == Json::Type::kNull ? nullptr : member;
  }
  const Json& object_;
  std::string* error_;
  bool ok_ = true;
};

constexpr std::string_view kKeys[] = {"run",
                                      "ring_dir",
                                      "rank",
                                      "world_size",
                                      "local_rank",
                                      "ring_bytes",
                                      "act",
                                      "lazy",
                                      "mode",
                                      "start_step",
                                      "sample_every_steps",
                                      "probe_rows",
                                      "info",
                                      "emulate_storage",
                                      "overhead_budget",
                                      "shadow_tolerance"};

bool ParseStorage(const std::string& name, ShimOptions* options) {
  for (const StorageName& row : kStorages) {
    if (name == row.name) {
      options->storage = row.storage;
      options->storage_name = name;
      return true;
    }
  }
  return name.empty();
}

bool ParseMode(const std::string& name, ShimOptions* options) {
  for (const trimtab_mode mode : kModes) {
    if (name == ModeName(mode)) {
      options->mode = mode;
      return true;
    }
  }
  return name.empty();
}

}  // namespace

const char* ModeName(uint32_t mode) {
  switch (mode) {
    case TRIMTAB_MODE_NATIVE:
      return "native";
    case TRIMTAB_MODE_OBSERVE:
      return "observe";
    case TRIMTAB_MODE_STABILIZED:
      return "stabilized";
    case TRIMTAB_MODE_PAPER:
      return "paper";
    default:
      return "unknown";
  }
}

const char* ModeEnumName(uint32_t mode) {
  switch (mode) {
    case TRIMTAB_MODE_NATIVE:
      return "KERNEL_MODE_NATIVE";
    case TRIMTAB_MODE_OBSERVE:
      return "KERNEL_MODE_OBSERVE";
    case TRIMTAB_MODE_STABILIZED:
      return "KERNEL_MODE_STABILIZED";
    case TRIMTAB_MODE_PAPER:
      return "KERNEL_MODE_PAPER";
    default:
      return "KERNEL_MODE_UNSPECIFIED";
  }
}

bool ParseOptions(const std::string& json, ShimOptions* options, std::string* error) {
  Json object;
  if (!Json::Parse(json.empty() ? "{}" : json, &object, error)) {
    *error = "options: " + *error;
    return false;
  }
  if (!object.is_object()) {
    *error = "options must be a JSON object";
    return false;
  }
  for (const auto& [key, value] : object.members()) {
    bool known = false;
    for (const std::string_view name : kKeys) known |= key == name;
    if (!known) {
      *error = "unknown option " + key;
      return false;
    }
  }
  constexpr int64_t kU32 = std::numeric_limits<uint32_t>::max();
  constexpr int64_t kI64 = std::numeric_limits<int64_t>::max();
  std::string mode, storage;
  Reader read(object, error);
  read.Text("run", &options->run);
  read.Text("ring_dir", &options->ring_dir);
  read.Whole("rank", &options->rank, 0, kU32);
  read.Whole("world_size", &options->world_size, 1, kU32);
  read.Whole("local_rank", &options->local_rank, 0, kU32);
  read.Whole("ring_bytes", &options->ring_bytes, 0, kI64);
  read.Flag("act", &options->act);
  read.Flag("lazy", &options->lazy);
  read.Text("mode", &mode);
  read.Whole("start_step", &options->start_step, 0, kI64);
  read.Whole("sample_every_steps", &options->sample_every_steps, 1, 1 << 20);
  read.Whole("probe_rows", &options->probe_rows, 1, 1 << 20);
  read.Text("emulate_storage", &storage);
  read.Real("overhead_budget", &options->overhead_budget, 1e-6, 1);
  if (!read.Real("shadow_tolerance", &options->shadow_tolerance, 0, 1e6)) return false;
  if (storage.empty()) {
    if (const char* variable = std::getenv("TRIMTAB_EMULATE_STORAGE")) storage = variable;
  }
  if (!ParseStorage(storage, options)) {
    return read.Fail("emulate_storage", "must be fp32, bf16, fp16, e4m3 or e5m2, not \"" + storage + "\"");
  }
  if (!ParseMode(mode, options)) {
    return read.Fail("mode", "must be native, observe, stabilized or paper, not \"" + mode + "\"");
  }
  if (options->rank >= options->world_size) return read.Fail("rank", "must be less than world_size");
  if (const Json* info = object.Find("info")) options->info = *info;
  if (options->info.type() != Json::Type::kNull && !options->info.is_object()) {
    return read.Fail("info", "must be an object");
  }
  return true;
}

}  // namespace trimtab::agent
