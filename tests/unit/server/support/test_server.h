// The ingest, registry and query rooms over a real store and a real gRPC port, in this process.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_TEST_SERVER_H_
#define TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_TEST_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "server/daemon/listen.h"
#include "server/ingest/ingest.h"
#include "server/query/query_service.h"
#include "server/registry/registry.h"
#include "server/store/store.h"
#include "tests/unit/server/support/temp_dir.h"

namespace trimtab::server {

// Writes down what ingest tells its listeners.
class Witness : public StepListener, public AckListener {
 public:
  void OnRankJoined(const RankKey& rank, const v1::RankInfo& info,
                    const std::vector<v1::MetricDescriptor>& metrics) override;
  void OnRankUpdated(const RankKey& rank, const v1::RankInfo& info) override;
  void OnSteps(const RankKey& rank, absl::Span<const v1::Step* const> steps) override;
  void OnRankLeft(const RankKey& rank, LeaveReason reason, const std::string& detail) override;
  void OnAck(const RankKey& rank, const v1::CommandAck& ack) override;

  // "joined 0/1", "step 7", "left 0/1 finished", "ack 5 1"; rank/incarnation.
  std::vector<std::string> log() const;
  // Waits until `line` was written.
  bool WaitFor(const std::string& line) const;

 private:
  void Add(std::string line);
  mutable absl::Mutex mutex_;
  std::vector<std::string> log_;
};

class TestServer {
 public:
  explicit TestServer(const std::string& folder, IngestOptions options = {}, QueryOptions query = {});
  ~TestServer() { Stop(); }
  void Stop();

  const std::string& address() const { return address_; }
  std::unique_ptr<Store> store;
  std::unique_ptr<Registry> registry;
  Witness witness;
  std::unique_ptr<Ingest> ingest;
  std::unique_ptr<QueryService> query;

  uint64_t Refusals(RefusalReason reason) const { return ingest->statistics().refusals[static_cast<size_t>(reason)]; }
  // Waits for an event of this kind.
  std::optional<v1::Event> WaitEvent(const std::string& kind) const;

 private:
  GrpcServer server_;
  std::string address_;
};

// Polls until `done` or 20 s.
bool Eventually(const std::function<bool()>& done);

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_TEST_SERVER_H_
