// What stands against a switch before any rank is asked, said so that the reader knows what to do.
#ifndef TRIMTAB_SERVER_CONTROL_PREFLIGHT_H_
#define TRIMTAB_SERVER_CONTROL_PREFLIGHT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/control/rank_directory.h"

namespace trimtab::server {

// INVALID_ARGUMENT: no such mode, or a layer that the run does not have.
absl::Status CheckTarget(const RunView& view, v1::KernelMode mode, const std::vector<uint32_t>& layers);

// FAILED_PRECONDITION: no rank connected, ranks of the world missing, or a job whose owner did not allow switches.
absl::Status CheckRanks(const std::string& run, const RunView& view);

// FAILED_PRECONDITION: every layer asked for runs the mode already, on every rank.
absl::Status CheckChanges(const RunView& view, v1::KernelMode mode, const std::vector<uint32_t>& layers);

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_CONTROL_PREFLIGHT_H_
