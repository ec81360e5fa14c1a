// One compiled copy of the vector code for one instruction set. The same headers (kernels/cpu/simd/) are compiled once
// a copy; the copy is chosen once a process, from what the processor can do.
#ifndef TRIMTAB_KERNELS_CPU_INSTANCE_H_
#define TRIMTAB_KERNELS_CPU_INSTANCE_H_

#include <cstdint>

#include "kernels/cpu/job.h"

namespace trimtab::cpu {

// Each function does one independent unit of work on the calling thread, and returns false when scratch memory is
// short.
struct Instance {
  const char* name;
  // Unit = batch * heads + head. `stats` may be NULL.
  bool (*forward)(const AttentionJob& job, int64_t unit, trimtab_head_stats* stats);
  // Unit = batch * kv_heads + kv_head; `stats` is NULL or the [group] slots of that unit's query heads.
  bool (*backward)(const GradJob& job, int64_t unit, trimtab_head_stats* stats);
  // Unit = sampled batch index * heads + head.
  bool (*probe)(const ProbeJob& job, int64_t unit, trimtab_head_stats* stats);
  // Rows [begin, end) of the flattened (batch, head, row).
  bool (*delta_step)(const DeltaJob& job, int64_t begin, int64_t end);
  bool (*spectral)(const trimtab_spectral& s, int64_t slice);
  bool (*activation)(trimtab_dtype dtype, const void* data, int64_t n, float threshold,
                     trimtab_activation_stats* stats);
};

extern const Instance kBaseInstance;
#if defined(__x86_64__)
extern const Instance kAvx2Instance;
#endif

// The best copy this processor runs.
const Instance& ActiveInstance();

// Tests only: makes every later call use `instance`; NULL goes back to the best copy.
void UseInstanceForTest(const Instance* instance);

}  // namespace trimtab::cpu
#endif
