// What `trimtab doctor` looks at. Each check answers with findings; none throws or waits longer than a few seconds.
#ifndef TRIMTAB_SERVER_CLI_DOCTOR_CHECKS_H_
#define TRIMTAB_SERVER_CLI_DOCTOR_CHECKS_H_

#include <string>
#include <vector>

#include "server/cli/client.h"

namespace trimtab::cli {

enum class Verdict { kGood, kWarning, kBad };

struct Finding {
  Verdict verdict = Verdict::kGood;
  std::string subject;  // "server", "clock", …
  std::string text;     // what was found
  std::string fix;      // what to do; empty when good
};

// Reachable, healthy, version, clock, live page, and the age of every run.
std::vector<Finding> CheckServer(const GlobalOptions& options);
// Python, torch and compiler for the hook library, as the Python package itself sees them. Sets environment variables:
// call it before any thread is started.
std::vector<Finding> CheckPython();
// /dev/shm for the rings, and the cache for built hook libraries.
std::vector<Finding> CheckMachine();

}  // namespace trimtab::cli
#endif  // TRIMTAB_SERVER_CLI_DOCTOR_CHECKS_H_
