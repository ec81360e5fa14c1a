#include <cstdio>
#include <nlohmann/json.hpp>

#include "server/cli/commands.h"
#include "server/cli/doctor_checks.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

const char* Name(Verdict verdict) {
  return verdict == Verdict::kGood ? "ok" : verdict == Verdict::kWarning ? "warn" : "fail";
}

int Doctor(const GlobalOptions& options) {
  const std::vector<Finding> python = CheckPython();  // first: it changes the environment, and gRPC starts threads
  std::vector<Finding> findings = CheckServer(options);
  for (const auto& more : {python, CheckMachine()}) findings.insert(findings.end(), more.begin(), more.end());
  bool bad = false;
  for (const Finding& finding : findings) {
    bad |= finding.verdict == Verdict::kBad;
    if (options.json) {
      const nlohmann::json line = {{"verdict", Name(finding.verdict)},
                                   {"subject", finding.subject},
                                   {"text", finding.text},
                                   {"fix", finding.fix}};
      std::printf("%s\n", line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).c_str());
      continue;
    }
    std::printf("%-4s  %s: %s\n", Name(finding.verdict), Escape(finding.subject).c_str(), Escape(finding.text).c_str());
    if (!finding.fix.empty()) std::printf("      fix: %s\n", Escape(finding.fix).c_str());
  }
  return bad ? kFailed : kOk;
}

int Version(const GlobalOptions& options) {
  if (options.json) {
    std::printf("%s\n", nlohmann::json({{"version", TRIMTAB_VERSION}}).dump().c_str());
  } else {
    std::printf("trimtab %s\n", TRIMTAB_VERSION);
  }
  return kOk;
}

}  // namespace

void AddDoctorCommand(CLI::App* app, Action* action) {
  app->add_subcommand("doctor",
                      "Check server, runs, Python, compiler and shared memory; says how to mend what is wrong")
      ->callback([action] { *action = Doctor; });
}

void AddVersionCommand(CLI::App* app, Action* action) {
  app->add_subcommand("version", "Version of this command")->callback([action] { *action = Version; });
}

}  // namespace trimtab::cli
