// Thread-local work space that only grows, so that a call allocates nothing once its shapes were seen on the thread.
#ifndef TRIMTAB_KERNELS_CPU_SCRATCH_H_
#define TRIMTAB_KERNELS_CPU_SCRATCH_H_

#include <cstdint>

namespace trimtab::cpu {

enum class Slot : int {
  kScores,       // one block of score rows; P after the softmax
  kScoreGrads,   // dP, then dS
  kKeysByDim,    // K transposed, in panels of keys
  kKeys,         // K, in panels of columns
  kValues,       // V, in panels of columns
  kValuesByDim,  // V transposed, in panels of keys
  kQueries,      // rows of Q
  kQueryPanels,
  kGradOut,
  kGradOutPanels,
  kOutput,      // accumulators of O or dQ
  kGradKeys,    // accumulators of dK
  kGradValues,  // accumulators of dV
  kRow,         // one converted row
  kRow2,
  kRow3,
  kMaskRow,
  kRowState,   // a few floats a row
  kUnitStats,  // of the calling thread: one trimtab_head_stats a (batch, head)
  kCount,
};

// At least `floats` floats, aligned to 64 bytes, valid until the next call for the same slot on this thread; contents
// are undefined. NULL when memory is short.
float* ThreadScratch(Slot slot, int64_t floats);

}  // namespace trimtab::cpu
#endif
