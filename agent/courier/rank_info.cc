#include "agent/courier/rank_info.h"

#include <google/protobuf/util/json_util.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/core/text_check.h"
#include "agent/courier/limits.h"

namespace trimtab::courier {
namespace {

bool IsText(const std::string& text) { return agent::IsUtf8(text.data(), text.size()); }

// A message whose strings are not UTF-8 serialises but cannot be parsed by the other side; JSON escapes of lone
// surrogates are one way to get there.
bool SurvivesTheWire(const v1::RankInfo& info) {
  v1::RankInfo copy;
  return copy.ParseFromString(info.SerializeAsString());
}

absl::Status CheckLengths(const v1::RankInfo& info) {
  const v1::Coverage& coverage = info.coverage();
  const struct {
    const char* name;
    size_t entries;
  } lists[] = {{"layers", static_cast<size_t>(info.layers_size())},
               {"modes", static_cast<size_t>(info.modes_size())},
               {"parallel", info.parallel().size()},
               {"versions", info.versions().size()},
               {"metadata", info.metadata().size()},
               {"coverage.hookedOps", static_cast<size_t>(coverage.hooked_ops_size())},
               {"coverage.passedBy", static_cast<size_t>(coverage.passed_by_size())},
               {"coverage.notes", static_cast<size_t>(coverage.notes_size())},
               {"coverage.errors", static_cast<size_t>(coverage.errors_size())}};
  for (const auto& list : lists) {
    if (list.entries > static_cast<size_t>(kMaxInfoEntries)) {
      return absl::InvalidArgumentError(
          absl::StrCat("info has ", list.entries, " ", list.name, "; at most ", kMaxInfoEntries, " are taken"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::RankInfo> RankInfoFromIdentity(const agent::RingIdentity& identity) {
  if (identity.run.empty() || !IsText(identity.run)) {
    return absl::InvalidArgumentError("the run name in the ring's header is empty or not UTF-8");
  }
  v1::RankInfo info;
  info.set_run(identity.run);
  info.set_rank(identity.rank);
  info.set_world_size(identity.world_size);
  info.set_local_rank(identity.local_rank);
  info.set_incarnation(identity.incarnation);
  info.set_host(IsText(identity.host) ? identity.host : "");
  info.set_pid(identity.pid);
  info.set_act(identity.act);
  return info;
}

absl::StatusOr<v1::RankInfo> RankInfoFromJson(const v1::RankInfo& base, const std::string& json) {
  if (json.size() > kMaxInfoBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("info text has ", json.size(), " bytes; at most ", kMaxInfoBytes, " are taken"));
  }
  if (!IsText(json)) return absl::InvalidArgumentError("info text is not UTF-8 or has NUL bytes");
  v1::RankInfo info;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &info, options);
  if (!parsed.ok()) {
    const auto text = parsed.message();
    return absl::InvalidArgumentError(
        absl::StrCat("info text: ", absl::string_view(text.data(), std::min<size_t>(text.size(), 200))));
  }
  if (absl::Status lengths = CheckLengths(info); !lengths.ok()) return lengths;
  info.set_run(base.run());
  info.set_rank(base.rank());
  info.set_world_size(base.world_size());
  info.set_local_rank(base.local_rank());
  info.set_incarnation(base.incarnation());
  info.set_host(base.host());
  info.set_pid(base.pid());
  info.set_act(base.act());
  if (info.ByteSizeLong() > kMaxInfoBytes || !SurvivesTheWire(info)) {
    return absl::InvalidArgumentError("info text turns into a message that is too large or not UTF-8");
  }
  return info;
}

}  // namespace trimtab::courier
