// The delta-preserving step: moves entries of a stored output row to neighbouring stored values, so that
// rowsum(dO * O) keeps what rounding O had taken from it.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_DELTA_STEP_H_
#define TRIMTAB_KERNELS_CPU_SIMD_DELTA_STEP_H_

#include "kernels/cpu/simd/values.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {

struct DeltaFormat {
  Rounding round;
  int mantissa_bits;
  trimtab_dtype dtype;

  TRIMTAB_INLINE float Stored(float x) const { return AsStored(dtype, round(x)); }

  // Distance of stored neighbours in x's binade; 0 where x is 0, subnormal or not finite.
  TRIMTAB_INLINE float Ulp(float x) const {
    const uint32_t exponent = ToBits(x) & 0x7f800000u;
    if (exponent == 0x7f800000u) return 0.0f;
    int bits = mantissa_bits;
    if (dtype == TRIMTAB_BF16 && bits > 7) bits = 7;
    if (dtype == TRIMTAB_F16 && bits > 10) bits = 10;
    const float ulp = FromBits(exponent) * FromBits(static_cast<uint32_t>(127 - bits) << 23);
    return dtype == TRIMTAB_F16 && ulp < 0x1p-24f && exponent != 0 ? 0x1p-24f : ulp;
  }
};

// Entries are visited by decreasing |dO| * ulp(O). One whose step is more than twice what is left cannot help, so the
// next to visit is always the largest step of at most twice the residual; no sort is needed. `steps` is work space of
// n rounded up to the vector length.
inline void DeltaStepRow(const DeltaFormat& format, float* out, const float* low, const float* grad, int64_t n,
                         int64_t max_entries, float* steps) {
  double residual = 0.0;
  for (int64_t i = 0; i < n; ++i) residual += static_cast<double>(grad[i]) * low[i];
  if (residual - residual != 0.0 || residual == 0.0) return;
  const int64_t padded = RoundUp(n, kLanes);
  for (int64_t i = 0; i < n; ++i) {
    const float step = std::fabs(grad[i]) * format.Ulp(out[i]);
    steps[i] = step - step == 0.0f ? step : 0.0f;
  }
  for (int64_t i = n; i < padded; ++i) steps[i] = 0.0f;
  for (int64_t moved = 0; moved < max_entries;) {
    const float bound = static_cast<float>(2.0 * std::fabs(residual));
    Vec best = Splat(0.0f);
    for (int64_t j = 0; j < padded; j += kLanes) {
      const Vec step = Load(steps + j);
      best = Max(step <= Splat(bound) ? step : Splat(0.0f), best);
    }
    const float largest = MaxOf(best);
    if (largest == 0.0f) return;
    int64_t i = 0;
    while (steps[i] != largest) ++i;
    steps[i] = 0.0f;
    const float reach = kDeltaStepMaxUlps * format.Ulp(out[i]);
    double wanted = residual / grad[i];
    wanted = wanted > reach ? reach : (wanted < -reach ? -reach : wanted);
    const float target = format.Stored(static_cast<float>(out[i] + wanted));
    const double change = static_cast<double>(target) - out[i];
    if (change == 0.0 || change - change != 0.0) continue;
    out[i] = target;
    residual -= grad[i] * change;
    ++moved;
  }
}

// Rows [begin, end) of the flattened (batch, head, row).
inline bool DeltaStep(const DeltaJob& job, int64_t begin, int64_t end) {
  const auto& d = job.d;
  const int64_t padded = RoundUp(d.columns, kLanes);
  float* out = ThreadScratch(Slot::kRow, padded);
  float* low = ThreadScratch(Slot::kRow2, padded);
  float* grad = ThreadScratch(Slot::kRow3, padded);
  float* steps = ThreadScratch(Slot::kMaskRow, padded);
  if (!out || !low || !grad || !steps) return false;
  const DeltaFormat format{Rounding(job.mantissa_bits), job.mantissa_bits, d.dtype};
  const int64_t max_entries = d.max_entries > 0 ? d.max_entries : d.columns;
  for (int64_t index = begin; index < end; ++index) {
    const int64_t row = index % d.rows, head = index / d.rows % d.heads, batch = index / d.rows / d.heads;
    LoadRow(d.dtype, d.out.data, RowOffset(d.out.stride, batch, head, row), d.out.stride[3], d.columns, out);
    LoadRow(TRIMTAB_F32, d.out_low.data, RowOffset(d.out_low.stride, batch, head, row), d.out_low.stride[3],
            d.columns, low);
    LoadRow(d.dtype, d.grad_out.data, RowOffset(d.grad_out.stride, batch, head, row), d.grad_out.stride[3],
            d.columns, grad);
    DeltaStepRow(format, out, low, grad, d.columns, max_entries, steps);
    StoreRow(d.dtype, out, d.columns, d.result.data, RowOffset(d.result.stride, batch, head, row),
             d.result.stride[3]);
  }
  return true;
}

}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
