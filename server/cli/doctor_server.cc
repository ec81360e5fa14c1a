#include <grpcpp/generic/generic_stub.h>
#include <httplib.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/status/status.h"
#include "server/cli/doctor_checks.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

constexpr double kClockSkewSeconds = 5;
constexpr char kHealthMethod[] = "/grpc.health.v1.Health/Check";
constexpr char kServing[] = "\x08\x01";  // HealthCheckResponse{status: SERVING}

Finding Good(std::string subject, std::string text) {
  return {Verdict::kGood, std::move(subject), std::move(text), ""};
}

// The standard health service, asked with raw bytes: its generated code is not among Debian's packages.
Finding CheckHealth(const Client& client) {
  grpc::GenericStub stub(client.channel());
  grpc::ClientContext context;
  client.Prepare(&context);
  grpc::CompletionQueue queue;
  const grpc::Slice empty("");
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, kHealthMethod, request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return {Verdict::kBad, "health", status.error_message(), "look at trimtabd's log"};
  grpc::Slice bytes;
  const bool serving = response.DumpToSingleSlice(&bytes).ok() && bytes.size() == 2 &&
                       std::equal(bytes.begin(), bytes.end(), reinterpret_cast<const uint8_t*>(kServing));
  if (!serving) return {Verdict::kBad, "health", "the server says that it is not serving", "look at trimtabd's log"};
  return Good("health", "serving");
}

Finding CheckVersion(const v1::ServerInfo& info) {
  if (info.version() == TRIMTAB_VERSION)
    return Good("version", absl::StrCat("server and command line are ", info.version()));
  return {Verdict::kWarning, "version", absl::StrCat("server ", info.version(), ", command line ", TRIMTAB_VERSION),
          "install the same version on both sides"};
}

// The page, and through it the server's clock.
std::vector<Finding> CheckPage(const v1::ServerInfo& info) {
  if (info.http_address().empty())
    return {{Verdict::kWarning, "page", "the server serves no HTTP", "start it with --http"}};
  httplib::Client http("http://" + info.http_address());
  http.set_connection_timeout(2);
  http.set_read_timeout(5);
  const auto before = std::chrono::system_clock::now();
  const httplib::Result result = http.Get("/api/v1/runs");
  const auto after = std::chrono::system_clock::now();
  if (!result || result->status != 200) {
    return {{Verdict::kWarning, "page", absl::StrCat("http://", info.http_address(), "/ does not answer from here"),
             "it may listen on the server's loopback only; reach it through `ssh -L`"}};
  }
  std::vector<Finding> findings = {Good("page", absl::StrCat("http://", info.http_address(), "/"))};
  const auto document = nlohmann::json::parse(result->body, nullptr, false);
  if (!document.is_object() || !document.value("now_unix_seconds", nlohmann::json()).is_number()) return findings;
  const std::chrono::duration<double> middle = before.time_since_epoch() + (after - before) / 2;
  const double ahead = document["now_unix_seconds"].get<double>() - middle.count();
  if (std::fabs(ahead) > kClockSkewSeconds) {
    findings.push_back({Verdict::kWarning, "clock",
                        absl::StrFormat("the server's clock is %+.1f s from this one", ahead),
                        "run an NTP client on both; ages and times are shown wrong until then"});
  } else {
    findings.push_back(
        Good("clock", absl::StrFormat("server and this machine agree within %.1f s", std::fabs(ahead) + 0.05)));
  }
  return findings;
}

Finding CheckRun(const v1::RunSummary& run) {
  const std::string subject = absl::StrCat("run ", run.run());
  const std::string text = absl::StrCat(run.status(), ", step ", Count(run.last_step()), ", last sample ",
                                        Ago(run.last_seen_unix_nanos(), NowUnixNanos()));
  if (run.status() == "silent") {
    return {Verdict::kWarning, subject, text, "see whether the job hangs, and whether its courier runs on every node"};
  }
  if (run.status() == "lost") {
    return {Verdict::kWarning, subject, text, "its processes died or cannot reach the server; look at the job's log"};
  }
  if (run.status() == "running" && run.ranks_connected() < run.world_size()) {
    return {Verdict::kWarning, subject,
            absl::StrCat(text, ", ", run.ranks_connected(), " of ", run.world_size(), " ranks"),
            "start the missing ranks under trimtab too; a switch needs all of them"};
  }
  return Good(subject, text);
}

}  // namespace

std::vector<Finding> CheckServer(const GlobalOptions& options) {
  const auto client = Client::Connect(options);
  if (!client.ok()) {
    return {{Verdict::kBad, "server", absl::StrCat("no trimtabd answers at ", options.server),
             "start it with `trimtabd`, or name another with --server HOST:PORT or TRIMTAB_SERVER"}};
  }
  grpc::ClientContext info_context;
  (*client)->Prepare(&info_context);
  v1::ServerInfo info;
  if (const auto status = (*client)->query().GetServerInfo(&info_context, {}, &info); !status.ok()) {
    return {{Verdict::kBad, "server",
             absl::StrCat(options.server, " answers, but not as trimtabd: ", status.error_message()),
             "see whether another program listens there"}};
  }
  std::vector<Finding> findings = {
      Good("server", absl::StrCat(options.server, ", up ", Duration(info.uptime_seconds()), ", ", Count(info.runs()),
                                  " runs, ", Count(info.events()), " events"))};
  findings.push_back(CheckHealth(**client));
  findings.push_back(CheckVersion(info));
  for (Finding& finding : CheckPage(info)) findings.push_back(std::move(finding));
  grpc::ClientContext runs_context;
  (*client)->Prepare(&runs_context);
  v1::ListRunsResponse runs;
  if (const auto status = (*client)->query().ListRuns(&runs_context, {}, &runs); !status.ok()) {
    findings.push_back({Verdict::kBad, "runs", status.error_message(), "look at trimtabd's log"});
  }
  for (const v1::RunSummary& run : runs.runs()) findings.push_back(CheckRun(run));
  return findings;
}

}  // namespace trimtab::cli
