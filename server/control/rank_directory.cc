#include "server/control/rank_directory.h"

#include <algorithm>

#include "server/model/limits.h"

namespace trimtab::server {
namespace {

constexpr char kModeMetric[] = "attention_mode";
// The step rate is measured over at least this much of the job's clock, and smoothed.
constexpr double kRateSeconds = 1;
constexpr double kRateSmoothing = 0.5;

}  // namespace

uint32_t RunView::connected() const {
  return std::count_if(ranks.begin(), ranks.end(), [](const auto& r) { return r.second.connected; });
}

uint64_t RunView::highest_step() const {
  uint64_t highest = 0;
  for (const auto& [rank, r] : ranks) {
    if (r.connected) highest = std::max(highest, r.step);
  }
  return highest;
}

v1::KernelMode RunView::mode(uint32_t layer) const {
  for (const auto& [rank, r] : ranks) {
    if (r.connected && layer < r.modes.size() && r.modes[layer] != v1::KERNEL_MODE_UNSPECIFIED) return r.modes[layer];
  }
  return v1::KERNEL_MODE_OBSERVE;
}

void RankDirectory::Describe(const v1::RankInfo& info, RankView* rank, Run* run) {
  rank->act = info.act();
  if (info.modes_size() > 0) {
    rank->modes.clear();
    for (const int mode : info.modes()) rank->modes.push_back(static_cast<v1::KernelMode>(mode));
  }
  if (info.world_size() > 0) run->view.world_size = info.world_size();
  const uint32_t layers = std::max<uint32_t>(info.layers_size(), info.modes_size());
  run->view.layers = std::max(run->view.layers, std::min(layers, kMaxLayers));
}

void RankDirectory::Join(const RankKey& key, const v1::RankInfo& info,
                         const std::vector<v1::MetricDescriptor>& metrics) {
  std::lock_guard lock(mutex_);
  auto it = runs_.find(key.run);
  if (it == runs_.end()) {
    if (runs_.size() >= runs_max_) {
      const auto idle =
          std::find_if(runs_.begin(), runs_.end(), [](const auto& r) { return r.second.view.connected() == 0; });
      if (idle == runs_.end()) {
        ++runs_refused_;
        return;
      }
      runs_.erase(idle);
    }
    it = runs_.emplace(key.run, Run()).first;
  }
  Run& run = it->second;
  RankView& rank = run.view.ranks[key.rank];
  if (rank.incarnation != key.incarnation) {
    rank = RankView{.incarnation = key.incarnation};
    run.rate_unix_nanos = 0;
  }
  rank.connected = true;
  Describe(info, &rank, &run);
  run.mode_metric.erase(key.rank);
  for (const v1::MetricDescriptor& m : metrics) {
    if (m.name() == kModeMetric) run.mode_metric[key.rank] = m.id();
  }
  // A job that came back smaller has no ranks beyond its world any more.
  run.view.ranks.erase(run.view.ranks.lower_bound(std::max(run.view.world_size, key.rank + 1)), run.view.ranks.end());
}

void RankDirectory::Update(const RankKey& key, const v1::RankInfo& info) {
  std::lock_guard lock(mutex_);
  const auto run = runs_.find(key.run);
  if (run == runs_.end()) return;
  const auto rank = run->second.view.ranks.find(key.rank);
  if (rank == run->second.view.ranks.end() || rank->second.incarnation != key.incarnation) return;
  Describe(info, &rank->second, &run->second);
}

void RankDirectory::Steps(const RankKey& key, absl::Span<const v1::Step* const> steps) {
  std::lock_guard lock(mutex_);
  const auto it = runs_.find(key.run);
  if (it == runs_.end()) return;
  Run& run = it->second;
  const auto found = run.view.ranks.find(key.rank);
  if (found == run.view.ranks.end() || found->second.incarnation != key.incarnation) return;
  RankView& rank = found->second;
  const auto metric = run.mode_metric.find(key.rank);
  for (const v1::Step* step : steps) {
    rank.step = std::max(rank.step, step->step());
    if (metric == run.mode_metric.end()) continue;
    for (const v1::Block& block : step->blocks()) {
      if (block.metric() != metric->second || block.uint64_size() > static_cast<int>(kMaxLayers)) continue;
      if (rank.modes_step && step->step() < *rank.modes_step) continue;
      rank.modes.clear();
      for (const uint64_t mode : block.uint64()) {
        rank.modes.push_back(mode <= v1::KERNEL_MODE_PAPER ? static_cast<v1::KernelMode>(mode)
                                                           : v1::KERNEL_MODE_UNSPECIFIED);
      }
      rank.modes_step = step->step();
      run.view.layers = std::max<uint32_t>(run.view.layers, rank.modes.size());
    }
  }
  if (!steps.empty() && key.rank == run.view.ranks.begin()->first) MeasureRate(*steps.back(), &run);
}

void RankDirectory::MeasureRate(const v1::Step& step, Run* run) {
  const double seconds = static_cast<double>(step.time_unix_nanos() - run->rate_unix_nanos) * 1e-9;
  if (run->rate_unix_nanos == 0 || seconds < 0 || step.step() < run->rate_step) {
    run->rate_unix_nanos = step.time_unix_nanos();
    run->rate_step = step.step();
    return;
  }
  if (seconds < kRateSeconds) return;
  const double rate = static_cast<double>(step.step() - run->rate_step) / seconds;
  double& smooth = run->view.steps_per_second;
  smooth = smooth == 0 ? rate : smooth + kRateSmoothing * (rate - smooth);
  run->rate_unix_nanos = step.time_unix_nanos();
  run->rate_step = step.step();
}

void RankDirectory::Leave(const RankKey& key, LeaveReason reason) {
  std::lock_guard lock(mutex_);
  const auto run = runs_.find(key.run);
  if (run == runs_.end()) return;
  const auto rank = run->second.view.ranks.find(key.rank);
  if (rank == run->second.view.ranks.end() || rank->second.incarnation != key.incarnation) return;
  rank->second.connected = false;
  rank->second.left = reason;
}

void RankDirectory::Applied(const std::string& run, v1::KernelMode mode, const std::vector<uint32_t>& layers,
                            uint64_t effective_step) {
  std::lock_guard lock(mutex_);
  const auto it = runs_.find(run);
  if (it == runs_.end()) return;
  for (auto& [rank, r] : it->second.view.ranks) {
    if (!r.connected || (r.modes_step && *r.modes_step >= effective_step)) continue;
    r.modes_step = effective_step;
    if (r.modes.size() < it->second.view.layers) r.modes.resize(it->second.view.layers, v1::KERNEL_MODE_OBSERVE);
    for (size_t l = 0; l < r.modes.size() && layers.empty(); ++l) r.modes[l] = mode;
    for (const uint32_t l : layers) {
      if (l < r.modes.size()) r.modes[l] = mode;
    }
  }
}

std::optional<RunView> RankDirectory::View(const std::string& run) const {
  std::lock_guard lock(mutex_);
  const auto it = runs_.find(run);
  if (it == runs_.end()) return std::nullopt;
  return it->second.view;
}

std::optional<RankView> RankDirectory::Rank(const std::string& run, uint32_t rank) const {
  std::lock_guard lock(mutex_);
  const auto it = runs_.find(run);
  if (it == runs_.end()) return std::nullopt;
  const auto found = it->second.view.ranks.find(rank);
  if (found == it->second.view.ranks.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> RankDirectory::Runs(size_t max) const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, run] : runs_) {
    if (names.size() == max) break;
    names.push_back(name);
  }
  return names;
}

uint64_t RankDirectory::runs_refused() const {
  std::lock_guard lock(mutex_);
  return runs_refused_;
}

}  // namespace trimtab::server
