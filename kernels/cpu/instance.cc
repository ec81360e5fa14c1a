#include "kernels/cpu/instance.h"

#include <atomic>

namespace trimtab::cpu {
namespace {

const Instance* Best() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kAvx2Instance;
#endif
  return &kBaseInstance;
}

std::atomic<const Instance*> active{nullptr};

}  // namespace

const Instance& ActiveInstance() {
  const Instance* instance = active.load(std::memory_order_relaxed);
  if (instance == nullptr) {
    instance = Best();
    active.store(instance, std::memory_order_relaxed);
  }
  return *instance;
}

void UseInstanceForTest(const Instance* instance) { active.store(instance, std::memory_order_relaxed); }

}  // namespace trimtab::cpu
