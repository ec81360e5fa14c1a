#include "agent/core/process_id.h"

#include <fcntl.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace trimtab::agent {

bool ReadProcessStat(uint32_t pid, ProcessStat* stat) {
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/%u/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[1024];
  const ssize_t bytes = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (bytes <= 0) return false;
  text[bytes] = '\0';
  // The command name may hold spaces and brackets: fields are counted from the last closing one.
  const char* after_name = std::strrchr(text, ')');
  if (after_name == nullptr) return false;
  return std::sscanf(after_name + 1,
                     " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %" SCNu32 " %*d %" SCNu64,
                     &stat->state, &stat->threads, &stat->start_ticks) == 3;
}

bool IsProcessAlive(uint32_t pid, uint64_t start_ticks) {
  ProcessStat stat;
  if (!ReadProcessStat(pid, &stat) || stat.start_ticks != start_ticks) return false;
  if (stat.state == 'X' || stat.state == 'x') return false;
  // The first thread may end before the others: then it alone is a zombie.
  return stat.state != 'Z' || stat.threads > 1;
}

}  // namespace trimtab::agent
