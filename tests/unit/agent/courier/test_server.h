// A small TelemetryService that speaks the real protocol over real gRPC, and can misbehave as servers do.
#ifndef TRIMTAB_TESTS_UNIT_AGENT_COURIER_TEST_SERVER_H_
#define TRIMTAB_TESTS_UNIT_AGENT_COURIER_TEST_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "trimtab/v1/telemetry.grpc.pb.h"

namespace trimtab::courier {

// What the server has stored durably: outlives its restarts.
struct ServerStore {
  struct Rank {
    v1::RankInfo info;
    std::vector<v1::MetricDescriptor> metrics;
    std::map<uint64_t, v1::Step> steps;  // by sequence
    std::vector<v1::CommandAck> answers;
    std::optional<v1::Goodbye> goodbye;
    uint64_t hellos = 0;
    uint64_t updates = 0;
    uint64_t repeated_steps = 0;  // received again; thrown away, as a real server does
    uint64_t ring_dropped = 0;
    uint64_t last = 0;
    bool open = false;
    uint64_t order = 0;  // of first Hellos
  };
  using Key = std::tuple<std::string, uint32_t, uint64_t>;  // run, rank, incarnation

  std::mutex mutex;
  std::condition_variable changed;
  std::map<Key, Rank> ranks;
  uint64_t refusals = 0;
  uint64_t highest_channel = 0;
  uint64_t heartbeats = 0;
  uint64_t spool_dropped = 0;  // of the last heartbeat
  uint64_t spool_bytes = 0;
  uint64_t batches = 0;
  uint64_t largest_batch = 0;

  // Waits until `ready` (called with the lock held) is true. False after `timeout`.
  bool WaitFor(const std::function<bool()>& ready, std::chrono::seconds timeout = std::chrono::seconds(60));
  // The rank with this number; the one with most steps when there are several lives. Call with the lock held.
  Rank* Find(uint32_t rank);
  // Steps stored of a rank, all lives.
  uint64_t Steps(uint32_t rank);
};

class TestServer {
 public:
  struct Behaviour {
    std::atomic<bool> acks{true};  // false: steps are received but neither stored nor acknowledged
    std::atomic<int> ack_delay_ms{0};
    std::atomic<int> cut_after_batches{0};  // > 0: ends the stream with an error after so many, once
    std::atomic<bool> no_welcome{false};
    std::atomic<int> refuse_code{0};  // != 0: every Hello is refused with it
    std::atomic<bool> refuse_fatal{false};
    std::atomic<int> refuse_rank{-1};   // only this rank; -1: all
    std::atomic<bool> one_life{false};  // ALREADY_EXISTS while another incarnation of the rank is open
  };

  // Listens on loopback; port 0 takes a free one.
  TestServer(ServerStore* store, int port);
  ~TestServer();
  int port() const { return port_; }
  std::string address() const;
  Behaviour& behaviour() { return behaviour_; }
  // Kills the server: streams break, what was not acknowledged is lost.
  void Stop();
  // Sends a command to the channel of `rank`. False when it has none.
  bool Command(uint32_t rank, v1::Command command);
  int streams() const { return streams_.load(); }

 private:
  class Service;
  Behaviour behaviour_;
  std::atomic<int> streams_{0};
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace trimtab::courier
#endif  // TRIMTAB_TESTS_UNIT_AGENT_COURIER_TEST_SERVER_H_
