// The text behind trimtab_last_error: one fixed buffer a thread, so failing never allocates.
#ifndef TRIMTAB_AGENT_CORE_LAST_ERROR_H_
#define TRIMTAB_AGENT_CORE_LAST_ERROR_H_

#include "trimtab/agent.h"

namespace trimtab::agent {

inline constexpr unsigned kMaxErrorBytes = 512;

// Keeps the formatted text (cut at kMaxErrorBytes - 1 bytes) for this thread and returns `status`.
[[gnu::format(printf, 2, 3)]] trimtab_status Fail(trimtab_status status, const char* format, ...);

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_LAST_ERROR_H_
