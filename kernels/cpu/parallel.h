// Splits independent units over the caller's pool, or does them here; collects "out of scratch memory" from all.
#ifndef TRIMTAB_KERNELS_CPU_PARALLEL_H_
#define TRIMTAB_KERNELS_CPU_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/include/trimtab/kernels.h"

namespace trimtab::cpu {

// Below about this many multiply-adds a unit is not worth another thread.
inline constexpr double kGrainWork = 1 << 18;

// body(unit) -> bool for every unit in [0, n); false when any returned false. `work` is the multiply-adds of a unit.
template <typename Body>
bool ForEachUnit(trimtab_parallel_for parallel_for, void* context, int64_t n, double work, const Body& body) {
  struct Shared {
    const Body* body;
    std::atomic<bool> ok{true};
  } shared{&body, {true}};
  const auto run = [](void* arg, int64_t begin, int64_t end) {
    auto* s = static_cast<Shared*>(arg);
    for (int64_t unit = begin; unit < end; ++unit) {
      if (!(*s->body)(unit)) s->ok.store(false, std::memory_order_relaxed);
    }
  };
  const auto grain = static_cast<int64_t>(std::max(1.0, kGrainWork / std::max(1.0, work)));
  if (parallel_for == nullptr || n <= grain) {
    run(&shared, 0, n);
  } else {
    parallel_for(context, n, grain, run, &shared);
  }
  return shared.ok.load(std::memory_order_relaxed);
}

}  // namespace trimtab::cpu
#endif
