// One ring, or what the spool holds of one that is gone, on its way to the server.
//
//   kNew ──stream──▶ kGreeted ──Welcome──▶ kOpen ──all acknowledged──▶ kDeparting ──▶ kDone
//     ▲                │                     │                             │
//     └──────── stream ended ────────────────┴─────────────────────────────┘        Refusal ──▶ kRefused ──▶ kNew |
//     kDone
//
// A refusal that may pass is asked again, with growing waits; one that may not ends the channel with its ring.
// A channel is driven by the courier's loop, one thread: PollRing takes steps in, Pump sends. Time is given, not read.
#ifndef TRIMTAB_AGENT_COURIER_CHANNEL_H_
#define TRIMTAB_AGENT_COURIER_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "agent/core/ring_reader.h"
#include "agent/courier/command_relay.h"
#include "agent/courier/options.h"
#include "agent/courier/ring_watcher.h"
#include "agent/courier/session.h"
#include "agent/courier/step_encoder.h"
#include "agent/courier/step_queue.h"

namespace trimtab::courier {

struct ChannelLimits {
  bool server_failed = false;  // the last attempt to reach the server failed
  size_t memory_bytes = 0;     // unacknowledged steps in memory
  Duration server_away = {};   // since when no stream is up; 0 while one is
};

class Channel {
 public:
  enum class State { kNew, kGreeted, kOpen, kDeparting, kRefused, kDone };

  // `hello` carries identity and schema; its channel number is set to `id`. Without a ring (AttachRing), the channel
  // delivers what `log` holds.
  Channel(uint32_t id, v1::Hello hello, std::unique_ptr<SpoolLog> log, const Timings& timings, TimePoint now);

  void AttachRing(std::unique_ptr<agent::RingReader> ring, RingFile file);
  bool has_ring() const { return ring_ != nullptr; }
  // The ring of this channel is gone for good (only for channels without one).
  void EndWithoutRing();

  // Takes in what the ring holds, as far as memory, spool and server allow.
  void PollRing(const ChannelLimits& limits, TimePoint now);
  // Sends what there is to say, a Hello first. Call only while a stream is open.
  void Pump(Outbox* outbox, TimePoint now);
  // A Hello is due with the next Pump.
  bool wants_hello(TimePoint now) const {
    return state_ == State::kNew || (state_ == State::kRefused && may_retry_ && now >= retry_at_);
  }

  void OnStreamClosed(bool orderly);
  void OnWelcome(const v1::Welcome& welcome, TimePoint now);
  void OnDurable(const v1::DurableAck& ack, TimePoint now);
  void OnCommand(const v1::Command& command, Outbox* outbox, TimePoint now);
  void OnRefusal(const v1::Refusal& refusal, TimePoint now);

  // Stops taking steps in and moves all of memory to the spool. True when everything is there (or delivered).
  bool SpillAll();

  uint32_t id() const { return id_; }
  State state() const { return state_; }
  TimePoint opened_at() const { return opened_at_; }
  const v1::RankInfo& rank() const { return hello_.rank(); }
  const RingFile& file() const { return file_; }
  std::string Name() const;  // for logs: run "x" rank 3
  // The writer has closed the ring or is gone, and all of the ring was taken in.
  bool ended() const { return ended_; }
  // Ended, or will be as soon as the ring is read to its end.
  bool ending() const { return ended_ || (ring_ != nullptr && (ring_->closed() || !ring_->writer_alive())); }
  // Ended, and all that is not delivered is safely in the spool; the ring file is gone.
  bool parked() const { return parked_; }
  // How long nothing was acknowledged although something should have been; 0 while all is well. Includes the time since
  // a refusal that may pass.
  Duration stuck(TimePoint now) const;
  // Nothing is on its way: everything that was read is acknowledged.
  bool quiet() const { return queue_.acked() >= queue_.last(); }
  uint64_t spool_dropped() const { return queue_.dropped(); }
  uint64_t ring_dropped() const { return ring_dropped_; }
  // The ring contradicts itself; its file is to be set aside. Reason for the log.
  const std::string& corrupt() const { return corrupt_; }

 private:
  Duration Away(const ChannelLimits& limits, TimePoint now) const;
  void StartReading();
  void ReadSteps(const ChannelLimits& limits, TimePoint now);
  void Accept(const agent::RingStep& step);
  bool MakeRoom(const ChannelLimits& limits, TimePoint now);
  bool RingMayOverwrite() const;
  bool TrySpill(TimePoint now);
  void ReadInfo();
  void CheckEnd(TimePoint now, bool drained);
  void End(bool clean, std::string reason);
  void Park(TimePoint now);
  void SendHello(Outbox* outbox);
  void SendAcks(Outbox* outbox);
  void SendUpdate(Outbox* outbox, TimePoint now);
  void SendBatches(Outbox* outbox);
  void Finish();
  bool Answered(const v1::Command& command) const;

  const uint32_t id_;
  const Timings& timings_;
  State state_ = State::kNew;
  v1::Hello hello_;
  std::unique_ptr<agent::RingReader> ring_;
  RingFile file_;
  StepQueue queue_;
  StepEncoder encoder_;
  agent::RingStep scratch_;
  CommandRelay commands_;
  TimePoint opened_at_;

  // Ring side.
  bool reading_ = false;
  bool welcomed_ = false;         // at least once in this process
  uint64_t gap_base_ = 0;         // last_read_ when reading began
  uint64_t first_after_gap_ = 0;  // what is missing between the two was perhaps delivered before: the Welcome tells
  uint64_t last_read_ = 0;        // newest sequence taken from the ring
  uint64_t ring_dropped_ = 0;
  double step_bytes_ = 0;  // moving average of a step in the ring
  TimePoint next_liveness_, next_info_, next_spill_;
  bool writer_gone_ = false;
  bool ended_ = false;
  bool parked_ = false;
  std::string corrupt_;
  bool spool_failing_ = false;
  bool info_failing_ = false;
  bool bad_blocks_logged_ = false;
  bool large_step_logged_ = false;

  // Server side.
  uint64_t ack_index_ = 0;  // answers sent in this stream
  bool update_due_ = false;
  TimePoint last_progress_, last_update_, departed_at_, retry_at_;
  bool may_retry_ = false;   // kRefused: ask again at retry_at_
  bool other_life_ = false;  // kRefused because another process reports as this rank
  Duration retry_after_;
  std::string last_refusal_;  // logged
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_CHANNEL_H_
