#include "server/daemon/daemon.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/status/status.h"
#include "server/daemon/listen.h"
#include "server/ingest/ingest.h"
#include "server/model/limits.h"
#include "server/query/query_service.h"
#include "server/registry/registry.h"
#include "server/store/store.h"

namespace trimtab::server {
namespace {

constexpr absl::Duration kTick = absl::Seconds(1);

size_t Mebibytes(uint64_t count) { return static_cast<size_t>(count) << 20; }

class DaemonImpl final : public Daemon {
 public:
  DaemonImpl(const Config& config, std::string version) : config_(config), version_(std::move(version)) {}
  ~DaemonImpl() override { Shutdown(); }

  absl::Status Start() {
    TRIMTAB_ASSIGN_OR_RETURN(store_, Store::Open({.path = config_.data_dir,
                                                  .block_cache_bytes = Mebibytes(config_.block_cache_mib),
                                                  .memtable_bytes = Mebibytes(config_.memtable_mib),
                                                  .max_open_files = config_.max_open_files}));
    registry_ = Registry::Create({.max_runs = config_.max_runs, .silent_after_seconds = config_.silent_after_seconds},
                                 store_.get());
    TRIMTAB_RETURN_IF_ERROR(registry_->Restore(store_.get()));
    ingest_ = Ingest::Create({.queue_bytes = Mebibytes(config_.queue_mib),
                              .alive_window_seconds = config_.alive_window_seconds,
                              .sample_every_steps = config_.sample_every_steps},
                             store_.get());
    ingest_->AddStepListener(registry_.get());
    query_ = QueryService::Create({.version = version_, .data_dir = config_.data_dir, .limits = Limits()},
                                  registry_.get(), store_.get());
    ingest_->Start();
    TRIMTAB_ASSIGN_OR_RETURN(const Address address, ParseAddress(config_.listen));
    TRIMTAB_ASSIGN_OR_RETURN(grpc_, Listen(address, {ingest_->service(), query_->service()}));
    ticker_ = std::thread([this] { Tick(); });
    spdlog::info("ready: grpc {} data {}", grpc_address(), config_.data_dir);
    return WriteReadyFile();
  }

  void Shutdown() override {
    if (std::exchange(stopped_, true)) return;
    if (ingest_ != nullptr) ingest_->Shutdown();
    if (query_ != nullptr) query_->Shutdown();
    if (grpc_.server != nullptr) {
      grpc_.server->Shutdown(std::chrono::system_clock::now() +
                             std::chrono::milliseconds(static_cast<int64_t>(config_.shutdown_seconds * 1000)));
      grpc_.server->Wait();
      grpc_.server.reset();
    }
    {
      absl::MutexLock lock(&mutex_);
      ticking_ = false;
    }
    if (ticker_.joinable()) ticker_.join();
    query_.reset();
    ingest_.reset();
    registry_.reset();
    store_.reset();
  }

  std::string grpc_address() const override { return FormatAddress(grpc_.address); }
  std::string http_address() const override { return ""; }

 private:
  std::map<std::string, uint64_t> Limits() const {
    return {{"message_bytes", kMaxMessageBytes}, {"run_name_bytes", kMaxRunNameBytes}, {"world_size", kMaxWorldSize},
            {"layers", kMaxLayers},              {"heads", kMaxHeads},                 {"metrics", kMaxMetrics},
            {"channels_per_stream", kMaxChannelsPerStream}, {"runs", config_.max_runs}, {"series", config_.max_series},
            {"queue_bytes", Mebibytes(config_.queue_mib)}};
  }

  void Tick() {
    const auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !ticking_; };
    for (;;) {
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&stopped), kTick)) return;
      }
      registry_->Tick(absl::GetCurrentTimeNanos());
    }
  }

  absl::Status WriteReadyFile() const {
    if (config_.ready_file.empty()) return absl::OkStatus();
    // Whole or not at all: whoever waits for the file may read it as soon as it is there.
    const std::string temporary = config_.ready_file + ".new";
    std::ofstream file(temporary, std::ios::trunc);
    file << absl::StrCat("{\"grpc\":\"", grpc_address(), "\",\"http\":\"", http_address(), "\",\"pid\":", getpid(), "}\n");
    file.close();
    if (!file || std::rename(temporary.c_str(), config_.ready_file.c_str()) != 0) {
      return absl::FailedPreconditionError(absl::StrCat("cannot write ", config_.ready_file, "; see --ready-file"));
    }
    return absl::OkStatus();
  }

  const Config config_;
  const std::string version_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<Ingest> ingest_;
  std::unique_ptr<QueryService> query_;
  GrpcServer grpc_;
  std::thread ticker_;
  bool stopped_ = false;
  absl::Mutex mutex_;
  bool ticking_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace

absl::Status Daemon::Check(const Config&) { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Config& config, const std::string& version) {
  auto daemon = std::make_unique<DaemonImpl>(config, version);
  TRIMTAB_RETURN_IF_ERROR(daemon->Start());
  return daemon;
}

}  // namespace trimtab::server
