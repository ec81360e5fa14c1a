// V of one key/value head, and the product of weights with it.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_VALUES_H_
#define TRIMTAB_KERNELS_CPU_SIMD_VALUES_H_

#include "kernels/cpu/simd/scores.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

// Inner indices of one pass over a panel: 16 columns x 256 keys fill half of a small first-level cache.
inline constexpr int64_t kInnerChunk = 256;

inline void RoundRow(const Rounding& round, float* row, int64_t n) {
  if (round.none()) return;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(row + i, round(Load(row + i)));
  for (; i < n; ++i) row[i] = round(row[i]);
}

inline bool AllFinite(const float* row, int64_t n) {
  Int finite = Splat(0.0f) == Splat(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) finite &= Finite(Load(row + i));
  bool all = SumOf(finite) == -kLanes;
  for (; i < n; ++i) all = all && row[i] - row[i] == 0.0f;
  return all;
}

// V rounded to storage, in panels of columns. *finite says whether all of it is.
inline bool PackValues(const AttentionJob& job, const Rounding& round, int64_t batch, int64_t kv_head, int64_t keys,
                       float* panels, bool* finite) {
  const auto& a = job.a;
  float* row = ThreadScratch(Slot::kRow, a.value_dim);
  if (row == nullptr) return false;
  *finite = true;
  for (int64_t j = 0; j < keys; ++j) {
    LoadRow(a.dtype, a.v.data, RowOffset(a.v.stride, batch, kv_head, j), a.v.stride[3], a.value_dim, row);
    RoundRow(round, row, a.value_dim);
    *finite = *finite && AllFinite(row, a.value_dim);
    PackRow(row, j, keys, a.value_dim, panels);
  }
  return true;
}

// out[r, :] = sum over keys of p[r, key] * V[key, :]. Row groups stop at their last visible key.
inline void WeightedValues(const AttentionJob& job, const Block& block, const float* p, int64_t stride,
                           const float* values, int64_t packed_keys, float* out, int64_t out_stride) {
  const int64_t keys = GroupKeys(job, block, 0, block.rows);
  std::memset(out, 0, static_cast<size_t>(block.rows * out_stride) * sizeof(float));
  for (int64_t begin = 0; begin < keys; begin += kInnerChunk) {
    for (int64_t c = 0; c < job.a.value_dim; c += kPanel) {
      const int width = PanelWidth(c, job.a.value_dim);
      for (int64_t r = 0; r < block.rows; r += kMicroRows) {
        const int64_t n = Min64(kMicroRows, block.rows - r);
        const int64_t end = Min64(begin + kInnerChunk, GroupKeys(job, block, r, n));
        if (begin >= end) continue;
        MicroTile(n, width, Rows{p + r * stride + begin, stride, 1}, values + c * packed_keys + begin * width,
                  end - begin, out + r * out_stride + c, out_stride, 1.0f, true);
      }
    }
  }
}

// The same for V with NaN or Inf in it: a key of weight 0 adds nothing, so that a value reaches only rows that see it.
inline void WeightedValuesExactZero(const AttentionJob& job, const Block& block, const float* p, int64_t stride,
                                    const float* values, int64_t packed_keys, float* out, int64_t out_stride) {
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t keys = VisibleKeys(job, block.row(r));
    for (int64_t c = 0; c < job.a.value_dim; c += kPanel) {
      const int width = PanelWidth(c, job.a.value_dim);
      float* to = out + r * out_stride + c;
      for (int i = 0; i < width; ++i) to[i] = 0.0f;
      for (int64_t j = 0; j < keys; ++j) {
        const float weight = p[r * stride + j];
        if (weight == 0.0f) continue;
        for (int i = 0; i < width; ++i) to[i] += weight * values[c * packed_keys + j * width + i];
      }
    }
  }
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
