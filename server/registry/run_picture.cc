#include "server/registry/run_picture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace trimtab::server {
namespace {

constexpr size_t kPaceSamples = 64;
constexpr double kNanosPerSecond = 1e9;
// A job whose ranks have not all joined may still be starting: its end is told only after this long without any.
constexpr double kPartialEndSeconds = 10;

void Take(std::optional<v1::Event> event, std::vector<v1::Event>* events) {
  if (event) events->push_back(*std::move(event));
}

v1::Event MakeEvent(const char* kind, v1::Severity severity, uint64_t step, std::string message) {
  v1::Event event;
  event.set_kind(kind);
  event.set_severity(severity);
  event.set_step(step);
  event.set_message(std::move(message));
  return event;
}

}  // namespace

void RunPicture::AddMetric(const v1::MetricDescriptor& metric) { metrics_.try_emplace(metric.id(), metric); }

void RunPicture::Joined(const RankKey& key, const v1::RankInfo& info, const std::vector<v1::MetricDescriptor>& metrics,
                        int64_t now, std::vector<v1::Event>* events) {
  const bool all_gone = connected_ == 0;
  // A job that starts again with fewer ranks has no others.
  if (all_gone) std::erase_if(ranks_, [&](const auto& old) { return old.first >= info.world_size(); });
  const bool known = ranks_.contains(key.rank);
  Rank& rank = ranks_[key.rank];
  const bool again = known && rank.info.incarnation() != key.incarnation;
  if (!rank.connected) ++connected_;
  if (again) rank.restarted = true;
  rank.info = info;
  rank.connected = true;
  rank.clean = false;
  const bool was_told_lost = known && rank.lost_at == 0;
  rank.lost_at = 0;
  world_size_ = std::max(info.world_size(), all_gone ? 0 : world_size_);
  for (const v1::MetricDescriptor& metric : metrics) AddMetric(metric);
  if (!started_ || (again && all_gone)) {
    events->push_back(MakeEvent("run_started", v1::SEVERITY_INFO, 0,
                                absl::StrCat("run ", started_ ? "started again" : "started", ": ", info.world_size(),
                                             info.world_size() == 1 ? " rank" : " ranks",
                                             info.act() ? ", switches allowed" : ", observe only")));
  }
  started_ = true;
  ended_ = false;
  silent_ = false;
  restored_ = false;
  last_seen_ = std::max(last_seen_, now);
  // A stream that broke and came back within the grace period is no news.
  if (known && !again && !was_told_lost) return;
  Take(joined_.Add(key.rank, info.world_size(), absl::StrCat("on ", info.host(), " (pid ", info.pid(), ")")), events);
}

void RunPicture::Updated(const RankKey& key, const v1::RankInfo& info) {
  const auto found = ranks_.find(key.rank);
  if (found == ranks_.end() || found->second.info.incarnation() != key.incarnation) return;
  found->second.info = info;
}

void RunPicture::Steps(const RankKey& key, absl::Span<const v1::Step* const> steps, int64_t now) {
  const auto found = ranks_.find(key.rank);
  if (found == ranks_.end() || steps.empty()) return;
  Rank& rank = found->second;
  if (rank.info.incarnation() != key.incarnation) return;
  uint32_t lowest = key.rank;
  for (const auto& [number, other] : ranks_) {
    if (!other.connected) continue;
    lowest = number;
    break;
  }
  for (const v1::Step* step : steps) {
    if (rank.restarted) pace_.clear();
    for (const v1::Block& block : step->blocks()) {
      const auto metric = metrics_.find(block.metric());
      if (metric == metrics_.end()) continue;
      metric->second.Add(step->step(), block, rank.restarted);
      CountNonFinite(metric->second, block);
    }
    last_step_ = rank.restarted ? step->step() : std::max(last_step_, step->step());
    rank.restarted = false;
    if (key.rank != lowest) continue;
    ++steps_;
    pace_.emplace_back(step->time_unix_nanos(), step->step());
    if (pace_.size() > kPaceSamples) pace_.pop_front();
  }
  last_seen_ = now;
  silent_ = false;
}

void RunPicture::CountNonFinite(const MetricFold& metric, const v1::Block& block) {
  const std::string& name = metric.descriptor().name();
  absl::string_view counted = name;
  if (absl::ConsumeSuffix(&counted, "_nonfinite")) {
    uint64_t sum = 0;
    for (const uint64_t value : block.uint64()) sum += value;
    nonfinite_[std::string(counted)] += sum;
  } else if (metric.descriptor().axes_size() == 0 && block.float32_size() == 1) {
    nonfinite_[name] += std::isfinite(block.float32(0)) ? 0 : 1;
  }
}

bool RunPicture::AllLeftCleanly() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.second.clean; });
}

void RunPicture::TellEnd(std::vector<v1::Event>* events) {
  if (ended_ || connected_ > 0 || !AllLeftCleanly()) return;
  ended_ = true;
  Take(left_.Flush(world_size_), events);
  events->push_back(
      MakeEvent("run_finished", v1::SEVERITY_INFO, last_step_, absl::StrCat("run finished at step ", last_step_)));
}

void RunPicture::Left(const RankKey& key, LeaveReason reason, const std::string& detail, int64_t now,
                      std::vector<v1::Event>* events) {
  const auto found = ranks_.find(key.rank);
  if (found == ranks_.end() || found->second.info.incarnation() != key.incarnation) return;
  Rank& rank = found->second;
  if (!rank.connected) return;
  rank.connected = false;
  --connected_;
  last_left_ = now;
  switch (reason) {
    case LeaveReason::kFinished:
      rank.clean = true;
      Take(left_.Add(key.rank, world_size_, detail.empty() ? "" : absl::StrCat("(", detail, ")")), events);
      break;
    case LeaveReason::kDisconnected:
      rank.lost_at = now;
      break;
    case LeaveReason::kDied:
    case LeaveReason::kReplaced:
      Take(lost_.Add(key.rank, world_size_, detail.empty() ? "" : absl::StrCat("at step ", last_step_, ": ", detail)),
           events);
      break;
  }
  if (ranks_.size() >= world_size_) TellEnd(events);
}

void RunPicture::Tick(const RegistryOptions& options, int64_t now, std::vector<v1::Event>* events) {
  const auto seconds_since = [now](int64_t then) { return static_cast<double>(now - then) / kNanosPerSecond; };
  for (auto& [number, rank] : ranks_) {
    if (rank.lost_at == 0 || seconds_since(rank.lost_at) < options.reconnect_grace_seconds) continue;
    rank.lost_at = 0;
    Take(lost_.Add(number, world_size_, absl::StrCat("at step ", last_step_, ": its courier did not come back")),
         events);
  }
  Take(joined_.Flush(world_size_), events);
  Take(left_.Flush(world_size_), events);
  Take(lost_.Flush(world_size_), events);
  if (started_ && last_left_ != 0 && seconds_since(last_left_) >= kPartialEndSeconds) TellEnd(events);
  const double quiet = seconds_since(last_seen_);
  if (silent_ || connected_ == 0 || quiet < options.silent_after_seconds) return;
  silent_ = true;
  events->push_back(MakeEvent(
      "run_silent", v1::SEVERITY_WARNING, last_step_,
      absl::StrCat("no step from any rank for ", static_cast<int64_t>(quiet), " s; last was step ", last_step_)));
}

void RunPicture::RestoreRun(const StoredRun& stored, bool finished) {
  first_seen_ = stored.first_seen_unix_nanos;
  last_seen_ = first_seen_;
  started_ = true;
  restored_ = true;
  ended_ = finished;
  for (const v1::MetricDescriptor& metric : stored.metrics) AddMetric(metric);
  for (const v1::RankInfo& info : stored.ranks) {
    ranks_[info.rank()].info = info;
    ranks_[info.rank()].clean = finished;
    world_size_ = std::max(world_size_, info.world_size());
  }
}

void RunPicture::RestoreRow(uint32_t metric, const Store::Row& row) {
  const auto found = metrics_.find(metric);
  if (found == metrics_.end()) return;
  found->second.Add(row.step, row.block, /*restarted=*/false);
  // The trainer's clock decides, even when it is behind ours: first_seen_ stands in only while there is no row.
  last_seen_ = last_seen_ == first_seen_ ? row.time_unix_nanos : std::max(last_seen_, row.time_unix_nanos);
  last_step_ = std::max(last_step_, row.step);
}

const MetricFold* RunPicture::FindMetric(const std::string& name) const {
  for (const auto& [id, metric] : metrics_) {
    if (metric.descriptor().name() == name) return metric.empty() ? nullptr : &metric;
  }
  return nullptr;
}

double RunPicture::StepsPerSecond() const {
  if (pace_.size() < 2 || silent_ || connected_ == 0) return 0;
  const double seconds = static_cast<double>(pace_.back().first - pace_.front().first) / kNanosPerSecond;
  const uint64_t from = pace_.front().second, to = pace_.back().second;
  return seconds > 0 && to > from ? static_cast<double>(to - from) / seconds : 0;
}

v1::RunSummary RunPicture::Summary() const {
  v1::RunSummary summary;
  summary.set_run(run_);
  summary.set_first_seen_unix_nanos(first_seen_);
  summary.set_last_seen_unix_nanos(last_seen_);
  summary.set_last_step(last_step_);
  summary.set_world_size(world_size_);
  summary.set_ranks_connected(connected_);
  uint32_t layers = 0;
  for (const auto& [number, rank] : ranks_) {
    if (rank.info.act()) summary.set_act(true);
    layers = std::max(layers, static_cast<uint32_t>(rank.info.layers_size()));
  }
  for (const auto& [id, metric] : metrics_) {
    if (!metric.empty() && metric.value().shape_size() > 0) layers = std::max(layers, metric.value().shape(0));
  }
  summary.set_layers(layers);
  const MetricFold* loss = FindMetric("loss");
  summary.set_loss(loss != nullptr && loss->value().float32_size() == 1 ? loss->value().float32(0)
                                                                        : std::numeric_limits<float>::quiet_NaN());
  const bool waiting = std::any_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r.second.lost_at != 0; });
  if (connected_ > 0 || waiting) {
    summary.set_status(silent_ ? "silent" : "running");
  } else if (AllLeftCleanly()) {
    summary.set_status("finished");
  } else {
    summary.set_status(restored_ ? "silent" : "lost");
  }
  return summary;
}

v1::RunState RunPicture::State(bool with_ranks) const {
  v1::RunState state;
  *state.mutable_summary() = Summary();
  if (with_ranks) {
    for (const auto& [number, rank] : ranks_) *state.add_ranks() = rank.info;
  }
  for (const auto& [id, metric] : metrics_) {
    *state.add_metrics() = metric.descriptor();
    if (metric.empty()) continue;
    *state.add_latest() = metric.value();
    state.mutable_latest(state.latest_size() - 1)->set_metric(id);
    state.add_latest_steps(metric.step());
  }
  const MetricFold* modes = FindMetric("attention_mode");
  if (modes != nullptr) {
    for (const uint64_t mode : modes->value().uint64()) state.add_modes(static_cast<v1::KernelMode>(mode));
  } else if (!ranks_.empty()) {
    *state.mutable_modes() = ranks_.begin()->second.info.modes();
  }
  state.set_steps_per_second(StepsPerSecond());
  return state;
}

RunCounts RunPicture::Counts() const { return {.run = run_, .steps = steps_, .nonfinite = nonfinite_}; }

}  // namespace trimtab::server
