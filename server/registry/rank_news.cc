#include "server/registry/rank_news.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trimtab::server {

std::optional<v1::Event> RankNews::Add(uint32_t rank, uint32_t world_size, const std::string& detail) {
  ranks_.push_back(rank);
  detail_ = detail;
  if (world_size > kSmallWorld && ranks_.size() < kRanksPerEvent) return std::nullopt;
  return Flush(world_size);
}

std::optional<v1::Event> RankNews::Flush(uint32_t world_size) {
  if (ranks_.empty()) return std::nullopt;
  std::sort(ranks_.begin(), ranks_.end());
  v1::Event event;
  event.set_kind(kind_);
  event.set_severity(severity_);
  if (ranks_.size() == 1) {
    event.set_message(
        absl::StrCat("rank ", ranks_[0], " of ", world_size, " ", verb_, detail_.empty() ? "" : " ", detail_));
  } else {
    event.set_message(
        absl::StrCat(ranks_.size(), " of ", world_size, " ranks ", verb_, ": ", ranks_.front(), " to ", ranks_.back()));
  }
  event.set_evidence_json(absl::StrCat("{\"ranks\":[", absl::StrJoin(ranks_, ","), "]}"));
  ranks_.clear();
  return event;
}

}  // namespace trimtab::server
