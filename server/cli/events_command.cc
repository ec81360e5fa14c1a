#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/cli/commands.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

struct EventOptions {
  std::string run, kind;
  uint64_t max = 100, after = 0;
  bool follow = false, evidence = false;
};

void Print(const v1::Event& event, const EventOptions& options, bool with_run) {
  std::string line = absl::StrCat(LocalTime(event.time_unix_nanos()), "  ");
  const char* severity = event.severity() == v1::SEVERITY_CRITICAL  ? "CRITICAL"
                         : event.severity() == v1::SEVERITY_WARNING ? "warning "
                                                                    : "info    ";
  absl::StrAppend(&line, severity, "  ", absl::StrFormat("%-16s", Escape(event.kind())), "  ");
  absl::StrAppend(&line, absl::StrFormat("%10s", event.step() > 0 ? Count(event.step()) : "-"), "  ");
  if (with_run) absl::StrAppend(&line, Escape(event.run()), ": ");
  absl::StrAppend(&line, Escape(event.message()));
  std::printf("%s\n", line.c_str());
  if (options.evidence && !event.evidence_json().empty())
    std::printf("    %s\n", Escape(event.evidence_json()).c_str());
}

int Events(const GlobalOptions& global, const EventOptions& options) {
  auto client = Client::Connect(global);
  if (!client.ok()) return Fail(client.status());
  v1::ListEventsRequest request;
  if (!options.run.empty()) {
    const auto run = (*client)->ResolveRun(options.run);
    if (!run.ok()) return Fail(run.status());
    request.set_run(*run);
  }
  request.set_after_id(options.after);
  request.set_max_events(options.max);
  request.set_follow(options.follow);
  grpc::ClientContext context;
  if (!options.follow) (*client)->Prepare(&context);
  const auto reader = (*client)->query().ListEvents(&context, request);
  v1::Event event;
  bool any = false;
  while (reader->Read(&event)) {
    if (!options.kind.empty() && event.kind() != options.kind) continue;
    any = true;
    if (global.json) {
      PrintJson(event);
    } else {
      Print(event, options, request.run().empty());
    }
    if (options.follow) std::fflush(stdout);
  }
  const grpc::Status status = reader->Finish();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return Fail(absl::UnavailableError(absl::StrCat("the connection to ", global.server, " ended (",
                                                    status.error_message(), "); is trimtabd running?")));
  }
  if (!status.ok()) return Fail(status);
  if (!any && !global.json) std::printf("No events.\n");
  return kOk;
}

}  // namespace

void AddEventsCommand(CLI::App* app, Action* action) {
  static EventOptions options;
  CLI::App* events = app->add_subcommand("events", "Alerts, switches, ranks that come and go; oldest first");
  events->add_option("RUN", options.run, "Name or unique beginning; all runs when left out");
  events->add_flag("--follow,-f", options.follow, "Go on with new events until interrupted");
  events->add_option("--max", options.max, "At most so many, the newest (default: 100)")->check(CLI::Range(1, 100000));
  events->add_option("--after", options.after, "Only events with a higher id; then the oldest of them")
      ->check(WholeNumber());
  events->add_option("--kind", options.kind, "Only this kind: alert, switch_applied, switch_refused, …");
  events->add_flag("--evidence", options.evidence, "Also the values that a decision rests on");
  events->callback([action] { *action = [](const GlobalOptions& global) { return Events(global, options); }; });
}

}  // namespace trimtab::cli
