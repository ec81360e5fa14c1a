#include "agent/courier/courier.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/process_id.h"
#include "agent/courier/limits.h"
#include "agent/courier/step_encoder.h"

namespace trimtab::courier {
namespace {

constexpr char kLockName[] = ".courier.lock";

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Courier::Courier(Options options, SessionFactory factory)
    : options_(std::move(options)),
      watcher_(options_.ring_dir),
      spool_({options_.spool_dir, options_.spool_bytes, options_.server}),
      schema_(MetricSchema()) {
  // The server counts the numbers that a stream has used: a stream that lives for months uses the same ones again.
  for (uint32_t id = 1; id <= kMaxChannels; ++id) free_ids_.push_back(id);
  link_.emplace(std::move(factory), options_.server, options_.timings, Clock::now());
  agent::ProcessStat parent;
  if (options_.parent_pid != 0 && agent::ReadProcessStat(options_.parent_pid, &parent))
    parent_start_ = parent.start_ticks;
}

int Courier::Run() {
  struct stat spool {};
  const bool there = stat(options_.spool_dir.c_str(), &spool) == 0;
  if (there ? !S_ISDIR(spool.st_mode) : errno == ENOTDIR) {
    spdlog::error("the spool folder {} is a file or below one; give a folder with --spool-dir", options_.spool_dir);
    return kExitUsage;
  }
  if (std::optional<int> code = TakeLock()) return *code;
  AdoptSpool(Clock::now());
  std::optional<TimePoint> stop_at;
  while (true) {
    const TimePoint now = Clock::now();
    ScanRings(now);
    ServeRings(now);
    if (link_->open() && !link_->half_closed()) PumpChannels(now);
    SweepChannels();
    if (fatal_) return kExitRefused;
    if (stop_.load(std::memory_order_relaxed) && !stop_at.has_value()) stop_at = now + options_.timings.stop;
    if (stop_at.has_value()) {
      const bool quiet =
          std::all_of(channels_.begin(), channels_.end(), [](const auto& c) { return c.second->quiet(); });
      if (quiet || now >= *stop_at) return Finish();
    } else if (ParentGone(now) || EndsWhenIdle()) {  // in this order: the first one looks
      if (std::optional<int> code = IdleEnd(now)) return *code;
    }
    link_->Turn(!channels_.empty(), std::chrono::milliseconds(options_.poll_ms), this, Clock::now());
  }
}

// One courier serves a ring folder. nullopt: it is us.
std::optional<int> Courier::TakeLock() {
  if (mkdir(options_.ring_dir.c_str(), 0700) != 0 && errno != EEXIST) {
    spdlog::error("cannot make the ring folder {}: {}", options_.ring_dir, std::strerror(errno));
    return kExitUsage;
  }
  const std::string path = absl::StrCat(options_.ring_dir, "/", kLockName);
  bool waited = false;
  while (true) {
    absl::StatusOr<std::optional<FileLock>> lock = FileLock::Try(path);
    if (!lock.ok()) {
      spdlog::error("{}", std::string(lock.status().message()));
      return kExitUsage;
    }
    if (lock->has_value()) {
      lock_ = *std::move(lock);
      if (waited) spdlog::info("the other courier has ended; this one takes over {}", options_.ring_dir);
      return std::nullopt;
    }
    if (!options_.wait_lock) {
      spdlog::info("another courier serves {}; nothing to do", options_.ring_dir);
      return kExitOk;
    }
    if (!waited) spdlog::info("another courier serves {}; waiting for its end", options_.ring_dir);
    waited = true;
    // What the other one delivers meanwhile counts as seen: there may be nothing left when it ends.
    if (!watcher_.Scan().empty()) ring_seen_ = true;
    if (stop_.load(std::memory_order_relaxed) || ParentGone(Clock::now())) return kExitOk;
    std::this_thread::sleep_for(options_.timings.scan);
  }
}

bool Courier::ParentGone(TimePoint now) {
  if (options_.parent_pid == 0 || parent_gone_) return parent_gone_;
  if (now < next_parent_) return false;
  next_parent_ = now + options_.timings.liveness;
  parent_gone_ = parent_start_ == 0 || !agent::IsProcessAlive(options_.parent_pid, parent_start_);
  if (parent_gone_) spdlog::info("process {} has ended; delivering what is left", options_.parent_pid);
  return parent_gone_;
}

void Courier::PumpChannels(TimePoint now) {
  auto it = channels_.upper_bound(first_pumped_);
  for (size_t i = 0; i < channels_.size(); ++i, ++it) {
    if (it == channels_.end()) it = channels_.begin();
    if (i == 0) first_pumped_ = it->first;
    if (it->second->wants_hello(now) && WaitsForEarlierLife(*it->second)) continue;
    it->second->Pump(link_->outbox(), now);
  }
  const bool dropped_more = SpoolDropped() != reported_dropped_ && now - last_heartbeat_ > std::chrono::seconds(1);
  if (link_->up() && (now >= next_heartbeat_ || dropped_more)) SendHeartbeat(now);
}

// A rank that was started again: the server takes its new life when the old one has said Goodbye, so that one goes
// first.
bool Courier::WaitsForEarlierLife(const Channel& channel) const {
  for (const auto& [id, other] : channels_) {
    const Channel::State state = other->state();
    if (other.get() == &channel || state == Channel::State::kRefused || state == Channel::State::kDeparting) continue;
    if (other->rank().rank() != channel.rank().rank() || other->rank().run() != channel.rank().run()) continue;
    if (!other->ending()) continue;
    if (!channel.ending() || std::pair(other->opened_at(), id) < std::pair(channel.opened_at(), channel.id()))
      return true;
  }
  return false;
}

void Courier::SendHeartbeat(TimePoint now) {
  next_heartbeat_ = now + options_.timings.heartbeat;
  last_heartbeat_ = now;
  reported_dropped_ = SpoolDropped();
  v1::AgentMessage message;
  message.mutable_heartbeat()->set_time_unix_nanos(UnixNanos());
  message.mutable_heartbeat()->set_spool_bytes(spool_.bytes());
  message.mutable_heartbeat()->set_spool_dropped_steps(reported_dropped_);
  link_->outbox()->Send(std::move(message));
}

uint64_t Courier::SpoolDropped() const {
  uint64_t dropped = finished_spool_dropped_;
  for (const auto& [id, channel] : channels_) dropped += channel->spool_dropped();
  return dropped;
}

void Courier::SweepChannels() {
  for (auto it = channels_.begin(); it != channels_.end();) {
    if (it->second->state() != Channel::State::kDone) {
      ++it;
      continue;
    }
    finished_spool_dropped_ += it->second->spool_dropped();
    spdlog::info("{}: delivered ({} steps overwritten in the ring, {} dropped by the spool)", it->second->Name(),
                 it->second->ring_dropped(), it->second->spool_dropped());
    free_ids_.push_back(it->first);
    it = channels_.erase(it);
    full_logged_ = false;
  }
}

// --- link --------------------------------------------------------------------------------------------------------

void Courier::OnStreamOpened() {
  reported_dropped_ = 0;  // this server may not have heard
  next_heartbeat_ = Clock::now();
}

void Courier::OnStreamClosed(bool orderly) {
  for (auto& [id, channel] : channels_) channel->OnStreamClosed(orderly);
}

void Courier::OnMessage(const v1::ServerMessage& message, Outbox* outbox) {
  uint32_t id = 0;
  switch (message.body_case()) {
    case v1::ServerMessage::kWelcome:
      id = message.welcome().channel();
      break;
    case v1::ServerMessage::kDurable:
      id = message.durable().channel();
      break;
    case v1::ServerMessage::kCommand:
      id = message.command().channel();
      break;
    case v1::ServerMessage::kRefusal:
      id = message.refusal().channel();
      if (message.refusal().fatal()) {
        spdlog::critical("{} refused this courier: {}", options_.server, message.refusal().message());
        fatal_ = true;
        return;
      }
      break;
    case v1::ServerMessage::BODY_NOT_SET:
      return;  // of a newer server
  }
  const auto it = channels_.find(id);
  if (it == channels_.end()) return;  // ended meanwhile
  Channel& channel = *it->second;
  const TimePoint now = Clock::now();
  if (message.has_welcome()) channel.OnWelcome(message.welcome(), now);
  if (message.has_durable()) channel.OnDurable(message.durable(), now);
  if (message.has_command()) channel.OnCommand(message.command(), outbox, now);
  if (message.has_refusal()) channel.OnRefusal(message.refusal(), now);
}

// --- the end -----------------------------------------------------------------------------------------------------

std::optional<int> Courier::IdleEnd(TimePoint now) {
  const bool expected = ring_seen_ || options_.drain || parent_gone_;
  const bool all_parked =
      std::all_of(channels_.begin(), channels_.end(), [](const auto& c) { return c.second->parked(); });
  const bool all_ended =
      std::all_of(channels_.begin(), channels_.end(), [](const auto& c) { return c.second->ended(); });
  if (!expected || !all_ended || not_ready_ > 0) {
    idle_since_.reset();
    return std::nullopt;
  }
  // No channel gets anywhere: the server is away, does not acknowledge, or asks to come back later.
  const Timings& timings = options_.timings;
  const bool hopeless = !channels_.empty() && std::all_of(channels_.begin(), channels_.end(), [&](const auto& c) {
    return link_->away(now) > timings.park_after || c.second->stuck(now) > timings.stall + timings.park_after;
  });
  if (hopeless && all_parked) {
    spdlog::warn("{} does not take steps; {} bytes stay in {} for the next courier", options_.server, spool_.bytes(),
                 options_.spool_dir);
    return kExitOk;
  }
  if (!hopeless) hopeless_since_.reset();
  if (hopeless && !hopeless_since_.has_value()) hopeless_since_ = now;
  if (hopeless && now - *hopeless_since_ > timings.park_after) {
    spdlog::error("{} does not take steps and the spool cannot hold them; the rest stays in {}", options_.server,
                  options_.ring_dir);
    return kExitLeftInRing;
  }
  // Departing channels need the server's word; with nothing else to do, an orderly end of the stream is just that.
  const bool only_departing = std::all_of(channels_.begin(), channels_.end(), [](const auto& c) {
    return c.second->state() == Channel::State::kDeparting;
  });
  if (!only_departing) {
    idle_since_.reset();
    return std::nullopt;
  }
  if (!idle_since_.has_value()) idle_since_ = now;
  if (now - *idle_since_ < options_.timings.settle) return std::nullopt;
  if (link_->open()) {
    if (!link_->half_closed() && link_->up()) SendHeartbeat(now);
    link_->HalfClose(now);
    return std::nullopt;
  }
  return channels_.empty() ? std::optional<int>(kExitOk) : std::nullopt;
}

int Courier::Finish() {
  bool safe = true;
  for (auto& [id, channel] : channels_) {
    if (!channel->quiet()) safe = channel->SpillAll() && safe;
  }
  if (!safe) spdlog::error("stopping; the spool could not take all, the rest stays in {}", options_.ring_dir);
  spdlog::info("stopped");
  return kExitOk;
}

}  // namespace trimtab::courier
