#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/status/status.h"
#include "server/cli/commands.h"
#include "server/cli/run_view.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

int Runs(const GlobalOptions& options) {
  auto client = Client::Connect(options);
  if (!client.ok()) return Fail(client.status());
  grpc::ClientContext context;
  (*client)->Prepare(&context);
  v1::ListRunsResponse response;
  if (const grpc::Status status = (*client)->query().ListRuns(&context, {}, &response); !status.ok())
    return Fail(status);
  if (options.json) {
    PrintJson(response);
    return kOk;
  }
  if (response.runs().empty()) {
    std::printf("No run has reported yet. Start one: trimtab run --server %s -- python train.py\n",
                Escape(options.server).c_str());
    return kOk;
  }
  Table table({"RUN", "STATUS", ">STEP", ">LOSS", ">RANKS", ">LAYERS", "COMMANDS", "LAST SAMPLE"});
  const int64_t now = NowUnixNanos();
  for (const v1::RunSummary& run : response.runs()) {
    table.Add({run.run(), run.status(), Count(run.last_step()), Number(run.loss()),
               absl::StrCat(run.ranks_connected(), "/", run.world_size()), absl::StrCat(run.layers()),
               run.act() ? "obeyed" : "not obeyed", Ago(run.last_seen_unix_nanos(), now)});
  }
  std::printf("%s", table.Render().c_str());
  return kOk;
}

// Connects, resolves the run, reads its state; prints it as JSON when asked to, else with `print`.
int WithState(const GlobalOptions& options, const std::string& wanted,
              const std::function<void(const v1::RunState&)>& print) {
  auto client = Client::Connect(options);
  if (!client.ok()) return Fail(client.status());
  const auto run = (*client)->ResolveRun(wanted);
  if (!run.ok()) return Fail(run.status());
  const auto state = (*client)->State(*run);
  if (!state.ok()) return Fail(state.status());
  if (options.json) {
    PrintJson(*state);
  } else {
    print(*state);
  }
  return kOk;
}

void PrintShow(const v1::RunState& state) {
  std::printf("%s", SummaryText(state, NowUnixNanos()).c_str());
  const std::string layers = LayerTable(state).Render();
  std::printf("\n%s", layers.c_str());
  Table ranks({">RANK", "HOST", ">PID", "COMMANDS", "MODES", "VERSIONS"});
  constexpr int kRanksShown = 16;
  for (int i = 0; i < std::min(state.ranks_size(), kRanksShown); ++i) {
    const v1::RankInfo& rank = state.ranks(i);
    std::vector<std::string> versions;
    for (const auto& [name, version] : rank.versions()) versions.push_back(absl::StrCat(name, " ", version));
    std::sort(versions.begin(), versions.end());
    ranks.Add({absl::StrCat(rank.rank()), rank.host(), absl::StrCat(rank.pid()), rank.act() ? "obeyed" : "not obeyed",
               ModesSummary(ModesOf(rank.modes())), absl::StrJoin(versions, ", ")});
  }
  std::printf("\n%s", ranks.Render().c_str());
  if (state.ranks_size() > kRanksShown)
    std::printf("… and %d more ranks (--json lists all)\n", state.ranks_size() - kRanksShown);
}

void PrintCoverage(const v1::RunState& state) {
  const int64_t now = NowUnixNanos();
  bool first = true;
  for (const v1::RankInfo& rank : state.ranks()) {
    const v1::Coverage& coverage = rank.coverage();
    std::printf("%srank %u\n", first ? "" : "\n", rank.rank());
    first = false;
    const auto line = [](const char* name, const std::string& text) {
      std::printf("  %-12s %s\n", name, Escape(text).c_str());
    };
    line("hooked", coverage.hooked_ops().empty() ? "nothing: no attention of this rank is measured"
                                                 : absl::StrJoin(coverage.hooked_ops(), ", "));
    line("calls", absl::StrCat(Count(coverage.calls_hooked()), " hooked, ", Count(coverage.calls_recomputed()),
                               " recomputed (not counted twice)"));
    for (const v1::PassedBy& passed : coverage.passed_by()) {
      line("passed by", absl::StrCat(Count(passed.calls()), " calls of ", passed.op(), ": ", passed.reason()));
    }
    for (const std::string& error : coverage.errors()) line("error", error);
    for (const std::string& note : coverage.notes()) line("note", note);
    line("last sample", coverage.last_sample_unix_nanos() == 0
                            ? "none"
                            : absl::StrCat("step ", Count(coverage.last_sample_step()), ", ",
                                           Ago(coverage.last_sample_unix_nanos(), now)));
    if (!rank.emulated_storage().empty())
      line("fault", absl::StrCat("attention is computed in ", rank.emulated_storage(), " storage on purpose"));
  }
  if (state.ranks().empty()) std::printf("No rank of this run has reported what it hooks.\n");
}

}  // namespace

void AddRunCommands(CLI::App* app, Action* action) {
  app->add_subcommand("runs", "All runs: status, step, loss, ranks, age of the last sample")->callback([action] {
    *action = Runs;
  });
  static std::string show_run, coverage_run;
  CLI::App* show = app->add_subcommand("show", "One run: latest values, layers, ranks");
  show->add_option("RUN", show_run, "Name or unique beginning; not needed when there is one run");
  show->callback([action] { *action = [](const GlobalOptions& o) { return WithState(o, show_run, PrintShow); }; });
  CLI::App* coverage =
      app->add_subcommand("coverage", "What is hooked, what passed by and why, age of the last sample");
  coverage->add_option("RUN", coverage_run, "Name or unique beginning; not needed when there is one run");
  coverage->callback(
      [action] { *action = [](const GlobalOptions& o) { return WithState(o, coverage_run, PrintCoverage); }; });
}

}  // namespace trimtab::cli
