// Passive probe of one sampled (batch, query head): statistics of sampled rows, from inputs and, when given, O and dO.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_PROBE_H_
#define TRIMTAB_KERNELS_CPU_SIMD_PROBE_H_

#include "kernels/cpu/simd/forward.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

// Output error and delta residual of one row; `acc` is the unnormalised FP32 output.
inline void AddOutputStats(const ProbeJob& job, const Block& block, int64_t r, const float* acc, float sum, float* out,
                           float* grad, trimtab_head_stats* stats) {
  const auto& a = job.attention.a;
  const int64_t row = block.row(r), n = a.value_dim;
  LoadRow(a.dtype, job.out.data, RowOffset(job.out.stride, block.batch, block.head, row), job.out.stride[3], n, out);
  double error = 0.0, norm = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double exact = static_cast<double>(acc[i]) / sum;
    const double e = static_cast<double>(out[i]) - exact;
    error += e * e;
    norm += exact * exact;
  }
  if (norm - norm == 0.0 && error - error == 0.0) {
    stats->output_error_sum_squares += error;
    stats->output_sum_squares += norm;
  }
  if (job.grad_out.data == nullptr) return;
  LoadRow(a.dtype, job.grad_out.data, RowOffset(job.grad_out.stride, block.batch, block.head, row),
          job.grad_out.stride[3], n, grad);
  double residual = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    residual += static_cast<double>(grad[i]) * (static_cast<double>(out[i]) - static_cast<double>(acc[i]) / sum);
  }
  if (residual - residual != 0.0) return;
  ++stats->delta_rows;
  stats->delta_residual_sum += residual;
  stats->delta_residual_sum_squares += residual * residual;
}

inline bool Probe(const ProbeJob& job, int64_t unit, trimtab_head_stats* stats) {
  const AttentionJob& attention = job.attention;
  const auto& a = attention.a;
  const int64_t batch = job.batch_begin + unit / a.heads * job.batch_step;
  const int64_t head = unit % a.heads, kv_head = head / attention.group;
  const Rounding round(attention.mantissa_bits), unrounded(kFp32MantissaBits);
  const bool with_output = job.out.data != nullptr && a.v.data != nullptr;
  const int64_t keys = VisibleKeys(attention, job.row_begin + (job.rows - 1) * job.row_step);
  const int64_t stride = ScoreStride(keys);
  const int64_t rows = ForwardBlockRows(stride, job.rows);
  const int64_t out_stride = RoundUp(a.value_dim, kPanel);
  float* keys_by_dim = ThreadScratch(Slot::kKeysByDim, PanelFloats(a.head_dim, keys));
  float* values = ThreadScratch(Slot::kValues, with_output ? PanelFloats(keys, a.value_dim) : 0);
  float* q = ThreadScratch(Slot::kQueries, rows * a.head_dim);
  float* s = ThreadScratch(Slot::kScores, rows * stride);
  float* acc = ThreadScratch(Slot::kOutput, rows * out_stride);
  float* mask_row = ThreadScratch(Slot::kMaskRow, stride);
  float* out = ThreadScratch(Slot::kRow2, out_stride);
  float* grad = ThreadScratch(Slot::kRow3, out_stride);
  float* sums = ThreadScratch(Slot::kRowState, rows);
  if (!keys_by_dim || !values || !q || !s || !acc || !mask_row || !out || !grad || !sums) return false;
  bool finite_values = true;
  if (keys > 0) {
    if (!PackKeysByDim(attention, batch, kv_head, keys, keys_by_dim)) return false;
    if (with_output && !PackValues(attention, round, batch, kv_head, keys, values, &finite_values)) return false;
  }
  for (int64_t begin = 0; begin < job.rows; begin += rows) {
    const Block block{batch, head, job.row_begin + begin * job.row_step, job.row_step, Min64(rows, job.rows - begin)};
    LoadQueries(attention, block, q);
    ScoreBlock(attention, block, q, keys_by_dim, keys, 0, GroupKeys(attention, block, 0, block.rows), s, stride);
    for (int64_t r = 0; r < block.rows; ++r) {
      float* row = s + r * stride;
      const int64_t group = r / kMicroRows * kMicroRows;
      const int64_t padded = RoundUp(GroupKeys(attention, block, group, Min64(kMicroRows, block.rows - group)), kLanes);
      const int64_t visible =
          MaskRow(attention, block, r, 0, VisibleKeys(attention, block.row(r)), padded, row, mask_row, stats);
      const float max = RowMax(row, padded);
      AddRowStats(row, padded, visible, max, round, stats);
      float rounded = 0.0f;
      sums[r] = 0.0f;
      if (with_output && max > -__builtin_inff()) {
        ExpRow<false>(row, padded, max, 1.0f, unrounded, &rounded, &sums[r]);
      }
      if (visible < 2) sums[r] = 0.0f;
    }
    if (!with_output) continue;
    if (finite_values) {
      WeightedValues(attention, block, s, stride, values, keys, acc, out_stride);
    } else {
      WeightedValuesExactZero(attention, block, s, stride, values, keys, acc, out_stride);
    }
    for (int64_t r = 0; r < block.rows; ++r) {
      if (sums[r] != 0.0f) AddOutputStats(job, block, r, acc + r * out_stride, sums[r], out, grad, stats);
    }
  }
  return true;
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
