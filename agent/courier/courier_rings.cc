// How the courier finds what it has to deliver.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "agent/courier/courier.h"
#include "agent/courier/limits.h"
#include "agent/courier/rank_info.h"

namespace trimtab::courier {
namespace {

constexpr auto kNotReadyPatience = std::chrono::seconds(10);

bool SameRank(const v1::RankInfo& a, const v1::RankInfo& b) {
  return a.incarnation() == b.incarnation() && a.rank() == b.rank() && a.run() == b.run();
}

}  // namespace

// Never fails: there are as many numbers as channels.
uint32_t Courier::TakeId() {
  const uint32_t id = free_ids_.front();
  free_ids_.pop_front();
  return id;
}

void Courier::AdoptSpool(TimePoint now) {
  for (std::unique_ptr<SpoolLog>& log : spool_.Adopt(options_.adopt_any, kMaxChannels)) {
    v1::Hello hello = log->meta().hello();
    auto channel = std::make_unique<Channel>(TakeId(), std::move(hello), std::move(log), options_.timings, now);
    spdlog::info("{}: found steps in the spool that were not delivered yet", channel->Name());
    channels_.emplace(channel->id(), std::move(channel));
  }
  if (spool_.foreign_channels() > 0) {
    spdlog::info("{} holds {} channels that were meant for another server; --adopt-any delivers them here",
                 options_.spool_dir, spool_.foreign_channels());
  }
}

void Courier::ScanRings(TimePoint now) {
  if (now < next_scan_) return;
  next_scan_ = now + options_.timings.scan;
  watcher_.Prune();
  not_ready_ = 0;
  for (const RingFile& file : watcher_.Scan()) {
    if (channels_.size() >= kMaxChannels) {
      if (!full_logged_) spdlog::error("{} channels are served; further rings wait, first {}", kMaxChannels, file.path);
      full_logged_ = true;
      ++not_ready_;
      break;
    }
    OpenRing(file, now);
  }
  if (!scanned_once_) {
    for (auto& [id, channel] : channels_) {
      if (!channel->has_ring()) channel->EndWithoutRing();
    }
    scanned_once_ = true;
  }
}

void Courier::OpenRing(const RingFile& file, TimePoint now) {
  agent::RingError error = agent::RingError::kOk;
  std::string message;
  std::unique_ptr<agent::RingReader> ring = agent::RingReader::Open(file.path, &error, &message);
  if (ring == nullptr && error == agent::RingError::kNotFound) return;
  if (ring == nullptr && error == agent::RingError::kNotReady) {
    const TimePoint since = unready_since_.emplace(file, now).first->second;
    if (now - since < kNotReadyPatience) {
      ++not_ready_;  // its writer may still be making it
    } else {
      spdlog::warn("{} was never finished by its writer; left alone", file.path);
      watcher_.Know(file);
      unready_since_.erase(file);
    }
    return;
  }
  unready_since_.erase(file);
  watcher_.Know(file);
  ring_seen_ = true;
  if (ring == nullptr) {
    const bool aside = error == agent::RingError::kCorrupt && SetAsideRing(file);
    spdlog::error("{}: {}{}", file.path, message, aside ? "; renamed to *.corrupt" : "; left alone");
    return;
  }
  absl::StatusOr<v1::RankInfo> rank = RankInfoFromIdentity(ring->identity());
  if (!rank.ok()) {
    spdlog::error("{}: {}; renamed to *.corrupt", file.path, std::string(rank.status().message()));
    SetAsideRing(file);
    return;
  }
  for (auto& [id, channel] : channels_) {
    if (!SameRank(channel->rank(), *rank)) continue;
    if (channel->has_ring()) {
      spdlog::error("{} is a copy of {}; left alone", file.path, channel->file().path);
    } else {
      channel->AttachRing(std::move(ring), file);
    }
    return;
  }
  v1::Hello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_courier_version(trimtab_version());
  *hello.mutable_rank() = *std::move(rank);
  for (const v1::MetricDescriptor& row : schema_) *hello.add_metrics() = row;
  std::unique_ptr<SpoolLog> log = spool_.Create(hello);
  auto channel = std::make_unique<Channel>(TakeId(), std::move(hello), std::move(log), options_.timings, now);
  channel->AttachRing(std::move(ring), file);
  spdlog::info("{}: serving {}", channel->Name(), file.path);
  channels_.emplace(channel->id(), std::move(channel));
}

void Courier::ServeRings(TimePoint now) {
  ChannelLimits limits;
  limits.memory_bytes = std::min(kMemoryBytesPerChannel, kMemoryBytesTotal / std::max<size_t>(1, channels_.size()));
  limits.server_failed = link_->failed();
  limits.server_away = link_->away(now);
  for (auto& [id, channel] : channels_) {
    const bool was_corrupt = !channel->corrupt().empty();
    channel->PollRing(limits, now);
    if (was_corrupt || channel->corrupt().empty()) continue;
    const bool aside = SetAsideRing(channel->file());
    spdlog::error("{}: {}: {}{}", channel->Name(), channel->file().path, channel->corrupt(),
                  aside ? "; renamed to *.corrupt" : "");
  }
}

}  // namespace trimtab::courier
