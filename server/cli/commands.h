// The commands of `trimtab`. Each adds itself to the command line and sets `run` to what it does when chosen.
#ifndef TRIMTAB_SERVER_CLI_COMMANDS_H_
#define TRIMTAB_SERVER_CLI_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/cli/client.h"

namespace trimtab::cli {

// What the parsed command line asks for; returns the exit status.
using Action = std::function<int(const GlobalOptions&)>;

void AddRunCommands(CLI::App* app, Action* action);      // runs, show, coverage
void AddSeriesCommand(CLI::App* app, Action* action);    // series
void AddEventsCommand(CLI::App* app, Action* action);    // events
void AddControlCommands(CLI::App* app, Action* action);  // switch, rollback, approve, plans
void AddPolicyCommands(CLI::App* app, Action* action);   // policy check, policy show
void AddDoctorCommand(CLI::App* app, Action* action);    // doctor
void AddTopCommand(CLI::App* app, Action* action);       // top
void AddVersionCommand(CLI::App* app, Action* action);   // version

// `run`, `attach`, `build`, `doctor-python`: commands of the Python package, replaced by it. Returns nullopt when argv
// names another command; an exit status when the package cannot be started; does not return on success.
std::optional<int> LaunchPython(int argc, char** argv);

// Only digits: CLI11 takes "-1" for the largest unsigned number.
CLI::Validator WholeNumber();

// CLI::Range lets NaN pass.
CLI::Validator SecondsBetween(double low, double high);

// HOST:PORT, or [IPv6]:PORT.
CLI::Validator HostPort();

// "0,3,5-8" → layers. Empty result: malformed or over 1,024 layers.
std::vector<uint32_t> ParseLayers(const std::string& text);

}  // namespace trimtab::cli
#endif  // TRIMTAB_SERVER_CLI_COMMANDS_H_
