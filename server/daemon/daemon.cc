#include "server/daemon/daemon.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/status/status.h"
#include "server/control/controller.h"
#include "server/control/service.h"
#include "server/daemon/listen.h"
#include "server/export/metrics.h"
#include "server/http/server.h"
#include "server/ingest/ingest.h"
#include "server/model/limits.h"
#include "server/policy/engine.h"
#include "server/policy/policy_parser.h"
#include "server/query/query_service.h"
#include "server/registry/registry.h"
#include "server/store/store.h"

namespace trimtab::server {
namespace {

constexpr absl::Duration kTick = absl::Seconds(1);

size_t Mebibytes(uint64_t count) { return static_cast<size_t>(count) << 20; }

absl::StatusOr<Policy> LoadPolicy(const Config& config) {
  if (config.policy.empty()) return ParsePolicy(DefaultPolicyYaml(), "built-in policy");
  std::ifstream file(config.policy, std::ios::binary);
  std::string text(kMaxPolicyBytes + 1, '\0');
  if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot read ", config.policy, "; see --policy"));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad()) return absl::InvalidArgumentError(absl::StrCat("cannot read ", config.policy, "; see --policy"));
  return ParsePolicy(text, config.policy);
}

class DaemonImpl final : public Daemon {
 public:
  DaemonImpl(const Config& config, std::string version) : config_(config), version_(std::move(version)) {}
  ~DaemonImpl() override { Shutdown(); }

  absl::Status Start() {
    // One left by an earlier server would send whoever waits for it to the wrong port.
    if (!config_.ready_file.empty()) std::remove(config_.ready_file.c_str());
    TRIMTAB_RETURN_IF_ERROR(OpenRooms());
    TRIMTAB_RETURN_IF_ERROR(StartHttp());
    query_ = QueryService::Create(
        {.version = version_, .data_dir = config_.data_dir, .http_address = http_address(), .limits = Limits()},
        registry_.get(), store_.get());
    ingest_->Start();
    TRIMTAB_ASSIGN_OR_RETURN(const Address address, ParseAddress(config_.listen));
    TRIMTAB_ASSIGN_OR_RETURN(grpc_, Listen(address, {ingest_->service(), query_->service(), control_service_.get()}));
    ticker_ = std::thread([this] { Tick(); });
    TRIMTAB_RETURN_IF_ERROR(WriteReadyFile());
    ready_ = true;
    spdlog::info("ready: grpc {} http {} data {}", grpc_address(), http_address().empty() ? "off" : http_address(),
                 config_.data_dir);
    return absl::OkStatus();
  }

  void Shutdown() override {
    if (std::exchange(stopped_, true)) return;
    ready_ = false;
    if (grpc_.server != nullptr) grpc_.server->GetHealthCheckService()->SetServingStatus(false);
    // From the source to the sinks: nothing that arrived is lost on the way.
    if (ingest_ != nullptr) ingest_->Shutdown();
    if (policy_ != nullptr) policy_->Shutdown();
    if (controller_ != nullptr) controller_->Shutdown();
    if (query_ != nullptr) query_->Shutdown();
    if (grpc_.server != nullptr) {
      grpc_.server->Shutdown(std::chrono::system_clock::now() +
                             std::chrono::milliseconds(static_cast<int64_t>(config_.shutdown_seconds * 1000)));
      grpc_.server->Wait();
      grpc_.server.reset();
    }
    if (http_ != nullptr) http_->Shutdown();
    {
      absl::MutexLock lock(&mutex_);
      ticking_ = false;
    }
    if (ticker_.joinable()) ticker_.join();
    http_.reset();
    query_.reset();
    control_service_.reset();
    policy_.reset();
    controller_.reset();
    ingest_.reset();
    exporter_.reset();
    registry_.reset();
    store_.reset();
  }

  absl::Status failure() const override {
    absl::MutexLock lock(&mutex_);
    return failure_;
  }

  std::string grpc_address() const override { return FormatAddress(grpc_.address); }
  std::string http_address() const override { return http_address_; }

 private:
  void Fail(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      failure_ = status;
    }
    kill(getpid(), SIGTERM);
  }

  // Everything that works without a port.
  absl::Status OpenRooms() {
    TRIMTAB_ASSIGN_OR_RETURN(Policy policy, LoadPolicy(config_));
    TRIMTAB_ASSIGN_OR_RETURN(store_, Store::Open({.path = config_.data_dir,
                                                  .block_cache_bytes = Mebibytes(config_.block_cache_mib),
                                                  .memtable_bytes = Mebibytes(config_.memtable_mib),
                                                  .max_open_files = config_.max_open_files}));
    registry_ = Registry::Create({.max_runs = config_.max_runs, .silent_after_seconds = config_.silent_after_seconds},
                                 store_.get());
    TRIMTAB_RETURN_IF_ERROR(registry_->Restore(store_.get()));
    ingest_ = Ingest::Create({.queue_bytes = Mebibytes(config_.queue_mib),
                              .alive_window_seconds = config_.alive_window_seconds,
                              .sample_every_steps = config_.sample_every_steps,
                              .on_store_broken = [this](const absl::Status& status) { Fail(status); }},
                             store_.get());
    // Before whoever writes events, so that none is missed.
    exporter_ = MetricsExporter::Create(registry_.get(), store_.get(), MetricsSettings(policy));
    store_->AddEventListener(exporter_.get());
    TRIMTAB_ASSIGN_OR_RETURN(controller_, Controller::Create({}, ingest_.get(), store_.get(), store_.get()));
    TRIMTAB_ASSIGN_OR_RETURN(policy_,
                             PolicyEngine::Create(std::move(policy), store_.get(), controller_.get(), store_.get()));
    control_service_ = CreateControlService(controller_.get(), &policy_->policy());
    ingest_->AddStepListener(registry_.get());
    ingest_->AddStepListener(controller_.get());
    ingest_->AddStepListener(policy_.get());
    ingest_->AddAckListener(controller_.get());
    return absl::OkStatus();
  }

  absl::Status StartHttp() {
    if (config_.http.empty()) return absl::OkStatus();
    TRIMTAB_ASSIGN_OR_RETURN(const Address address, ParseAddress(config_.http));
    HttpOptions options;
    options.address = address.host;
    options.port = address.port;
    options.version = version_;
    TRIMTAB_ASSIGN_OR_RETURN(
        http_, HttpServer::Create(
                   std::move(options), registry_.get(), store_.get(), [this] { return exporter_->Render(); },
                   [this] { return ready_ ? absl::OkStatus() : absl::UnavailableError("starting or shutting down"); }));
    http_address_ = http_->address();
    return absl::OkStatus();
  }

  MetricsOptions MetricsSettings(const Policy& rules) const {
    MetricsOptions options{.max_series = config_.max_series, .version = version_};
    options.ingest = [this] { return ingest_->statistics(); };
    for (const Rule& rule : rules.rules) options.rules.push_back(rule.name);
    const auto policy = [this](const char* name, const char* help, uint64_t PolicyEngine::Statistics::*field) {
      return ExtraMetric{name, help, /*counter=*/true,
                         [this, field] { return static_cast<double>(policy_->statistics().*field); }};
    };
    const auto control = [this](const char* name, const char* help, uint64_t Controller::Statistics::*field) {
      return ExtraMetric{name, help, /*counter=*/true,
                         [this, field] { return static_cast<double>(controller_->statistics().*field); }};
    };
    using P = PolicyEngine::Statistics;
    using C = Controller::Statistics;
    options.extra = {
        policy("trimtab_policy_steps_evaluated_total", "Folded steps that the policy saw.", &P::steps_evaluated),
        policy("trimtab_policy_steps_dropped_total", "Steps that the policy's full queue refused.", &P::steps_dropped),
        policy("trimtab_policy_steps_late_total", "Steps that came after theirs had been folded.", &P::steps_late),
        policy("trimtab_policy_event_errors_total", "Events or states that could not be stored.", &P::event_errors),
        control("trimtab_control_plans_total", "Switch plans made.", &C::plans),
        control("trimtab_control_aborted_total", "Switch plans undone after their commit.", &C::aborted),
        control("trimtab_control_acks_unknown_total", "Answers that no plan waited for.", &C::acks_unknown),
        control("trimtab_control_dropped_total", "Answers and requests that the full queue refused.", &C::dropped),
        control("trimtab_control_event_errors_total", "Events or plans that could not be stored.", &C::event_errors)};
    return options;
  }

  std::map<std::string, uint64_t> Limits() const {
    return {{"message_bytes", kMaxMessageBytes},
            {"run_name_bytes", kMaxRunNameBytes},
            {"world_size", kMaxWorldSize},
            {"layers", kMaxLayers},
            {"heads", kMaxHeads},
            {"metrics", kMaxMetrics},
            {"channels_per_stream", kMaxChannelsPerStream},
            {"runs", config_.max_runs},
            {"series", config_.max_series},
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
    file << absl::StrCat("{\"grpc\":\"", grpc_address(), "\",\"http\":\"", http_address(), "\",\"pid\":", getpid(),
                         "}\n");
    file.close();
    if (!file || std::rename(temporary.c_str(), config_.ready_file.c_str()) != 0) {
      return absl::FailedPreconditionError(absl::StrCat("cannot write ", config_.ready_file, "; see --ready-file"));
    }
    return absl::OkStatus();
  }

  const Config config_;
  const std::string version_;
  std::string http_address_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<MetricsExporter> exporter_;
  std::unique_ptr<Ingest> ingest_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<PolicyEngine> policy_;
  std::unique_ptr<v1::ControlService::Service> control_service_;
  std::unique_ptr<QueryService> query_;
  std::unique_ptr<HttpServer> http_;
  GrpcServer grpc_;
  std::thread ticker_;
  std::atomic<bool> ready_{false};
  bool stopped_ = false;
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool ticking_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace

absl::Status Daemon::Check(const Config& config) { return LoadPolicy(config).status(); }

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Config& config, const std::string& version) {
  auto daemon = std::make_unique<DaemonImpl>(config, version);
  TRIMTAB_RETURN_IF_ERROR(daemon->Start());
  return daemon;
}

}  // namespace trimtab::server
