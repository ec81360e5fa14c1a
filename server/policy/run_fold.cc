#include "server/policy/run_fold.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace trimtab::server {

void RunFold::Join(uint32_t rank, uint64_t incarnation, uint32_t world_size,
                   const std::vector<v1::Aggregation>& aggregation) {
  world_size_ = world_size;
  aggregation_ = aggregation;
  RankState& r = ranks_[rank];
  if (r.incarnation != incarnation) {
    if (r.live) --live_;
    r = RankState{.incarnation = incarnation, .step_before = r.last_step};
  }
  if (!r.live) ++live_;
  r.live = true;
  r.finished = false;
}

void RunFold::Leave(uint32_t rank, uint64_t incarnation, bool finished) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end() || it->second.incarnation != incarnation || !it->second.live) return;
  it->second.live = false;
  it->second.finished = finished;
  --live_;
  FindComplete();
}

RunFold::Added RunFold::Add(uint32_t rank, uint64_t incarnation, StepCells cells) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end() || it->second.incarnation != incarnation) return Added::kUnknownRank;
  RankState& r = it->second;
  const uint64_t step = cells.step;
  if (r.last_step && step <= *r.last_step) return Added::kRepeat;
  r.last_step = step;
  Added added = Added::kQueued;
  const std::optional<uint64_t> before = std::exchange(r.step_before, std::nullopt);
  if (folded_ && step <= *folded_) {
    if (!before || step > *before) return Added::kLate;
    Restart(rank);
    added = Added::kRestarted;
  }
  const auto [slot, fresh] = pending_.try_emplace(step);
  if (fresh) {
    slot->second = std::move(cells);
  } else {
    FoldRank(aggregation_, cells, &slot->second);
  }
  highest_ = std::max(highest_, step);
  if (slot->second.ranks >= live_) complete_end_ = std::max(complete_end_, step + 1);
  return added;
}

void RunFold::Restart(uint32_t first_rank) {
  pending_.clear();
  folded_.reset();
  highest_ = complete_end_ = 0;
  for (auto& [rank, r] : ranks_) {
    if (rank == first_rank) continue;
    r.last_step.reset();
    r.step_before.reset();
  }
}

std::optional<StepCells> RunFold::Next(bool everything) {
  if (pending_.empty()) return std::nullopt;
  const auto first = pending_.begin();
  if (!everything && first->first >= CompleteEnd()) return std::nullopt;
  folded_ = first->first;
  StepCells cells = std::move(first->second);
  pending_.erase(first);
  return cells;
}

uint64_t RunFold::CompleteEnd() const {
  if (live_ == 0) return std::numeric_limits<uint64_t>::max();
  const uint64_t wait = Joining() ? std::min<uint64_t>(kJoinWaitSteps, wait_steps_max_) : wait_steps_max_;
  const uint64_t forced = highest_ >= wait ? highest_ - wait + 1 : 0;
  return std::max(Joining() ? 0 : complete_end_, forced);
}

void RunFold::FindComplete() {
  for (const auto& [step, cells] : pending_) {
    if (cells.ranks >= live_) complete_end_ = std::max(complete_end_, step + 1);
  }
}

void RunFold::Restore(uint64_t step, const std::map<uint32_t, uint64_t>& incarnations) {
  folded_ = step;
  for (const auto& [rank, incarnation] : incarnations) {
    ranks_[rank] = RankState{.incarnation = incarnation, .last_step = step};
  }
}

std::map<uint32_t, uint64_t> RunFold::Incarnations(size_t max) const {
  std::map<uint32_t, uint64_t> found;
  for (const auto& [rank, r] : ranks_) {
    if (r.live && found.size() < max) found[rank] = r.incarnation;
  }
  return found;
}

std::vector<uint32_t> RunFold::Missing(size_t max, uint32_t* count) const {
  std::vector<uint32_t> missing;
  *count = 0;
  for (uint32_t rank = 0; rank < world_size_; ++rank) {
    const auto it = ranks_.find(rank);
    if (it != ranks_.end() && (it->second.live || it->second.finished)) continue;
    ++*count;
    if (missing.size() < max) missing.push_back(rank);
  }
  return missing;
}

}  // namespace trimtab::server
