// `trimtab`: see and steer runs from a terminal. Commands and exit statuses: docs/cli.md.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "server/cli/commands.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

// CLI11 calls a command missing when there is one that it does not know. nullopt: that is not what is wrong.
std::optional<std::string> UnknownCommand(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> surplus = app.remaining(/*recurse=*/true);
  if (dynamic_cast<const CLI::RequiredError*>(&error) == nullptr || surplus.empty()) return std::nullopt;
  const auto chosen = app.get_subcommands();
  const CLI::App& group = chosen.empty() ? app : *chosen.front();
  if (group.get_require_subcommand_min() == 0) return std::nullopt;
  if (surplus.front()[0] == '-') return "unknown option '" + surplus.front() + "'";
  if (surplus.front() == "run") return "only --server may stand before run; trimtab run --help lists its options";
  std::string text = "unknown command '" + surplus.front() + "'; there are:";
  if (chosen.empty()) text += " run";
  for (const CLI::App* command : group.get_subcommands([](const CLI::App*) { return true; })) {
    text += " " + command->get_name();
  }
  return text;
}

int Main(int argc, char** argv) {
  if (const std::optional<int> status = LaunchPython(argc, argv)) return *status;
  GlobalOptions options;
  Action action;
  CLI::App app("Watches the numerics of live training and steers attention kernels.", "trimtab");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--server", options.server, "trimtabd's address (default: 127.0.0.1:7070)")
      ->envname("TRIMTAB_SERVER")
      ->check(HostPort())
      ->type_name("HOST:PORT");
  app.add_flag("--json", options.json, "proto3 JSON, one document a line");
  app.add_option("--timeout", options.timeout_seconds, "Seconds to wait for an answer (default: 10)")
      ->check(SecondsBetween(0.1, 3600));
  app.footer(
      "  run -- COMMAND              Train under trimtab: trimtab run --server HOST:PORT -- python train.py\n"
      "  attach PID                  A job that runs already: not there yet, says what to do instead\n\n"
      "Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no server.");
  AddRunCommands(&app, &action);
  AddTopCommand(&app, &action);
  AddSeriesCommand(&app, &action);
  AddEventsCommand(&app, &action);
  AddControlCommands(&app, &action);
  AddPolicyCommands(&app, &action);
  AddDoctorCommand(&app, &action);
  AddVersionCommand(&app, &action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return WrongUsage(UnknownCommand(app, error).value_or(error.what()) + " (see trimtab --help)");
  }
  return action(options);
}

}  // namespace
}  // namespace trimtab::cli

int main(int argc, char** argv) {
  // A closed pipe (`trimtab series | head`) ends the program quietly, as it does others.
  std::signal(SIGPIPE, SIG_DFL);
  try {
    return trimtab::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trimtab: %s\n", trimtab::cli::Escape(error.what()).c_str());
    return trimtab::cli::kFailed;
  }
}
