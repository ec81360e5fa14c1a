#include "agent/core/fork_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "agent/core/ring_format.h"

namespace trimtab::agent {

void ForkGuard::Arm() {
  pid_ = getpid();
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
#if defined(MADV_WIPEONFORK)
  if (madvise(page, kPageBytes, MADV_WIPEONFORK) == 0) {
    token_ = new (page) std::atomic<uint32_t>(1);
    return;
  }
#endif
  munmap(page, kPageBytes);
}

ForkGuard::~ForkGuard() {
  if (token_ != nullptr) munmap(token_, kPageBytes);
}

bool ForkGuard::forked() const {
  if (token_ != nullptr) return token_->load(std::memory_order_relaxed) == 0;
  return getpid() != pid_;
}

}  // namespace trimtab::agent
