// Backward of one (batch, key/value head): all of its query heads, so that dK and dV have one writer.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_BACKWARD_H_
#define TRIMTAB_KERNELS_CPU_SIMD_BACKWARD_H_

#include "kernels/cpu/simd/values.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

inline constexpr int64_t kGradRows = 48;   // query rows of a block
inline constexpr int64_t kGradKeys = 256;  // keys of a tile

// Work space of one unit; panels of K and V hold `keys` keys.
struct GradSpace {
  int64_t keys, stride, dim_stride, value_stride;
  float *keys_by_dim, *key_panels, *values_by_dim;
  float *q, *q_panels, *grad_out, *grad_out_panels;
  float *p, *ds, *grad_q, *grad_k, *grad_v, *mask_row, *row;
  float *delta, *lse;  // of the block's rows
  float* trivial;      // 1 where a row has a single key, so that its weights are constant
  double* exact_delta;

  bool Take(const AttentionJob& job) {
    const auto& a = job.a;
    keys = a.queries == 0 ? 0 : VisibleKeys(job, a.queries - 1);
    stride = ScoreStride(kGradKeys);
    dim_stride = RoundUp(a.head_dim, kPanel);
    value_stride = RoundUp(a.value_dim, kPanel);
    keys_by_dim = ThreadScratch(Slot::kKeysByDim, PanelFloats(a.head_dim, keys));
    key_panels = ThreadScratch(Slot::kKeys, PanelFloats(keys, a.head_dim));
    values_by_dim = ThreadScratch(Slot::kValuesByDim, PanelFloats(a.value_dim, keys));
    q = ThreadScratch(Slot::kQueries, kGradRows * a.head_dim);
    q_panels = ThreadScratch(Slot::kQueryPanels, PanelFloats(kGradRows, a.head_dim));
    grad_out = ThreadScratch(Slot::kGradOut, kGradRows * a.value_dim);
    grad_out_panels = ThreadScratch(Slot::kGradOutPanels, PanelFloats(kGradRows, a.value_dim));
    p = ThreadScratch(Slot::kScores, kGradRows * stride);
    ds = ThreadScratch(Slot::kScoreGrads, kGradRows * stride);
    grad_q = ThreadScratch(Slot::kOutput, kGradRows * dim_stride);
    grad_k = ThreadScratch(Slot::kGradKeys, a.keys * dim_stride);
    grad_v = ThreadScratch(Slot::kGradValues, a.keys * value_stride);
    mask_row = ThreadScratch(Slot::kMaskRow, Max64(a.keys, kGradKeys) + kPanel);
    row = ThreadScratch(Slot::kRow2, Max64(dim_stride, value_stride));
    float* state = ThreadScratch(Slot::kRowState, 6 * kGradRows);
    if (!keys_by_dim || !key_panels || !values_by_dim || !q || !q_panels || !grad_out || !grad_out_panels || !p ||
        !ds || !grad_q || !grad_k || !grad_v || !mask_row || !row || !state) {
      return false;
    }
    exact_delta = reinterpret_cast<double*>(state);
    delta = state + 2 * kGradRows;
    lse = delta + kGradRows;
    trivial = lse + kGradRows;
    return true;
  }
};

inline bool PackForGrad(const AttentionJob& job, const Rounding& round, int64_t batch, int64_t kv_head, GradSpace& w) {
  const auto& a = job.a;
  std::memset(w.grad_k, 0, static_cast<size_t>(a.keys * w.dim_stride) * sizeof(float));
  std::memset(w.grad_v, 0, static_cast<size_t>(a.keys * w.value_stride) * sizeof(float));
  if (w.keys == 0) return true;
  if (!PackKeysByDim(job, batch, kv_head, w.keys, w.keys_by_dim)) return false;
  for (int64_t j = 0; j < w.keys; ++j) {
    LoadRow(a.dtype, a.k.data, RowOffset(a.k.stride, batch, kv_head, j), a.k.stride[3], a.head_dim, w.row);
    PackRow(w.row, j, w.keys, a.head_dim, w.key_panels);
    LoadRow(a.dtype, a.v.data, RowOffset(a.v.stride, batch, kv_head, j), a.v.stride[3], a.value_dim, w.row);
    RoundRow(round, w.row, a.value_dim);
    PackColumn(w.row, j, a.value_dim, w.keys, w.values_by_dim);
  }
  PadColumns(a.value_dim, w.keys, w.values_by_dim);
  return true;
}

// Keys whose weight in the row may differ from 0.
inline int64_t SoftmaxKeys(const AttentionJob& job, const Block& block, int64_t r, float* mask_row) {
  const auto& a = job.a;
  const int64_t n = VisibleKeys(job, block.row(r));
  if (a.mask_kind == TRIMTAB_MASK_NONE) return n;
  const int64_t offset = RowOffset(a.mask.stride, block.batch, block.head, block.row(r));
  int64_t count = 0;
  if (a.mask_kind == TRIMTAB_MASK_BOOL) {
    const uint8_t* keep = static_cast<const uint8_t*>(a.mask.data) + offset;
    for (int64_t j = 0; j < n; ++j) count += keep[j * a.mask.stride[3]] != 0;
    return count;
  }
  LoadRow(a.mask_dtype, a.mask.data, offset, a.mask.stride[3], n, mask_row);
  for (int64_t j = 0; j < n; ++j) count += mask_row[j] != -__builtin_inff();
  return count;
}

// Q, dO, delta and log-sum-exp of a block's rows.
inline void LoadGradRows(const GradJob& job, const Block& block, GradSpace& w) {
  const auto& a = job.attention.a;
  LoadQueries(job.attention, block, w.q);
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = block.row(r);
    PackRow(w.q + r * a.head_dim, r, block.rows, a.head_dim, w.q_panels);
    float* grad = w.grad_out + r * a.value_dim;
    LoadRow(a.dtype, job.grad_out.data, RowOffset(job.grad_out.stride, block.batch, block.head, row),
            job.grad_out.stride[3], a.value_dim, grad);
    PackRow(grad, r, block.rows, a.value_dim, w.grad_out_panels);
    LoadRow(a.dtype, a.out.data, RowOffset(a.out.stride, block.batch, block.head, row), a.out.stride[3], a.value_dim,
            w.row);
    float delta = 0.0f;
    for (int64_t i = 0; i < a.value_dim; ++i) delta += grad[i] * w.row[i];
    w.delta[r] = delta;
    w.lse[r] = static_cast<const float*>(a.lse.data)[RowOffset(a.lse.stride, block.batch, block.head, row)];
    w.trivial[r] = SoftmaxKeys(job.attention, block, r, w.mask_row) == 1 ? 1.0f : 0.0f;
    w.exact_delta[r] = 0.0;
  }
}

// Scores and dP of one row of a tile become P and dS. Masked entries become 0 whatever dP is there.
inline void GradRow(float* p, float* ds, int64_t n, float lse, float delta, bool trivial, double* exact_delta) {
  const bool empty = lse - lse != 0.0f && lse == lse;
  Vec sum = Splat(0.0f);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec s = Load(p + j);
    const Int masked = s == Splat(-__builtin_inff());
    Vec weight = Exp(s - lse);
    weight = masked ? Splat(0.0f) : weight;
    if (empty) weight = Splat(0.0f);
    const Vec grad_p = Load(ds + j);
    Vec grad_s = weight * (grad_p - delta);
    grad_s = masked ? Splat(0.0f) : grad_s;
    if (empty || trivial) grad_s = Splat(0.0f);
    sum += masked ? Splat(0.0f) : weight * grad_p;
    Store(p + j, weight);
    Store(ds + j, grad_s);
  }
  *exact_delta += SumOf(sum);
}

// grad[key, :] += sum over the block's rows of weights[row, key] * panels[row, :], for the keys of one tile.
inline void AddKeyGrads(const AttentionJob& job, const Block& block, const float* weights, int64_t stride,
                        int64_t key_begin, int64_t key_end, const float* panels, int64_t columns, float* grad,
                        int64_t grad_stride) {
  for (int64_t c = 0; c < columns; c += kPanel) {
    const int width = PanelWidth(c, columns);
    for (int64_t j = key_begin; j < key_end; j += kMicroRows) {
      const int64_t n = Min64(kMicroRows, key_end - j);
      int64_t first = 0;
      if (job.a.causal != 0) first = Max64(0, j - job.causal_offset - block.row_begin);
      if (first >= block.rows) continue;
      MicroTile(n, width, Rows{weights + first * stride + (j - key_begin), 1, stride},
                panels + c * block.rows + first * width, block.rows - first, grad + j * grad_stride + c, grad_stride,
                1.0f, true);
    }
  }
}

inline void GradTile(const GradJob& job, const Block& block, int64_t key_begin, int64_t key_end, GradSpace& w) {
  const AttentionJob& attention = job.attention;
  const auto& a = attention.a;
  ScoreBlock(attention, block, w.q, w.keys_by_dim, w.keys, key_begin, key_end, w.p, w.stride);
  for (int64_t j = key_begin; j < key_end; j += kPanel) {
    const int width = PanelWidth(j, w.keys);
    for (int64_t r = 0; r < block.rows; r += kMicroRows) {
      const int64_t n = Min64(kMicroRows, block.rows - r);
      if (j >= GroupKeys(attention, block, r, n)) continue;
      MicroTile(n, width, Rows{w.grad_out + r * a.value_dim, a.value_dim, 1}, w.values_by_dim + j * a.value_dim,
                a.value_dim, w.ds + r * w.stride + (j - key_begin), w.stride, 1.0f, false);
    }
  }
  const int64_t padded = RoundUp(key_end - key_begin, kLanes);
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t seen = Max64(0, Min64(VisibleKeys(attention, block.row(r)), key_end) - key_begin);
    float* p = w.p + r * w.stride;
    MaskRow(attention, block, r, key_begin, seen, padded, p, w.mask_row, nullptr);
    GradRow(p, w.ds + r * w.stride, padded, w.lse[r], w.delta[r], w.trivial[r] != 0.0f, &w.exact_delta[r]);
  }
  for (int64_t c = 0; c < a.head_dim; c += kPanel) {
    const int width = PanelWidth(c, a.head_dim);
    for (int64_t r = 0; r < block.rows; r += kMicroRows) {
      const int64_t n = Min64(kMicroRows, block.rows - r);
      const int64_t end = Min64(key_end, GroupKeys(attention, block, r, n));
      if (end <= key_begin) continue;
      MicroTile(n, width, Rows{w.ds + r * w.stride, w.stride, 1}, w.key_panels + c * w.keys + key_begin * width,
                end - key_begin, w.grad_q + r * w.dim_stride + c, w.dim_stride, 1.0f, true);
    }
  }
  AddKeyGrads(attention, block, w.p, w.stride, key_begin, key_end, w.grad_out_panels, a.value_dim, w.grad_v,
              w.value_stride);
  AddKeyGrads(attention, block, w.ds, w.stride, key_begin, key_end, w.q_panels, a.head_dim, w.grad_k, w.dim_stride);
}

inline void AddDeltaStats(const AttentionJob& job, const Block& block, const GradSpace& w, float* mask_row,
                          trimtab_head_stats* stats) {
  for (int64_t r = 0; r < block.rows; ++r) {
    if (SoftmaxKeys(job, block, r, mask_row) < 2) continue;
    const double residual = static_cast<double>(w.delta[r]) - w.exact_delta[r];
    if (residual - residual != 0.0) continue;
    ++stats->delta_rows;
    stats->delta_residual_sum += residual;
    stats->delta_residual_sum_squares += residual * residual;
  }
}

// Row `from`, times `factor`, as a row of a gradient.
inline void WriteGradRow(trimtab_dtype dtype, float* from, float factor, int64_t n, const trimtab_mutable_tensor& to,
                         int64_t batch, int64_t head, int64_t row) {
  if (to.data == nullptr) return;
  for (int64_t i = 0; i < n; ++i) from[i] *= factor;
  StoreRow(dtype, from, n, to.data, RowOffset(to.stride, batch, head, row), to.stride[3]);
}

inline bool Backward(const GradJob& job, int64_t unit, trimtab_head_stats* stats) {
  const AttentionJob& attention = job.attention;
  const auto& a = attention.a;
  const int64_t batch = unit / a.kv_heads, kv_head = unit % a.kv_heads;
  const Rounding round(attention.mantissa_bits);
  GradSpace w;
  if (!w.Take(attention) || !PackForGrad(attention, round, batch, kv_head, w)) return false;
  for (int64_t g = 0; g < attention.group; ++g) {
    const int64_t head = kv_head * attention.group + g;
    for (int64_t begin = 0; begin < a.queries; begin += kGradRows) {
      const Block block{batch, head, begin, 1, Min64(kGradRows, a.queries - begin)};
      LoadGradRows(job, block, w);
      std::memset(w.grad_q, 0, static_cast<size_t>(block.rows * w.dim_stride) * sizeof(float));
      const int64_t seen = GroupKeys(attention, block, 0, block.rows);
      for (int64_t j = 0; j < seen; j += kGradKeys) GradTile(job, block, j, Min64(j + kGradKeys, seen), w);
      if (stats != nullptr) AddDeltaStats(attention, block, w, w.mask_row, stats + g);
      for (int64_t r = 0; r < block.rows; ++r) {
        WriteGradRow(a.dtype, w.grad_q + r * w.dim_stride, a.scale, a.head_dim, job.grad_q, batch, head, block.row(r));
      }
    }
  }
  for (int64_t j = 0; j < a.keys; ++j) {
    WriteGradRow(a.dtype, w.grad_k + j * w.dim_stride, a.scale, a.head_dim, job.grad_k, batch, kv_head, j);
    WriteGradRow(a.dtype, w.grad_v + j * w.value_stride, 1.0f, a.value_dim, job.grad_v, batch, kv_head, j);
  }
  return true;
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
