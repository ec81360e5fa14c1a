// Forward of one (batch, query head).
#ifndef TRIMTAB_KERNELS_CPU_SIMD_FORWARD_H_
#define TRIMTAB_KERNELS_CPU_SIMD_FORWARD_H_

#include "kernels/cpu/simd/row_stats.h"
#include "kernels/cpu/simd/values.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

// Rows of one block: its scores stay in the second-level cache.
inline int64_t ForwardBlockRows(int64_t stride, int64_t rows) {
  constexpr int64_t kScoreFloats = 48 * 1024;
  const int64_t fit = Max64(12, Min64(96, kScoreFloats / stride)) / 12 * 12;
  return Min64(fit, rows);
}

// The output row `acc / sums.normaliser`, stored with its low half.
inline void WriteOutputRow(const AttentionJob& job, const Rounding& round, const Block& block, int64_t r, float* acc,
                           float normaliser, float* stored, trimtab_head_stats* stats) {
  const auto& a = job.a;
  const int64_t n = a.value_dim;
  for (int64_t i = 0; i < n; ++i) acc[i] /= normaliser;
  for (int64_t i = 0; i < n; ++i) stored[i] = acc[i];
  RoundRow(round, stored, n);
  if (a.dtype != TRIMTAB_F32) {
    for (int64_t i = 0; i < n; ++i) stored[i] = AsStored(a.dtype, stored[i]);
  }
  const int64_t row = block.row(r);
  StoreRow(a.dtype, stored, n, a.out.data, RowOffset(a.out.stride, block.batch, block.head, row), a.out.stride[3]);
  if (stats != nullptr) {
    double error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const double e = static_cast<double>(stored[i]) - acc[i];
      error += e * e;
      norm += static_cast<double>(acc[i]) * acc[i];
    }
    if (norm - norm == 0.0 && error - error == 0.0) {
      stats->output_error_sum_squares += error;
      stats->output_sum_squares += norm;
    }
  }
  if (a.out_low.data != nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      const float low = acc[i] - stored[i];
      stored[i] = low == low ? low : 0.0f;
    }
    StoreRow(TRIMTAB_F32, stored, n, a.out_low.data, RowOffset(a.out_low.stride, block.batch, block.head, row),
             a.out_low.stride[3]);
  }
}

inline void ForwardBlock(const AttentionJob& job, const Rounding& round, const Block& block, const float* q,
                         const float* keys_by_dim, const float* values, bool finite_values, int64_t keys, float* s,
                         int64_t stride, float* out, int64_t out_stride, float* mask_row, float* stored,
                         float* normaliser, trimtab_head_stats* stats) {
  const auto& a = job.a;
  const int64_t seen = GroupKeys(job, block, 0, block.rows);
  ScoreBlock(job, block, q, keys_by_dim, keys, 0, seen, s, stride);
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = s + r * stride;
    const int64_t group = r / kMicroRows * kMicroRows;
    const int64_t group_keys = GroupKeys(job, block, group, Min64(kMicroRows, block.rows - group));
    const int64_t padded = RoundUp(group_keys, kLanes);
    const int64_t visible = MaskRow(job, block, r, 0, VisibleKeys(job, block.row(r)), padded, row, mask_row, stats);
    const float max = RowMax(row, padded);
    if (stats != nullptr) AddRowStats(row, padded, visible, max, round, stats);
    float lse = a.empty_lse;
    normaliser[r] = 1.0f;
    if (max > -__builtin_inff()) {
      const RowSums sums = SoftmaxRow(job, round, row, padded, max);
      normaliser[r] = sums.normaliser;
      lse = sums.lse;
    } else {
      // No key, or only scores of -Inf and NaN: NaN scores make the row NaN, else the row is empty.
      bool nan = false;
      for (int64_t j = 0; j < padded; ++j) {
        nan |= row[j] != row[j];
        row[j] = 0.0f;
      }
      if (nan) lse = normaliser[r] = __builtin_nanf("");
    }
    if (a.lse.data != nullptr) {
      static_cast<float*>(a.lse.data)[RowOffset(a.lse.stride, block.batch, block.head, block.row(r))] = lse;
    }
  }
  if (a.out.data == nullptr) return;
  if (finite_values) {
    WeightedValues(job, block, s, stride, values, keys, out, out_stride);
  } else {
    WeightedValuesExactZero(job, block, s, stride, values, keys, out, out_stride);
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    WriteOutputRow(job, round, block, r, out + r * out_stride, normaliser[r], stored, stats);
  }
}

inline bool Forward(const AttentionJob& job, int64_t unit, trimtab_head_stats* stats) {
  const auto& a = job.a;
  const int64_t batch = unit / a.heads, head = unit % a.heads, kv_head = head / job.group;
  const Rounding round(job.mantissa_bits);
  const int64_t keys = VisibleKeys(job, a.queries - 1);
  const int64_t stride = ScoreStride(keys);
  const int64_t rows = ForwardBlockRows(stride, a.queries);
  const int64_t out_stride = RoundUp(a.value_dim, kPanel);
  float* keys_by_dim = ThreadScratch(Slot::kKeysByDim, PanelFloats(a.head_dim, keys));
  float* values = ThreadScratch(Slot::kValues, PanelFloats(keys, a.value_dim));
  float* q = ThreadScratch(Slot::kQueries, rows * a.head_dim);
  float* s = ThreadScratch(Slot::kScores, rows * stride);
  float* out = ThreadScratch(Slot::kOutput, rows * out_stride);
  float* mask_row = ThreadScratch(Slot::kMaskRow, stride);
  float* stored = ThreadScratch(Slot::kRow2, out_stride);
  float* normaliser = ThreadScratch(Slot::kRowState, rows);
  if (!keys_by_dim || !values || !q || !s || !out || !mask_row || !stored || !normaliser) return false;
  bool finite_values = true;
  if (keys > 0) {
    if (!PackKeysByDim(job, batch, kv_head, keys, keys_by_dim)) return false;
    if (a.out.data != nullptr && !PackValues(job, round, batch, kv_head, keys, values, &finite_values)) return false;
  }
  for (int64_t begin = 0; begin < a.queries; begin += rows) {
    const Block block{batch, head, begin, 1, Min64(rows, a.queries - begin)};
    LoadQueries(job, block, q);
    ForwardBlock(job, round, block, q, keys_by_dim, values, finite_values, keys, s, stride, out, out_stride, mask_row,
                 stored, normaliser, stats);
  }
  return true;
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
