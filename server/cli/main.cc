// `trimtab`: see and steer runs from a terminal. Commands and exit statuses: docs/cli.md.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "server/cli/commands.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

int Main(int argc, char** argv) {
  if (const std::optional<int> status = LaunchPython(argc, argv)) return *status;
  GlobalOptions options;
  Action action;
  CLI::App app("Watches the numerics of live training and steers attention kernels.", "trimtab");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--server", options.server, "trimtabd's address (default: 127.0.0.1:7070)")
      ->envname("TRIMTAB_SERVER")
      ->type_name("HOST:PORT");
  app.add_flag("--json", options.json, "proto3 JSON, one document a line");
  app.add_option("--timeout", options.timeout_seconds, "Seconds to wait for an answer (default: 10)")
      ->check(CLI::Range(0.1, 3600.0));
  app.footer(
      "  run -- COMMAND              Train under trimtab: trimtab run --server HOST:PORT -- python train.py\n"
      "  attach PID                  Attach to a job that runs already\n\n"
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
    return WrongUsage(std::string(error.what()) + " (see trimtab --help)");
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
