#include "server/query/query_service.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/status/status.h"
#include "server/query/event_tail.h"
#include "server/query/select_cell.h"
#include "trimtab/v1/query.grpc.pb.h"

namespace trimtab::server {
namespace {

constexpr int kPointsPerChunk = 256;
constexpr size_t kBytesPerChunk = size_t{1} << 20;
constexpr uint64_t kDefaultEvents = 1000;
constexpr uint64_t kEventsPerRead = 256;
constexpr absl::Duration kCancelCheck = absl::Milliseconds(250);

// Counts calls in flight against a bound.
class Slot {
 public:
  Slot(std::atomic<size_t>* used, size_t limit) : used_(used), taken_(used->fetch_add(1) < limit) {}
  ~Slot() { --*used_; }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  bool taken() const { return taken_; }

 private:
  std::atomic<size_t>* const used_;
  const bool taken_;
};

class QueryServiceImpl final : public QueryService, private v1::QueryService::Service {
 public:
  QueryServiceImpl(QueryOptions options, Registry* registry, Store* store)
      : options_(std::move(options)), registry_(registry), store_(store), start_(absl::Now()) {
    store_->AddEventListener(&tail_);
  }

  grpc::Service* service() override { return this; }
  void Shutdown() override { tail_.Close(); }
  uint64_t refused() const override { return refused_; }

 private:
  grpc::Status ListRuns(grpc::ServerContext*, const v1::ListRunsRequest*, v1::ListRunsResponse* response) override {
    for (v1::RunSummary& summary : registry_->Summaries()) *response->add_runs() = std::move(summary);
    std::stable_sort(response->mutable_runs()->begin(), response->mutable_runs()->end(),
                     [](const auto& a, const auto& b) { return a.last_seen_unix_nanos() > b.last_seen_unix_nanos(); });
    return grpc::Status::OK;
  }

  grpc::Status GetRun(grpc::ServerContext*, const v1::GetRunRequest* request, v1::RunState* response) override {
    absl::StatusOr<v1::RunState> state = registry_->State(request->run());
    if (!state.ok()) return ToGrpc(state.status());
    *response = *std::move(state);
    return grpc::Status::OK;
  }

  grpc::Status ReadSeries(grpc::ServerContext* context, const v1::ReadSeriesRequest* request,
                          grpc::ServerWriter<v1::SeriesChunk>* writer) override {
    const Slot slot(&readers_, options_.max_readers);
    if (!slot.taken()) return TooMany("readers", options_.max_readers);
    return ToGrpc(StreamSeries(context, *request, writer));
  }

  absl::Status StreamSeries(grpc::ServerContext* context, const v1::ReadSeriesRequest& request,
                            grpc::ServerWriter<v1::SeriesChunk>* writer) {
    uint64_t count = 0, every = 1;
    if (request.max_points() > 0) {
      TRIMTAB_ASSIGN_OR_RETURN(count, store_->CountRows(request.run(), request.metric(), request.rank(),
                                                        request.from_step(), request.to_step()));
      // First and last are kept, so the steps between them share max_points - 1 gaps.
      const uint64_t gaps = std::max<uint64_t>(1, request.max_points() - 1);
      if (count > request.max_points()) every = (count - 1 + gaps - 1) / gaps;
    }
    const auto layer = request.has_layer() ? std::optional(request.layer()) : std::nullopt;
    const auto head = request.has_head() ? std::optional(request.head()) : std::nullopt;
    v1::SeriesChunk chunk;
    size_t bytes = 0;
    uint64_t row_number = 0;
    bool open = true;
    absl::Status failure;
    TRIMTAB_RETURN_IF_ERROR(store_->ReadRows(request.run(), request.metric(), request.rank(), request.from_step(),
                                             request.to_step(), [&](const Store::Row& row) {
                                               const uint64_t number = row_number++;
                                               if (number % every != 0 && number + 1 != count) return true;
                                               v1::SeriesPoint& point = *chunk.add_points();
                                               point.set_step(row.step);
                                               point.set_time_unix_nanos(row.time_unix_nanos);
                                               point.set_incarnation(row.incarnation);
                                               *point.mutable_block() = row.block;
                                               failure = SelectCell(layer, head, point.mutable_block());
                                               if (!failure.ok()) return false;
                                               bytes += point.ByteSizeLong();
                                               if (chunk.points_size() < kPointsPerChunk && bytes < kBytesPerChunk)
                                                 return true;
                                               open = writer->Write(chunk) && !context->IsCancelled();
                                               chunk.Clear();
                                               bytes = 0;
                                               return open;
                                             }));
    TRIMTAB_RETURN_IF_ERROR(failure);
    if (open && chunk.points_size() > 0) writer->Write(chunk);
    return absl::OkStatus();
  }

  grpc::Status ListEvents(grpc::ServerContext* context, const v1::ListEventsRequest* request,
                          grpc::ServerWriter<v1::Event>* writer) override {
    const Slot slot(request->follow() ? &followers_ : &readers_,
                    request->follow() ? options_.max_followers : options_.max_readers);
    if (!slot.taken()) {
      return request->follow() ? TooMany("followers", options_.max_followers)
                               : TooMany("readers", options_.max_readers);
    }
    return ToGrpc(StreamEvents(context, *request, writer));
  }

  absl::Status StreamEvents(grpc::ServerContext* context, const v1::ListEventsRequest& request,
                            grpc::ServerWriter<v1::Event>* writer) {
    uint64_t after = request.after_id();
    uint64_t left = request.max_events() == 0 ? kDefaultEvents : request.max_events();
    const bool newest = after == 0;
    if (newest) {
      TRIMTAB_ASSIGN_OR_RETURN(const auto events, store_->ReadEvents(request.run(), 0, left, /*newest=*/true));
      for (const v1::Event& event : events) {
        if (!writer->Write(event)) return absl::OkStatus();
        after = event.id();
      }
      if (!request.follow()) return absl::OkStatus();
    }
    uint64_t woken_by = 0;
    for (;;) {
      const uint64_t page = request.follow() ? kEventsPerRead : std::min(kEventsPerRead, left);
      TRIMTAB_ASSIGN_OR_RETURN(const auto events, store_->ReadEvents(request.run(), after, page, /*newest=*/false));
      for (const v1::Event& event : events) {
        if (!writer->Write(event)) return absl::OkStatus();
        after = event.id();
      }
      left -= std::min<uint64_t>(left, events.size());
      if (!request.follow() && (events.size() < page || left == 0)) return absl::OkStatus();
      if (!events.empty()) continue;
      // Events of other runs wake a follower too; it then waits for the one after them.
      for (bool more = false; !more; more = tail_.newest() > woken_by) {
        if (!tail_.Wait(woken_by, kCancelCheck))
          return absl::UnavailableError("the server is shutting down; follow again");
        if (context->IsCancelled()) return absl::CancelledError("cancelled");
      }
      woken_by = tail_.newest();
    }
  }

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*, v1::ServerInfo* info) override {
    info->set_version(options_.version);
    info->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - start_));
    info->set_data_dir(options_.data_dir);
    info->set_store_format(Store::kFormatVersion);
    info->set_events(store_->statistics().events);
    info->set_runs(registry_->Summaries().size());
    for (const auto& [name, limit] : options_.limits) (*info->mutable_limits())[name] = limit;
    info->set_http_address(options_.http_address);
    return grpc::Status::OK;
  }

  grpc::Status TooMany(const char* what, size_t limit) {
    ++refused_;
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                        absl::StrCat("there are ", limit, " ", what, " already; try again later"));
  }

  const QueryOptions options_;
  Registry* const registry_;
  Store* const store_;
  const absl::Time start_;
  EventTail tail_;
  std::atomic<size_t> readers_{0}, followers_{0};
  std::atomic<uint64_t> refused_{0};
};

}  // namespace

std::unique_ptr<QueryService> QueryService::Create(QueryOptions options, Registry* registry, Store* store) {
  return std::make_unique<QueryServiceImpl>(std::move(options), registry, store);
}

}  // namespace trimtab::server
