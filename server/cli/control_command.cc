#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/cli/commands.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

constexpr double kAnswerSeconds = 900;  // the server's longest deadline, and a margin
constexpr absl::Duration kPollInterval = absl::Milliseconds(250);

const std::map<std::string, v1::KernelMode> kModes = {{"native", v1::KERNEL_MODE_NATIVE},
                                                      {"observe", v1::KERNEL_MODE_OBSERVE},
                                                      {"stabilized", v1::KERNEL_MODE_STABILIZED},
                                                      {"paper", v1::KERNEL_MODE_PAPER}};

// A name to the number that CLI11 reads.
CLI::Validator Mode() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const auto found = kModes.find(absl::AsciiStrToLower(text));
        if (found == kModes.end()) return "'" + text + "' is not one of native, observe, stabilized, paper";
        text = absl::StrCat(static_cast<int>(found->second));
        return "";
      },
      "MODE");
}

struct ControlOptions {
  std::string run, reason, layers;
  v1::KernelMode mode = v1::KERNEL_MODE_UNSPECIFIED;
  uint32_t lead_steps = 0;
  double deadline_seconds = 0;
  uint64_t plan = 0;
  bool no_wait = false, reject = false;
};

// "alice@host": who asked, for the audit log.
std::string Actor() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::array<char, 4096> buffer;
  passwd entry{};
  passwd* found = nullptr;
  getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found);
  return absl::StrCat(found != nullptr ? std::string(found->pw_name) : absl::StrCat("uid ", geteuid()), "@",
                      host.data());
}

const char* StateName(v1::PlanState state) {
  switch (state) {
    case v1::PLAN_STATE_PROPOSED:
      return "proposed";
    case v1::PLAN_STATE_PREPARING:
      return "preparing";
    case v1::PLAN_STATE_COMMITTING:
      return "committed";
    case v1::PLAN_STATE_APPLIED:
      return "applied";
    case v1::PLAN_STATE_REFUSED:
      return "refused";
    case v1::PLAN_STATE_REJECTED:
      return "rejected";
    case v1::PLAN_STATE_ABORTED:
      return "aborted";
    default:
      return "unknown";
  }
}

std::vector<uint32_t> LayersOf(const v1::Plan& plan) { return {plan.layers().begin(), plan.layers().end()}; }

// Says what became of a plan. kFailed when nobody switched although somebody should have.
int Report(const GlobalOptions& global, const v1::PlanResponse& response, bool reject) {
  const v1::Plan& plan = response.plan();
  const bool failed = plan.state() == v1::PLAN_STATE_REFUSED || plan.state() == v1::PLAN_STATE_ABORTED ||
                      (plan.state() == v1::PLAN_STATE_REJECTED && !reject);
  if (global.json) {
    PrintJson(plan);
    return failed ? kFailed : kOk;
  }
  std::string text =
      absl::StrCat("plan ", plan.id(), " ", StateName(plan.state()), ": ", plan.rollback() ? "back to " : "",
                   ModeName(plan.mode()), " in layers ", LayerList(LayersOf(plan)));
  if (plan.effective_step() > 0) absl::StrAppend(&text, " from step ", Count(plan.effective_step()));
  absl::StrAppend(&text, " on ", plan.ranks_size(), plan.ranks_size() == 1 ? " rank" : " ranks");
  std::FILE* const stream = failed ? stderr : stdout;
  std::fprintf(stream, "%s%s\n", failed ? "trimtab: " : "", Escape(text).c_str());
  if (!plan.outcome().empty()) std::fprintf(stream, "  %s\n", Escape(plan.outcome()).c_str());
  if (failed) {
    for (const v1::RankState& rank : plan.ranks()) {
      if (rank.reason().empty()) continue;
      std::fprintf(stream, "  rank %u %s: %s\n", rank.rank(), Escape(rank.state()).c_str(),
                   Escape(rank.reason()).c_str());
    }
  }
  return failed ? kFailed : kOk;
}

// A committed plan is answered for before its step has come: looks again until every rank has applied it, or until the
// server has found that one did not. At most kAnswerSeconds; then the plan is given as it is.
grpc::Status WaitFinished(const GlobalOptions& global, Client* client, const std::string& run, v1::Plan* plan) {
  if (plan->state() != v1::PLAN_STATE_COMMITTING) return grpc::Status::OK;
  if (!global.json) {
    std::fprintf(stderr, "plan %llu: every rank is prepared and switches at step %s; waiting for it\n",
                 static_cast<unsigned long long>(plan->id()), Count(plan->effective_step()).c_str());
  }
  const absl::Time end = absl::Now() + absl::Seconds(kAnswerSeconds);
  while (plan->state() == v1::PLAN_STATE_COMMITTING && absl::Now() < end) {
    absl::SleepFor(kPollInterval);
    v1::ListPlansRequest request;
    request.set_run(run);
    grpc::ClientContext context;
    client->Prepare(&context);
    v1::ListPlansResponse response;
    if (grpc::Status status = client->control().ListPlans(&context, request, &response); !status.ok()) return status;
    const auto found = std::find_if(response.mutable_plans()->begin(), response.mutable_plans()->end(),
                                    [&](const v1::Plan& p) { return p.id() == plan->id(); });
    if (found == response.mutable_plans()->end()) break;  // many later plans: the server has dropped its record
    plan->Swap(&*found);
  }
  return grpc::Status::OK;
}

// Connects, resolves the run, makes the call and, unless told otherwise, waits for the end of the plan.
template <typename Call>
int WithRun(const GlobalOptions& global, const ControlOptions& options, Call call) {
  auto client = Client::Connect(global);
  if (!client.ok()) return Fail(client.status());
  const auto run = (*client)->ResolveRun(options.run);
  if (!run.ok()) return Fail(run.status());
  grpc::ClientContext context;
  (*client)->Prepare(&context, kAnswerSeconds);
  v1::PlanResponse response;
  if (const grpc::Status status = call((*client)->control(), &context, *run, &response); !status.ok())
    return Fail(status);
  if (!options.no_wait) {
    const grpc::Status status = WaitFinished(global, client->get(), *run, response.mutable_plan());
    if (!status.ok()) return Fail(status);
  }
  return Report(global, response, options.reject);
}

int Switch(const GlobalOptions& global, const ControlOptions& options) {
  std::vector<uint32_t> layers;
  if (!options.layers.empty() && options.layers != "all") {
    layers = ParseLayers(options.layers);
    if (layers.empty()) return WrongUsage("--layers takes numbers and ranges like 0,3,5-8, or all");
  }
  return WithRun(global, options, [&](auto& control, auto* context, const std::string& run, auto* response) {
    v1::SwitchRequest request;
    request.set_run(run);
    request.set_mode(options.mode);
    request.mutable_layers()->Assign(layers.begin(), layers.end());
    request.set_reason(options.reason);
    request.set_actor(Actor());
    request.set_lead_steps(options.lead_steps);
    request.set_deadline_seconds(options.deadline_seconds);
    request.set_no_wait(options.no_wait);
    return control.Switch(context, request, response);
  });
}

int Rollback(const GlobalOptions& global, const ControlOptions& options) {
  return WithRun(global, options, [&](auto& control, auto* context, const std::string& run, auto* response) {
    v1::RollbackRequest request;
    request.set_run(run);
    request.set_reason(options.reason);
    request.set_actor(Actor());
    request.set_no_wait(options.no_wait);
    return control.Rollback(context, request, response);
  });
}

int Approve(const GlobalOptions& global, const ControlOptions& options) {
  return WithRun(global, options, [&](auto& control, auto* context, const std::string& run, auto* response) {
    v1::ApproveRequest request;
    request.set_run(run);
    request.set_plan(options.plan);
    request.set_reject(options.reject);
    request.set_actor(Actor());
    request.set_no_wait(options.no_wait);
    return control.Approve(context, request, response);
  });
}

int Plans(const GlobalOptions& global, const ControlOptions& options) {
  auto client = Client::Connect(global);
  if (!client.ok()) return Fail(client.status());
  v1::ListPlansRequest request;
  if (!options.run.empty()) {
    const auto run = (*client)->ResolveRun(options.run);
    if (!run.ok()) return Fail(run.status());
    request.set_run(*run);
  }
  grpc::ClientContext context;
  (*client)->Prepare(&context);
  v1::ListPlansResponse response;
  if (const auto status = (*client)->control().ListPlans(&context, request, &response); !status.ok())
    return Fail(status);
  if (global.json) {
    PrintJson(response);
    return kOk;
  }
  if (response.plans().empty()) {
    std::printf("No switch has been planned.\n");
    return kOk;
  }
  Table table({">PLAN", "RUN", "STATE", "MODE", "LAYERS", ">STEP", ">RANKS", "BY", "CREATED", "OUTCOME"});
  for (const v1::Plan& plan : response.plans()) {
    table.Add({absl::StrCat(plan.id()), plan.run(), StateName(plan.state()), ModeName(plan.mode()),
               LayerList(LayersOf(plan)), plan.effective_step() > 0 ? Count(plan.effective_step()) : "-",
               absl::StrCat(plan.ranks_size()), plan.actor(), LocalTime(plan.created_unix_nanos()), plan.outcome()});
  }
  std::printf("%s", table.Render().c_str());
  return kOk;
}

void AddRun(CLI::App* command, ControlOptions* options) {
  command->add_option("RUN", options->run, "Name or unique beginning; not needed when there is one run");
}

}  // namespace

void AddControlCommands(CLI::App* app, Action* action) {
  static ControlOptions options;
  const auto choose = [action](CLI::App* command, int (*function)(const GlobalOptions&, const ControlOptions&)) {
    command->callback([action, function] {
      *action = [function](const GlobalOptions& global) { return function(global, options); };
    });
  };
  CLI::App* change = app->add_subcommand("switch", "Change the attention kernel of layers on all ranks at one step");
  AddRun(change, &options);
  change->add_option("--mode", options.mode, "native, observe, stabilized or paper")->required()->transform(Mode());
  change->add_option("--layers", options.layers, "Like 0,3,5-8 (default: all)");
  change->add_option("--reason", options.reason, "For the audit log");
  change
      ->add_option("--lead-steps", options.lead_steps, "Steps between commit and switch (default: from the step rate)")
      ->check(WholeNumber());
  change->add_option("--deadline", options.deadline_seconds, "Seconds for all ranks to get ready")
      ->check(SecondsBetween(0.1, 600));
  change->add_flag("--no-wait", options.no_wait, "Return at once; the outcome is in `trimtab plans` and `events`");
  choose(change, Switch);

  CLI::App* rollback = app->add_subcommand("rollback", "Back to the kernels before the last switch");
  AddRun(rollback, &options);
  rollback->add_option("--reason", options.reason, "For the audit log");
  rollback->add_flag("--no-wait", options.no_wait, "Return at once");
  choose(rollback, Rollback);

  CLI::App* approve = app->add_subcommand("approve", "Approve (or --reject) a switch that the policy proposed");
  AddRun(approve, &options);
  approve->add_option("--plan", options.plan, "Number of the plan; not needed when one is open")->check(WholeNumber());
  approve->add_flag("--reject", options.reject, "Turn it down");
  approve->add_flag("--no-wait", options.no_wait, "Return at once");
  choose(approve, Approve);

  CLI::App* plans = app->add_subcommand("plans", "Switches: proposed, under way, applied, refused");
  plans->add_option("RUN", options.run, "Name or unique beginning; all runs when left out");
  choose(plans, Plans);
}

}  // namespace trimtab::cli
