#include "server/cli/client.h"

#include <google/protobuf/util/json_util.h>

#include <cstdio>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/status/status.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;  // the state of a run with 32,768 ranks
constexpr double kConnectSeconds = 5;
constexpr size_t kRunsNamed = 8;

std::string NameRuns(const std::vector<std::string>& runs) {
  std::vector<std::string> shown(runs.begin(), runs.begin() + static_cast<long>(std::min(runs.size(), kRunsNamed)));
  std::string text = absl::StrJoin(shown, ", ");
  if (runs.size() > kRunsNamed) absl::StrAppend(&text, " and ", runs.size() - kRunsNamed, " more");
  return text;
}

}  // namespace

Client::Client(const GlobalOptions& options) : options_(options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  channel_ = grpc::CreateCustomChannel(options.server, grpc::InsecureChannelCredentials(), arguments);
  query_ = v1::QueryService::NewStub(channel_);
  control_ = v1::ControlService::NewStub(channel_);
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const GlobalOptions& options) {
  std::unique_ptr<Client> client(new Client(options));
  const double seconds = std::min(kConnectSeconds, options.timeout_seconds);
  const auto deadline =
      std::chrono::system_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
  grpc_connectivity_state state = client->channel_->GetState(true);
  // A refused connection fails at once; only silence waits for the deadline.
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    if (!client->channel_->WaitForStateChange(state, deadline)) break;
    state = client->channel_->GetState(true);
  }
  if (state != GRPC_CHANNEL_READY) {
    return absl::UnavailableError(absl::StrCat("no trimtabd answers at ", options.server,
                                               "; start it (trimtabd), or name another with --server HOST:PORT or "
                                               "TRIMTAB_SERVER"));
  }
  return client;
}

void Client::Prepare(grpc::ClientContext* context, double seconds) const {
  const double limit = seconds > 0 ? seconds : options_.timeout_seconds;
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::milliseconds(static_cast<int64_t>(limit * 1e3)));
}

absl::StatusOr<std::string> Client::ResolveRun(const std::string& wanted) {
  grpc::ClientContext context;
  Prepare(&context);
  v1::ListRunsResponse response;
  TRIMTAB_RETURN_IF_ERROR(FromGrpc(query_->ListRuns(&context, {}, &response)));
  std::vector<std::string> all, matching;
  for (const v1::RunSummary& run : response.runs()) {
    if (!wanted.empty() && run.run() == wanted) return wanted;
    all.push_back(run.run());
    if (absl::StartsWith(run.run(), wanted)) matching.push_back(run.run());
  }
  if (all.empty()) {
    return absl::NotFoundError("no run has reported yet; start one with `trimtab run -- python train.py`");
  }
  if (matching.size() == 1) return matching[0];
  if (matching.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no run is called or begins with '", wanted, "'; there are: ", NameRuns(all)));
  }
  const std::string why = wanted.empty() ? "name a run" : absl::StrCat("'", wanted, "' fits several runs");
  return absl::FailedPreconditionError(absl::StrCat(why, "; there are: ", NameRuns(matching)));
}

absl::StatusOr<v1::RunState> Client::State(const std::string& run) {
  grpc::ClientContext context;
  Prepare(&context);
  v1::GetRunRequest request;
  request.set_run(run);
  v1::RunState state;
  TRIMTAB_RETURN_IF_ERROR(FromGrpc(query_->GetRun(&context, request, &state)));
  return state;
}

int Fail(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    std::fprintf(stderr, "trimtab: the server did not answer in time; try again, or wait longer with --timeout\n");
    return kFailed;
  }
  std::fprintf(stderr, "trimtab: %s\n", Escape(status.message()).c_str());
  return status.code() == absl::StatusCode::kUnavailable ? kUnreachable : kFailed;
}

int Fail(const grpc::Status& status) { return Fail(FromGrpc(status)); }

int WrongUsage(const std::string& message) {
  std::fprintf(stderr, "trimtab: %s\n", Escape(message).c_str());
  return kUsage;
}

void PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string text;
  if (google::protobuf::util::MessageToJsonString(message, &text, options).ok()) std::printf("%s\n", text.c_str());
}

}  // namespace trimtab::cli
