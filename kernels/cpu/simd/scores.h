// One block of query rows of one head against the visible keys: scaled scores, then masks, then what statistics want of
// the raw scores.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_SCORES_H_
#define TRIMTAB_KERNELS_CPU_SIMD_SCORES_H_

#include "kernels/cpu/simd/gemm.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

// Rows row_begin, row_begin + row_step, … of query head `head` of batch `batch`.
struct Block {
  int64_t batch, head, row_begin, row_step, rows;
  int64_t row(int64_t r) const { return row_begin + r * row_step; }
};

// Keys that any of the block's rows [r, r + n) sees; rows see more keys further down.
inline int64_t GroupKeys(const AttentionJob& job, const Block& block, int64_t r, int64_t n) {
  return VisibleKeys(job, block.row(r + n - 1));
}

// Row stride of a score buffer; the odd number of cache lines keeps columns of it out of one cache set.
inline int64_t ScoreStride(int64_t keys) {
  const int64_t lines = RoundUp(keys, kPanel) / kPanel;
  return (lines | 1) * kPanel;
}

// K of one key/value head, transposed, in panels of keys.
inline bool PackKeysByDim(const AttentionJob& job, int64_t batch, int64_t kv_head, int64_t keys, float* panels) {
  const auto& a = job.a;
  float* row = ThreadScratch(Slot::kRow, a.head_dim);
  if (row == nullptr) return false;
  for (int64_t j = 0; j < keys; ++j) {
    LoadRow(a.dtype, a.k.data, RowOffset(a.k.stride, batch, kv_head, j), a.k.stride[3], a.head_dim, row);
    PackColumn(row, j, a.head_dim, keys, panels);
  }
  PadColumns(a.head_dim, keys, panels);
  return true;
}

inline void LoadQueries(const AttentionJob& job, const Block& block, float* q) {
  const auto& a = job.a;
  for (int64_t r = 0; r < block.rows; ++r) {
    LoadRow(a.dtype, a.q.data, RowOffset(a.q.stride, block.batch, block.head, block.row(r)), a.q.stride[3], a.head_dim,
            q + r * a.head_dim);
  }
}

// s[r, j] = scale * q_r . k_j for the keys [key_begin, key_end) that the row's group sees, in whole panels; key_begin
// is a multiple of the panel, and column j lies at j - key_begin.
inline void ScoreBlock(const AttentionJob& job, const Block& block, const float* q, const float* keys_by_dim,
                       int64_t packed_keys, int64_t key_begin, int64_t key_end, float* s, int64_t stride) {
  const int64_t dim = job.a.head_dim;
  for (int64_t j = key_begin; j < key_end; j += kPanel) {
    const int width = PanelWidth(j, packed_keys);
    for (int64_t r = 0; r < block.rows; r += kMicroRows) {
      const int64_t n = Min64(kMicroRows, block.rows - r);
      if (j >= GroupKeys(job, block, r, n)) continue;
      MicroTile(n, width, Rows{q + r * dim, dim, 1}, keys_by_dim + j * dim, dim, s + r * stride + (j - key_begin),
                stride, job.a.scale, false);
    }
  }
}

// Whether statistics take column j as visible; `mask_row` holds an additive mask's row, `offset` that of a boolean one.
TRIMTAB_INLINE bool SeenByMask(const trimtab_attention& a, const float* mask_row, int64_t offset, int64_t j) {
  if (a.mask_kind == TRIMTAB_MASK_ADDITIVE) return !(mask_row[j] <= kMaskedBias);
  if (a.mask_kind == TRIMTAB_MASK_NONE) return true;
  return static_cast<const uint8_t*>(a.mask.data)[offset + j * a.mask.stride[3]] != 0;
}

// Writes -Inf over masked scores of one row, adds an additive mask, and fills [visible_end, padded_end) with -Inf.
// Column j of `s` is key key_begin + j; visible_end counts from there. `raw` (may be NULL) takes the row's maximum and
// its non-finite count before the mask is added. Returns how many entries are visible.
inline int64_t MaskRow(const AttentionJob& job, const Block& block, int64_t r, int64_t key_begin, int64_t visible_end,
                       int64_t padded_end, float* s, float* mask_row, trimtab_head_stats* raw) {
  const auto& a = job.a;
  const float kMasked = -__builtin_inff();
  for (int64_t j = visible_end; j < padded_end; ++j) s[j] = kMasked;
  int64_t visible = visible_end;
  const int64_t offset =
      a.mask_kind == TRIMTAB_MASK_NONE
          ? 0
          : RowOffset(a.mask.stride, block.batch, block.head, block.row(r)) + key_begin * a.mask.stride[3];
  if (a.mask_kind == TRIMTAB_MASK_BOOL) {
    const uint8_t* keep = static_cast<const uint8_t*>(a.mask.data) + offset;
    const int64_t step = a.mask.stride[3];
    visible = 0;
    for (int64_t j = 0; j < visible_end; ++j) {
      const bool seen = keep[j * step] != 0;
      s[j] = seen ? s[j] : kMasked;
      visible += seen;
    }
  }
  if (a.mask_kind == TRIMTAB_MASK_ADDITIVE) {
    LoadRow(a.mask_dtype, a.mask.data, offset, a.mask.stride[3], visible_end, mask_row);
    visible = 0;
    for (int64_t j = 0; j < visible_end; ++j) visible += SeenByMask(a, mask_row, offset, j);
  }
  if (raw != nullptr) {
    Vec max = Splat(raw->max_logit);
    Int finite = {};
    int64_t j = 0;
    if (a.mask_kind == TRIMTAB_MASK_NONE) {
      for (; j + kLanes <= visible_end; j += kLanes) {
        max = Max(Load(s + j), max);
        finite += Finite(Load(s + j));
      }
    }
    float row_max = MaxOf(max);
    int64_t nonfinite = j + SumOf(finite);
    for (; j < visible_end; ++j) {
      if (!SeenByMask(a, mask_row, offset, j)) continue;
      row_max = s[j] > row_max ? s[j] : row_max;
      nonfinite += !(s[j] - s[j] == 0.0f);
    }
    raw->max_logit = row_max;
    raw->nonfinite_scores += static_cast<uint64_t>(nonfinite);
  }
  if (a.mask_kind == TRIMTAB_MASK_ADDITIVE) {
    for (int64_t j = 0; j < visible_end; ++j) {
      // A masked key stays masked whatever its score was, NaN and Inf included.
      s[j] = mask_row[j] == kMasked ? kMasked : s[j] + mask_row[j];
    }
  }
  return visible;
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
