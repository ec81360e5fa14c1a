#include <algorithm>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/status/status.h"
#include "server/cli/commands.h"
#include "server/cli/text.h"
#include "server/cli/top_frame.h"
#include "server/http/fold.h"

namespace trimtab::cli {
namespace {

constexpr uint64_t kLossPoints = 400;
constexpr uint64_t kEvents = 20;

struct TopOptions {
  std::string run;
  double interval_seconds = 1;
  bool once = false;
};

// The runs, the ones that run first, then by the age of their last sample.
absl::StatusOr<std::vector<std::string>> Runs(Client& client) {
  grpc::ClientContext context;
  client.Prepare(&context);
  v1::ListRunsResponse response;
  TRIMTAB_RETURN_IF_ERROR(FromGrpc(client.query().ListRuns(&context, {}, &response)));
  std::vector<v1::RunSummary> runs(response.runs().begin(), response.runs().end());
  std::stable_sort(runs.begin(), runs.end(), [](const v1::RunSummary& a, const v1::RunSummary& b) {
    const bool a_runs = a.status() == "running", b_runs = b.status() == "running";
    return a_runs != b_runs ? a_runs : a.last_seen_unix_nanos() > b.last_seen_unix_nanos();
  });
  std::vector<std::string> names;
  for (const v1::RunSummary& run : runs) names.push_back(run.run());
  return names;
}

absl::StatusOr<TopData> Read(Client& client, const std::string& run) {
  TopData data;
  TRIMTAB_ASSIGN_OR_RETURN(data.state, client.State(run));
  if (data.state.ranks_size() > 0) {
    v1::ReadSeriesRequest request;
    request.set_run(run);
    request.set_metric("loss");
    request.set_rank(data.state.ranks(0).rank());
    request.set_max_points(kLossPoints);
    grpc::ClientContext context;
    client.Prepare(&context);
    const auto reader = client.query().ReadSeries(&context, request);
    v1::SeriesChunk chunk;
    while (reader->Read(&chunk)) {
      for (const v1::SeriesPoint& point : chunk.points()) data.losses.push_back(server::Cell(point.block(), 0, 0));
    }
    reader->Finish();  // a run without a loss has no curve
  }
  v1::ListEventsRequest request;
  request.set_run(run);
  request.set_max_events(kEvents);
  grpc::ClientContext context;
  client.Prepare(&context);
  const auto reader = client.query().ListEvents(&context, request);
  v1::Event event;
  while (reader->Read(&event)) data.events.push_back(event);
  TRIMTAB_RETURN_IF_ERROR(FromGrpc(reader->Finish()));
  return data;
}

int Live(Client& client, std::string run, const TopOptions& options) {
  FullScreen screen;
  TopData data;
  while (!screen.stopped()) {
    const auto runs = Runs(client);
    auto fresh = Read(client, run);
    if (fresh.ok()) data = *std::move(fresh);
    data.problem = fresh.ok() ? "" : std::string(fresh.status().message());
    if (runs.ok()) {
      data.runs = runs->size();
      data.index = static_cast<size_t>(std::find(runs->begin(), runs->end(), run) - runs->begin());
    }
    const std::string frame = TopFrame(data, SizeOfTerminal(), NowUnixNanos());
    // Home, then each line cleared to its end, then everything below: no flicker.
    std::string out = "\x1b[H";
    for (const char c : frame) {
      if (c == '\n')
        out += "\x1b[K\r\n";
      else
        out += c;
    }
    if (absl::EndsWith(out, "\r\n")) out.resize(out.size() - 2);  // the last line must not scroll
    std::fwrite(out.data(), 1, out.size(), stdout);
    std::fputs("\x1b[J", stdout);
    std::fflush(stdout);
    const char key = screen.WaitKey(options.interval_seconds);
    if (key == 'q') break;
    if ((key == 'n' || key == 'p') && runs.ok() && !runs->empty()) {
      run = (*runs)[(data.index + (key == 'n' ? 1 : runs->size() - 1)) % runs->size()];
    }
  }
  return kOk;
}

int Top(const GlobalOptions& global, const TopOptions& options) {
  auto client = Client::Connect(global);
  if (!client.ok()) return Fail(client.status());
  std::string run;
  if (options.run.empty()) {
    const auto runs = Runs(**client);
    if (!runs.ok()) return Fail(runs.status());
    if (!runs->empty()) run = runs->front();
  }
  if (run.empty()) {
    const auto resolved = (*client)->ResolveRun(options.run);
    if (!resolved.ok()) return Fail(resolved.status());
    run = *resolved;
  }
  if (StdoutIsTerminal() && !options.once && !global.json) return Live(**client, run, options);
  const auto data = Read(**client, run);
  if (!data.ok()) return Fail(data.status());
  if (global.json) {
    PrintJson(data->state);
  } else {
    std::printf("%s", TopFrame(*data, {120, 0}, NowUnixNanos()).c_str());
  }
  return kOk;
}

}  // namespace

void AddTopCommand(CLI::App* app, Action* action) {
  static TopOptions options;
  CLI::App* top = app->add_subcommand("top", "Live view of a run; prints once when stdout is no terminal");
  top->add_option("RUN", options.run, "Name or unique beginning (default: the run that reported last)");
  top->add_option("--interval", options.interval_seconds, "Seconds between pictures (default: 1)")
      ->check(SecondsBetween(0.1, 3600));
  top->add_flag("--once", options.once, "Print one picture and end");
  top->callback([action] { *action = [](const GlobalOptions& global) { return Top(global, options); }; });
}

}  // namespace trimtab::cli
