// Notices that the process was forked, without a fork handler: a page that the kernel clears in the child.
#ifndef TRIMTAB_AGENT_CORE_FORK_GUARD_H_
#define TRIMTAB_AGENT_CORE_FORK_GUARD_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace trimtab::agent {

class ForkGuard {
 public:
  ForkGuard() = default;
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // Remembers this process. Where the kernel cannot wipe pages on fork (before Linux 4.14), forked() asks for the pid.
  void Arm();
  // True in a child of the process that armed it. One relaxed load.
  bool forked() const;

 private:
  std::atomic<uint32_t>* token_ = nullptr;  // 1 in the process that armed it, 0 in its children
  pid_t pid_ = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_FORK_GUARD_H_
