// The unnormalised softmax of one row, for the three kinds (docs/numerics.md).
#ifndef TRIMTAB_KERNELS_CPU_SIMD_SOFTMAX_H_
#define TRIMTAB_KERNELS_CPU_SIMD_SOFTMAX_H_

#include "kernels/cpu/simd/vec.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

// n is a multiple of the vector length; masked entries are -Inf; NaN is passed over.
inline float RowMax(const float* s, int64_t n) {
  Vec m = Splat(-__builtin_inff());
  for (int64_t j = 0; j < n; j += kLanes) m = Max(Load(s + j), m);
  return MaxOf(m);
}

inline int64_t CountAtLeast(const float* s, int64_t n, float bound) {
  Int count = {};
  for (int64_t j = 0; j < n; j += kLanes) count += Load(s + j) >= Splat(bound);
  return -SumOf(count);
}

// What divides O, and what the log-sum-exp is made of.
struct RowSums {
  float normaliser;
  float lse;
};

// s becomes factor * exp(s - shift), rounded; returns the sums of the rounded and of the unrounded weights.
template <bool kRound>
TRIMTAB_INLINE void ExpRow(float* s, int64_t n, float shift, float factor, const Rounding& round, float* rounded_sum,
                           float* exact_sum) {
  Vec rounded = Splat(0.0f), exact = Splat(0.0f);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec p = Exp(Load(s + j) - shift) * factor;
    exact += p;
    if constexpr (kRound) {
      const Vec stored = round(p);
      rounded += stored;
      Store(s + j, stored);
    } else {
      Store(s + j, p);
    }
  }
  *exact_sum = SumOf(exact);
  *rounded_sum = kRound ? SumOf(rounded) : *exact_sum;
}

// How far above the row maximum the published rule puts the reference point, in nats; see kPaperMaxShiftNats.
inline float PaperShift(const float* s, int64_t n, float max, float beta) {
  if (!(max - max == 0.0f) || max == 0.0f) return 0.0f;
  if (CountAtLeast(s, n, max - kPaperTieNats) <= 1) return 0.0f;
  const float shift = max > 0.0f ? (beta - 1.0f) * max : -max;
  return shift < kPaperMaxShiftNats ? shift : kPaperMaxShiftNats;
}

// Replaces the masked scores of a row whose maximum is `max` > -Inf by its rounded weights.
inline RowSums SoftmaxRow(const AttentionJob& job, const Rounding& round, float* s, int64_t n, float max) {
  float shift = 0.0f, factor = 1.0f;
  if (job.a.kind == TRIMTAB_ATTENTION_PAPER) shift = PaperShift(s, n, max, job.a.beta);
  if (job.a.kind == TRIMTAB_ATTENTION_STABILIZED) factor = kStabilizedShift;
  float rounded_sum, exact_sum;
  if (round.none()) {
    ExpRow<false>(s, n, max + shift, factor, round, &rounded_sum, &exact_sum);
  } else {
    ExpRow<true>(s, n, max + shift, factor, round, &rounded_sum, &exact_sum);
  }
  const bool stabilized = job.a.kind == TRIMTAB_ATTENTION_STABILIZED;
  // (max + shift) - max is the shift that was really applied.
  const float applied = (max + shift) - max;
  return {stabilized ? rounded_sum : exact_sum, max + (applied + std::log(exact_sum / factor))};
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
