#include "tests/unit/server/support/test_server.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace trimtab::server {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

std::string Name(const RankKey& rank) { return absl::StrCat(rank.rank, "/", rank.incarnation); }

}  // namespace

void Witness::OnRankJoined(const RankKey& rank, const v1::RankInfo&, const std::vector<v1::MetricDescriptor>&) {
  Add("joined " + Name(rank));
}
void Witness::OnRankUpdated(const RankKey& rank, const v1::RankInfo&) { Add("updated " + Name(rank)); }
void Witness::OnSteps(const RankKey&, absl::Span<const v1::Step* const> steps) {
  for (const v1::Step* step : steps) Add(absl::StrCat("step ", step->step()));
}
void Witness::OnRankLeft(const RankKey& rank, LeaveReason reason, const std::string&) {
  static constexpr const char* kNames[] = {"finished", "died", "disconnected", "replaced"};
  Add(absl::StrCat("left ", Name(rank), " ", kNames[static_cast<int>(reason)]));
}
void Witness::OnAck(const RankKey&, const v1::CommandAck& ack) {
  Add(absl::StrCat("ack ", ack.plan(), " ", static_cast<int>(ack.state())));
}

void Witness::Add(std::string line) {
  absl::MutexLock lock(&mutex_);
  log_.push_back(std::move(line));
}

std::vector<std::string> Witness::log() const {
  absl::MutexLock lock(&mutex_);
  return log_;
}

bool Witness::WaitFor(const std::string& line) const {
  absl::MutexLock lock(&mutex_);
  const auto ready = [&] { return std::find(log_.begin(), log_.end(), line) != log_.end(); };
  return mutex_.AwaitWithTimeout(absl::Condition(&ready), kPatience);
}

TestServer::TestServer(const std::string& folder, IngestOptions options, QueryOptions query_options) {
  store = OrDie(Store::Open({.path = folder}));
  registry = Registry::Create({}, store.get());
  if (!registry->Restore(store.get()).ok()) std::abort();
  ingest = Ingest::Create(options, store.get());
  ingest->AddStepListener(registry.get());
  ingest->AddStepListener(&witness);
  ingest->AddAckListener(&witness);
  query = QueryService::Create(std::move(query_options), registry.get(), store.get());
  ingest->Start();
  server_ = OrDie(Listen({"127.0.0.1", 0}, {ingest->service(), query->service()}));
  address_ = FormatAddress(server_.address);
}

void TestServer::Stop() {
  if (server_.server == nullptr) return;
  ingest->Shutdown();
  query->Shutdown();
  server_.server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  server_.server->Wait();
  server_.server.reset();
}

std::optional<v1::Event> TestServer::WaitEvent(const std::string& kind) const {
  std::optional<v1::Event> found;
  Eventually([&] {
    const auto events = store->ReadEvents("", 0, 1000, false);
    if (!events.ok()) return false;
    for (const v1::Event& event : *events) {
      if (event.kind() == kind) found = event;
    }
    return found.has_value();
  });
  return found;
}

bool Eventually(const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!done()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

}  // namespace trimtab::server
