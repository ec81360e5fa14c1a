#include "server/control/preflight.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/control/plan_record.h"
#include "server/model/limits.h"
#include "server/model/run_name.h"
#include "server/policy/describe.h"

namespace trimtab::server {
namespace {

// "3", "3, 5", "3, 5 and 12 more"
std::string RankList(const std::vector<uint32_t>& ranks) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kShown; ++i) absl::StrAppend(&text, i > 0 ? ", " : "", ranks[i]);
  if (ranks.size() > kShown) absl::StrAppend(&text, " and ", ranks.size() - kShown, " more");
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", text);
}

}  // namespace

absl::Status CheckTarget(const RunView& view, v1::KernelMode mode, const std::vector<uint32_t>& layers) {
  if (mode == v1::KERNEL_MODE_UNSPECIFIED || !v1::KernelMode_IsValid(mode)) {
    return absl::InvalidArgumentError("The mode must be native, observe, stabilized or paper.");
  }
  if (layers.size() > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("At most ", kMaxLayers, " layers can be named; leave them out for all."));
  }
  const uint32_t count = view.layers > 0 ? view.layers : kMaxLayers;
  for (const uint32_t l : layers) {
    if (l < count) continue;
    return absl::InvalidArgumentError(absl::StrCat("There is no layer ", l, ": ",
                                                   view.layers > 0 ? "the run has" : "a run has at most",
                                                   " layers 0 to ", count - 1, "."));
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const std::string& run, const RunView& view) {
  std::vector<uint32_t> not_allowed, missing;
  for (uint32_t rank = 0; rank < view.world_size; ++rank) {
    const auto it = view.ranks.find(rank);
    if (it == view.ranks.end() || !it->second.connected) missing.push_back(rank);
  }
  for (const auto& [rank, r] : view.ranks) {
    if (r.connected && !r.act) not_allowed.push_back(rank);
  }
  if (view.connected() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("No rank of run ", QuoteName(run), " is connected; is the job still running?"));
  }
  if (!missing.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        RankList(missing), " of ", view.world_size, " of run ", QuoteName(run), missing.size() == 1 ? " is" : " are",
        " not connected; a switch needs every rank. Start trimtab on every rank, or wait until it is back."));
  }
  if (!not_allowed.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("The owner of run ", QuoteName(run), " did not allow switches (", RankList(not_allowed),
                     "); start the job with `trimtab run --act` or attach(act=True)."));
  }
  return absl::OkStatus();
}

absl::Status CheckChanges(const RunView& view, v1::KernelMode mode, const std::vector<uint32_t>& layers) {
  bool known = false, changes = false;
  for (const auto& [rank, r] : view.ranks) {
    if (!r.connected) continue;
    for (uint32_t l = 0; l < r.modes.size(); ++l) {
      if (!layers.empty() && std::find(layers.begin(), layers.end(), l) == layers.end()) continue;
      known = true;
      changes |= r.modes[l] != mode;
    }
    for (const uint32_t l : layers) changes |= l >= r.modes.size();
    changes |= r.modes.empty();
  }
  if (!known || changes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      LayersText(layers), " already ", layers.size() == 1 ? "runs " : "run ", ModeName(mode), " on every rank."));
}

}  // namespace trimtab::server
