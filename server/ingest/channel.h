// One ring's channel within a courier's stream.
#ifndef TRIMTAB_SERVER_INGEST_CHANNEL_H_
#define TRIMTAB_SERVER_INGEST_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "server/ingest/validate.h"
#include "server/model/roles.h"

namespace trimtab::server {

class Session;

// Steps of one incarnation, shared by all channels that ever carried it. Touched by the writer thread only.
struct RankProgress {
  uint64_t last_sequence = 0;  // staged or durable
};

struct Channel {
  Channel(std::shared_ptr<Session> owner, const v1::Hello& hello)
      : id(hello.channel()),
        rank{hello.rank().run(), hello.rank().rank(), hello.rank().incarnation()},
        metrics(hello.metrics()),
        session(std::move(owner)) {}

  const uint32_t id;
  const RankKey rank;
  const MetricTable metrics;
  const std::shared_ptr<Session> session;

  // The writer refused the channel after the session had opened it: to the session it is closed.
  std::atomic<bool> refused{false};

  // Touched by the session's reader only.
  uint64_t ring_dropped_steps = 0;

  // Touched by the writer thread only.
  bool registered = false;
  std::shared_ptr<RankProgress> progress;

  // Guarded by the ChannelTable.
  bool welcomed = false;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_INGEST_CHANNEL_H_
