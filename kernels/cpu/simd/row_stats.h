// Exact statistics of one row of scores, against the row's final maximum.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_ROW_STATS_H_
#define TRIMTAB_KERNELS_CPU_SIMD_ROW_STATS_H_

#include "kernels/cpu/simd/softmax.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

// `s` holds masked scores in [0, n), n a multiple of the vector length; `visible` of them are visible; `max` is their
// maximum. A row with a non-finite maximum or score adds to the counts, not to entropy, sink share and residual mass.
inline void AddRowStats(const float* s, int64_t n, int64_t visible, float max, const Rounding& round,
                        trimtab_head_stats* stats) {
  if (visible == 0) {
    ++stats->empty_rows;
    return;
  }
  if (visible == 1) {
    ++stats->trivial_rows;
    return;
  }
  ++stats->rows;
  stats->scores += static_cast<uint64_t>(visible);
  if (!(max - max == 0.0f)) return;
  Vec sum = Splat(0.0f), weighted = Splat(0.0f), residual = Splat(0.0f);
  Int ones = {}, ties = {};
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec x = Load(s + j) - max;
    const Vec p = Exp(x);
    const Int one = round(p) == Splat(1.0f);
    ones += one;
    ties += Load(s + j) == Splat(max);
    sum += p;
    weighted += p == Splat(0.0f) ? Splat(0.0f) : p * x;
    residual += one ? Splat(0.0f) : p;
  }
  const auto p_ones = static_cast<uint64_t>(-SumOf(ones));
  stats->p_one_count += p_ones;
  stats->repeated_max_rows += p_ones >= 2;
  stats->tie_rows += SumOf(ties) <= -2;
  const float total = SumOf(sum);
  if (!(total - total == 0.0f)) return;
  stats->entropy_sum += std::log(total) - SumOf(weighted) / total;
  stats->sink_share_sum += std::exp(s[0] - max) / total;
  stats->residual_mass_sum += SumOf(residual);
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
