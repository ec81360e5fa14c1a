// The loop: finds rings, runs their channels, keeps the stream, knows when to end. One thread.
#ifndef TRIMTAB_AGENT_COURIER_COURIER_H_
#define TRIMTAB_AGENT_COURIER_COURIER_H_

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "agent/courier/channel.h"
#include "agent/courier/file_lock.h"
#include "agent/courier/link.h"
#include "agent/courier/options.h"
#include "agent/courier/ring_watcher.h"
#include "agent/courier/session.h"
#include "agent/courier/spool.h"

namespace trimtab::courier {

enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 2,
  kExitRefused = 3,     // the server refused this courier as a whole
  kExitLeftInRing = 4,  // idle without a server, and the spool could not take what is in the rings
};

class Courier : public LinkListener {
 public:
  Courier(Options options, SessionFactory factory);

  // Runs until told to stop, or until idle when the options say so. Returns an ExitCode.
  int Run();
  // Ends Run within Timings::stop, with everything that the server has not taken in the spool. Async-signal-safe.
  void Stop() { stop_.store(true, std::memory_order_relaxed); }

  void OnStreamOpened() override;
  void OnMessage(const v1::ServerMessage& message, Outbox* outbox) override;
  void OnStreamClosed(bool orderly) override;

 private:
  std::optional<int> TakeLock();
  bool ParentGone(TimePoint now);
  void AdoptSpool(TimePoint now);
  void ScanRings(TimePoint now);
  void OpenRing(const RingFile& file, TimePoint now);
  void ServeRings(TimePoint now);
  void PumpChannels(TimePoint now);
  bool WaitsForEarlierLife(const Channel& channel) const;
  uint32_t TakeId();
  void SendHeartbeat(TimePoint now);
  void SweepChannels();
  bool EndsWhenIdle() const { return options_.exit_when_idle || options_.drain || parent_gone_; }
  std::optional<int> IdleEnd(TimePoint now);
  int Finish();
  uint64_t SpoolDropped() const;

  Options options_;
  RingWatcher watcher_;
  Spool spool_;
  std::optional<FileLock> lock_;
  std::optional<Link> link_;
  std::map<uint32_t, std::unique_ptr<Channel>> channels_;
  std::deque<uint32_t> free_ids_;  // channel numbers; the one that was in use longest ago comes first
  uint32_t first_pumped_ = 0;      // rotates, so that no channel always comes first
  std::vector<v1::MetricDescriptor> schema_;

  std::atomic<bool> stop_{false};
  bool ring_seen_ = false;
  bool parent_gone_ = false;
  uint64_t parent_start_ = 0;
  bool fatal_ = false;
  bool scanned_once_ = false;
  bool full_logged_ = false;
  size_t not_ready_ = 0;
  std::map<RingFile, TimePoint> unready_since_;
  uint64_t finished_spool_dropped_ = 0;  // of channels that are gone
  uint64_t reported_dropped_ = 0;
  TimePoint next_scan_, next_parent_, next_heartbeat_, last_heartbeat_;
  std::optional<TimePoint> idle_since_, hopeless_since_;
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_AGENT_COURIER_COURIER_H_
