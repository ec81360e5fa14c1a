// Magnitudes of one activation tensor in one read.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_ACTIVATION_H_
#define TRIMTAB_KERNELS_CPU_SIMD_ACTIVATION_H_

#include "kernels/cpu/simd/convert.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

inline bool Activation(trimtab_dtype dtype, const void* data, int64_t n, float threshold,
                       trimtab_activation_stats* stats) {
  constexpr int64_t kChunk = 4096;
  float* chunk = ThreadScratch(Slot::kRow, kChunk);
  if (chunk == nullptr) return false;
  Vec abs_max = Splat(stats->abs_max);
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t count = n - begin < kChunk ? n - begin : kChunk;
    LoadRow(dtype, data, begin, 1, count, chunk);
    const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
    for (int64_t i = count; i < padded; ++i) chunk[i] = 0.0f;  // counts as finite and below any threshold
    Wide sum = {}, squares = {};
    Int finite_count = {}, above = {};
    for (int64_t i = 0; i < padded; i += kLanes) {
      Vec x = Load(chunk + i);
      const Int finite = Finite(x);
      above += Abs(x) > Splat(threshold);
      x = finite ? x : Splat(0.0f);
      finite_count += finite;
      abs_max = Max(Abs(x), abs_max);
      Store(chunk + i, x);
    }
    for (int64_t i = 0; i < padded; i += kLanes) {
      const Wide low = LoadWide(chunk + i), high = LoadWide(chunk + i + kLanes / 2);
      sum += low + high;
      squares += low * low + high * high;
    }
    stats->sum += SumOf(sum);
    stats->sum_squares += SumOf(squares);
    stats->nonfinite += static_cast<uint64_t>(padded + SumOf(finite_count));
    stats->above_threshold += static_cast<uint64_t>(-SumOf(above));
  }
  stats->abs_max = MaxOf(abs_max);
  stats->count += static_cast<uint64_t>(n);
  return true;
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
