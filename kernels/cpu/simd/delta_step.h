// The delta-preserving step: moves entries of a stored output row to neighbouring stored values, so that
// rowsum(dO * O) keeps what rounding O had taken from it.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_DELTA_STEP_H_
#define TRIMTAB_KERNELS_CPU_SIMD_DELTA_STEP_H_

#include "kernels/cpu/simd/values.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

struct DeltaFormat {
  Rounding round;
  trimtab_dtype dtype;
  float relative_ulp;  // of the coarser of storage and dtype
  float smallest_ulp;  // spacing of the dtype's subnormals; 0 where the exponent range is FP32's

  // A rounding to no fewer bits than the dtype's is left to the dtype: FP16's subnormals would be rounded twice.
  DeltaFormat(int mantissa_bits, trimtab_dtype type)
      : round(type == TRIMTAB_F16 && mantissa_bits >= 10 ? kFp32MantissaBits : mantissa_bits),
        dtype(type),
        smallest_ulp(0.0f) {
    int bits = mantissa_bits;
    if (dtype == TRIMTAB_BF16 && bits > 7) bits = 7;
    if (dtype == TRIMTAB_F16 && bits > 10) bits = 10;
    if (dtype == TRIMTAB_F16) smallest_ulp = 0x1p-24f;
    relative_ulp = FromBits(static_cast<uint32_t>(127 - bits) << 23);
  }

  TRIMTAB_INLINE float Stored(float x) const { return AsStored(dtype, round(x)); }

  // Distance of stored neighbours in x's binade; 0 where x is 0, an FP32 subnormal or not finite.
  TRIMTAB_INLINE Vec Ulp(Vec x) const {
    const Vec power = (Vec)((Bits)x & 0x7f800000u);
    const Vec ulp = Max(power * relative_ulp, Splat(smallest_ulp));
    return power > Splat(0.0f) && power < Splat(__builtin_inff()) ? ulp : Splat(0.0f);
  }
};

// The largest step that is at most `bound`, and its first index; 0 when there is none.
struct Candidate {
  float step;
  int64_t index;
};

TRIMTAB_INLINE Candidate LargestStep(const float* steps, int64_t padded, float bound) {
  Vec best = Splat(0.0f);
  Int where = {};
  for (int64_t j = 0; j < padded; j += kLanes) {
    const Vec step = Load(steps + j);
    const Int better = (step <= Splat(bound)) & (step > best);
    best = better ? step : best;
    where = better ? Int{} + static_cast<int32_t>(j) : where;
  }
  Candidate largest{0.0f, 0};
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t index = where[lane] + lane;
    if (best[lane] > largest.step || (best[lane] == largest.step && index < largest.index)) {
      largest = {best[lane], index};
    }
  }
  return largest;
}

// Visits the largest step |dO| * ulp(O) that is at most 4/3 of what is left, so that each move leaves a third or less;
// then, when no such step is left, the largest of at most twice what is left, which is the most that can still help.
// The plain order of decreasing steps ends no nearer and moves five times as many entries. Steps below 2^-126 are none.
// What is left is FP32, its first value the sum in FP64 of FP32 products, which are exact for 16-bit dO and low halves:
// so it hardly depends on the order of the sum, and a GPU without time for FP64 moves the same entries. All arrays hold
// a row, then zeros up to the vector length; `steps` and `ulps` are work space.
inline void DeltaStepRow(const DeltaFormat& format, float* out, const float* low, const float* grad, int64_t padded,
                         int64_t max_entries, float* steps, float* ulps) {
  for (int64_t j = 0; j < padded; j += kLanes) Store(steps + j, Load(grad + j) * Load(low + j));
  Wide sum = {};
  for (int64_t j = 0; j < padded; j += kLanes / 2) sum += LoadWide(steps + j);
  auto residual = static_cast<float>(SumOf(sum));
  if (residual - residual != 0.0f || residual == 0.0f) return;
  for (int64_t j = 0; j < padded; j += kLanes) {
    const Vec ulp = format.Ulp(Load(out + j));
    const Vec step = Abs(Load(grad + j)) * ulp;
    Store(ulps + j, ulp);
    Store(steps + j, Finite(step) & (step >= Splat(0x1p-126f)) ? step : Splat(0.0f));
  }
  float bound = kDeltaStepFirstBound;
  for (int64_t moved = 0; moved < max_entries;) {
    const Candidate next = LargestStep(steps, padded, bound * std::fabs(residual));
    if (next.step == 0.0f) {
      if (bound == kDeltaStepLastBound) return;
      bound = kDeltaStepLastBound;
      continue;
    }
    const int64_t i = next.index;
    steps[i] = 0.0f;
    const float reach = kDeltaStepMaxUlps * ulps[i];
    float wanted = residual / grad[i];
    wanted = wanted > reach ? reach : (wanted < -reach ? -reach : wanted);
    const float target = format.Stored(out[i] + wanted);
    const float change = target - out[i];
    if (change == 0.0f || change - change != 0.0f) continue;
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
  float* ulps = ThreadScratch(Slot::kRowState, padded);
  if (!out || !low || !grad || !steps || !ulps) return false;
  for (int64_t i = d.columns; i < padded; ++i) out[i] = low[i] = grad[i] = 0.0f;
  const DeltaFormat format(job.mantissa_bits, d.dtype);
  const int64_t max_entries = d.max_entries > 0 ? d.max_entries : d.columns;
  for (int64_t index = begin; index < end; ++index) {
    const int64_t row = index % d.rows, head = index / d.rows % d.heads, batch = index / d.rows / d.heads;
    LoadRow(d.dtype, d.out.data, RowOffset(d.out.stride, batch, head, row), d.out.stride[3], d.columns, out);
    LoadRow(TRIMTAB_F32, d.out_low.data, RowOffset(d.out_low.stride, batch, head, row), d.out_low.stride[3], d.columns,
            low);
    LoadRow(d.dtype, d.grad_out.data, RowOffset(d.grad_out.stride, batch, head, row), d.grad_out.stride[3], d.columns,
            grad);
    DeltaStepRow(format, out, low, grad, padded, max_entries, steps, ulps);
    StoreRow(d.dtype, out, d.columns, d.result.data, RowOffset(d.result.stride, batch, head, row), d.result.stride[3]);
  }
  return true;
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
