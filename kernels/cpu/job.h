// Checked and resolved arguments, as the vector code reads them: no defaults left to fill in.
#ifndef TRIMTAB_KERNELS_CPU_JOB_H_
#define TRIMTAB_KERNELS_CPU_JOB_H_

#include <cstdint>

#include "kernels/include/trimtab/kernels.h"

namespace trimtab::cpu {

// Shift of the stabilized softmax: exact in BF16, and with a mixed significand, so that a repeated maximum no longer
// multiplies V by a power of two.
inline constexpr float kStabilizedShift = 25.0f / 32.0f;
// The published rule counts scores this close to the row maximum as tied.
inline constexpr float kPaperTieNats = 1e-3f;
// Guard of the published rule: the row maximum keeps a weight of at least exp(-16), so the row sum cannot vanish.
inline constexpr float kPaperMaxShiftNats = 16.0f;
// Statistics take an additive mask at or below this as "masked": frameworks write -1e4, -65504 or -FLT_MAX for it.
inline constexpr float kMaskedBias = -1e4f;
// A delta-preserving step moves an entry by at most this many units in the last place.
inline constexpr float kDeltaStepMaxUlps = 4.0f;

// Steps that it takes, as multiples of the residual left: first those that cut it to a third, then all that help.
inline constexpr float kDeltaStepFirstBound = 4.0f / 3.0f;
inline constexpr float kDeltaStepLastBound = 2.0f;

inline constexpr int kFp32MantissaBits = 23;

// Explicit mantissa bits of a format, kFp32MantissaBits where nothing is rounded.
int MantissaBits(trimtab_storage storage, trimtab_dtype dtype);

struct AttentionJob {
  trimtab_attention a;  // scale, beta and empty_lse resolved
  int mantissa_bits;
  int64_t group;          // query heads of one key/value head
  int64_t causal_offset;  // causal row i sees keys [0, i + 1 + causal_offset)
};

inline int64_t VisibleKeys(const AttentionJob& job, int64_t row) {
  if (job.a.causal == 0) return job.a.keys;
  const int64_t n = row + 1 + job.causal_offset;
  return n < 0 ? 0 : (n > job.a.keys ? job.a.keys : n);
}

struct GradJob {
  AttentionJob attention;
  trimtab_tensor grad_out;
  trimtab_mutable_tensor grad_q, grad_k, grad_v;
};

struct ProbeJob {
  AttentionJob attention;
  trimtab_tensor out, grad_out;
  int64_t row_begin, row_step, rows;
  int64_t batch_begin, batch_step;
};

struct DeltaJob {
  trimtab_delta_preserve d;
  int mantissa_bits;
};

}  // namespace trimtab::cpu
#endif
