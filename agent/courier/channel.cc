// The half of a channel that faces the ring; channel_server.cc has the other.
#include "agent/courier/channel.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/ring_format.h"
#include "agent/courier/limits.h"
#include "agent/courier/rank_info.h"

namespace trimtab::courier {
namespace {

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What the step takes in the ring.
double RecordBytes(const agent::RingStep& step) {
  uint64_t bytes = sizeof(agent::RecordHeader);
  for (const agent::RingBlock& block : step.blocks) {
    bytes += sizeof(agent::BlockHeader) + agent::RoundUp(block.count * (block.is_uint64 ? 8 : 4), 8);
  }
  return static_cast<double>(agent::RoundUp(bytes, agent::kRecordAlign));
}

}  // namespace

Channel::Channel(uint32_t id, v1::Hello hello, std::unique_ptr<SpoolLog> log, const Timings& timings, TimePoint now)
    : id_(id),
      timings_(timings),
      hello_(std::move(hello)),
      queue_(std::move(log)),
      commands_(timings.command_min, timings.command_max),
      opened_at_(now),
      last_progress_(now),
      retry_after_(timings.refused_retry) {
  hello_.set_channel(id);
  last_read_ = queue_.last();
  const SpoolMeta& meta = queue_.log().meta();
  ring_dropped_ = meta.ring_dropped_steps();
  ended_ = meta.ended();
  parked_ = ended_;
}

std::string Channel::Name() const { return absl::StrCat("run \"", rank().run(), "\" rank ", rank().rank()); }

void Channel::AttachRing(std::unique_ptr<agent::RingReader> ring, RingFile file) {
  ring_ = std::move(ring);
  file_ = std::move(file);
  ended_ = false;
  parked_ = false;
  queue_.log().meta().set_ended(false);
  ReadInfo();
  update_due_ = false;  // the Hello carries it
}

void Channel::EndWithoutRing() {
  if (!ended_) End(false, "the courier and the ring ended before all was delivered");
  parked_ = true;
}

void Channel::PollRing(const ChannelLimits& limits, TimePoint now) {
  if (ring_ == nullptr || state_ == State::kDone) return;
  if (state_ == State::kRefused && !may_retry_) {
    CheckEnd(now, true);
    if (ended_) Finish();
    return;
  }
  const Duration away = Away(limits, now);
  // A Welcome, if there will be one, saves reading what the server has.
  if (!reading_ && (welcomed_ || limits.server_failed || now - opened_at_ > timings_.spill_after)) StartReading();
  if (!reading_) return;
  if (ended_) {
    if (away > timings_.park_after && !parked_) Park(now);
    return;
  }
  if (now >= next_info_) {
    next_info_ = now + timings_.info;
    ReadInfo();
  }
  commands_.Poll(ring_.get(), now, UnixNanos());
  if (other_life_ && !writer_gone_) {
    // As long as the other one reports, this one's steps are nobody's: they stay in the ring while it holds them.
    CheckEnd(now, false);
    return;
  }
  ReadSteps(limits, now);
  if ((away > timings_.spill_after || RingMayOverwrite()) && queue_.memory_bytes() > 0) TrySpill(now);
}

Duration Channel::stuck(TimePoint now) const {
  return quiet() && (state_ == State::kOpen || state_ == State::kDeparting) ? Duration::zero() : now - last_progress_;
}

Duration Channel::Away(const ChannelLimits& limits, TimePoint now) const {
  const Duration stuck_for = stuck(now);
  return std::max(limits.server_away, stuck_for > timings_.stall ? stuck_for : Duration::zero());
}

void Channel::StartReading() {
  reading_ = true;
  last_read_ = queue_.last();
  gap_base_ = last_read_;
  ring_->SeekAfter(last_read_);
}

void Channel::ReadSteps(const ChannelLimits& limits, TimePoint now) {
  for (int i = 0; i < kMaxReadsPerTurn; ++i) {
    if (queue_.memory_bytes() >= limits.memory_bytes && !MakeRoom(limits, now)) break;
    switch (ring_->Next(&scratch_)) {
      case agent::ReadResult::kStep:
        Accept(scratch_);
        break;
      case agent::ReadResult::kSkipped:
        break;  // counted by the gap in sequences
      case agent::ReadResult::kEmpty:
        CheckEnd(now, true);
        return;
      case agent::ReadResult::kCorrupt:
        corrupt_ = ring_->error();
        End(false, absl::StrCat("ring corrupt: ", corrupt_));
        return;
    }
  }
  CheckEnd(now, false);
}

void Channel::Accept(const agent::RingStep& step) {
  if (step.sequence <= last_read_) return;
  const uint64_t gap = step.sequence - last_read_ - 1;
  if (gap > 0 && !welcomed_ && last_read_ == gap_base_) {
    first_after_gap_ = step.sequence;
  } else {
    ring_dropped_ += gap;
  }
  last_read_ = step.sequence;
  std::string bytes;
  const absl::Status encoded = encoder_.Encode(step, &bytes);
  if (encoder_.bad_blocks() > 0 && !bad_blocks_logged_) {
    bad_blocks_logged_ = true;
    spdlog::warn("{}: a block was left out: {}", Name(), encoder_.bad_block_reason());
  }
  if (!encoded.ok()) {
    ++ring_dropped_;
    if (!large_step_logged_) spdlog::warn("{}: {}", Name(), std::string(encoded.message()));
    large_step_logged_ = true;
    return;
  }
  const double bytes_in_ring = RecordBytes(step);
  step_bytes_ = step_bytes_ == 0 ? bytes_in_ring : 0.9 * step_bytes_ + 0.1 * bytes_in_ring;
  queue_.Push(step.sequence, std::move(bytes));
}

// Memory is full. Either the spool takes it, or the rest stays in the ring until the server has caught up.
bool Channel::MakeRoom(const ChannelLimits& limits, TimePoint now) {
  if (Away(limits, now) <= timings_.spill_after && !RingMayOverwrite()) return false;
  return TrySpill(now);
}

// Steps that are neither acknowledged nor spooled have come to fill half of the ring: the writer will soon overwrite
// them, and what is in memory would be lost with this process.
bool Channel::RingMayOverwrite() const {
  const uint64_t safe = std::max(queue_.acked(), queue_.log().last_sequence());
  const uint64_t newest = ring_->last_sequence();
  const uint64_t ring_bytes = file_.bytes > agent::kDataOffset ? file_.bytes - agent::kDataOffset : 0;
  return newest > safe && static_cast<double>(newest - safe) * step_bytes_ > static_cast<double>(ring_bytes) / 2;
}

bool Channel::TrySpill(TimePoint now) {
  if (spool_failing_ && now < next_spill_) return false;
  queue_.log().meta().set_ring_dropped_steps(ring_dropped_);
  const absl::Status status = queue_.Spill();
  if (!status.ok()) {
    if (!spool_failing_) {
      spdlog::error("{}: spool: {}; steps stay in the ring while it holds them", Name(), std::string(status.message()));
    }
    next_spill_ = now + std::chrono::seconds(1);
  } else if (spool_failing_) {
    spdlog::info("{}: the spool takes steps again", Name());
  }
  spool_failing_ = !status.ok();
  return status.ok();
}

bool Channel::SpillAll() { return queue_.OnDisk() || (queue_.Spill().ok() && queue_.log().Seal().ok()); }

void Channel::ReadInfo() {
  std::string json;
  if (!ring_->ReadInfo(&json)) return;
  absl::StatusOr<v1::RankInfo> info = RankInfoFromJson(hello_.rank(), json);
  if (!info.ok()) {
    if (!info_failing_) spdlog::warn("{}: {}; the info before it stays", Name(), std::string(info.status().message()));
    info_failing_ = true;
    return;
  }
  info_failing_ = false;
  *hello_.mutable_rank() = *std::move(info);
  update_due_ = true;
  *queue_.log().meta().mutable_hello() = hello_;
  queue_.log().SaveMeta().IgnoreError();  // the meta of before will do
}

void Channel::CheckEnd(TimePoint now, bool drained) {
  // Only a turn that began with the writer gone and found the ring empty has seen its last step.
  if (writer_gone_ && drained) {
    if (state_ != State::kRefused) ReadInfo();
    const bool clean = ring_->closed();
    const uint64_t newest = ring_->last_sequence();
    if (newest > last_read_ && welcomed_) ring_dropped_ += newest - last_read_;
    End(clean, clean ? "the trainer closed its ring"
                     : absl::StrCat("process ", rank().pid(), " ended without closing its ring"));
    return;
  }
  if (ring_->closed()) {
    writer_gone_ = true;
  } else if (now >= next_liveness_) {
    next_liveness_ = now + timings_.liveness;
    writer_gone_ = !ring_->writer_alive();
  }
}

void Channel::End(bool clean, std::string reason) {
  ended_ = true;
  SpoolMeta& meta = queue_.log().meta();
  meta.set_clean(clean);
  meta.set_end_reason(std::move(reason));
}

// Moves an ended ring wholly into the spool, so that its memory can be given back while the server is away.
void Channel::Park(TimePoint now) {
  if (!TrySpill(now)) return;
  queue_.log().meta().set_ended(true);
  if (absl::Status status = queue_.log().Seal(); !status.ok()) {
    queue_.log().meta().set_ended(false);
    return;
  }
  parked_ = true;
  if (corrupt_.empty()) RemoveRing(file_);
  ring_.reset();
  spdlog::info("{}: ended; what the server has not taken is in {}", Name(), queue_.log().folder());
}

}  // namespace trimtab::courier
