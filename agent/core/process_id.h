// Tells one process life from another that got the same pid.
#ifndef TRIMTAB_AGENT_CORE_PROCESS_ID_H_
#define TRIMTAB_AGENT_CORE_PROCESS_ID_H_

#include <cstdint>

namespace trimtab::agent {

struct ProcessStat {
  char state = '\0';  // R, S, D, Z, X, …
  uint32_t threads = 0;
  uint64_t start_ticks = 0;  // clock ticks after boot
};

// Reads /proc/<pid>/stat. False when there is no such process or it cannot be read.
bool ReadProcessStat(uint32_t pid, ProcessStat* stat);

// The process exists, started at `start_ticks`, and has a thread that is not dead. Only meaningful in the pid
// namespace of that process. One small file read.
bool IsProcessAlive(uint32_t pid, uint64_t start_ticks);

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_PROCESS_ID_H_
