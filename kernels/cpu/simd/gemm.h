// The one matrix product of this library: C = A B, with B packed in panels of 16 columns (the last may hold 8) so that
// a panel row is one or two vectors. Every element of C is one chain of multiply-adds in the order of the inner index,
// so its bits depend neither on how rows are grouped nor on how the inner index is cut into pieces.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_GEMM_H_
#define TRIMTAB_KERNELS_CPU_SIMD_GEMM_H_

#include "kernels/cpu/simd/convert.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

inline constexpr int kPanel = 2 * kLanes;
inline constexpr int kMicroRows = TRIMTAB_MICRO_ROWS;

TRIMTAB_INLINE int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
TRIMTAB_INLINE int64_t Min64(int64_t a, int64_t b) { return a < b ? a : b; }
TRIMTAB_INLINE int64_t Max64(int64_t a, int64_t b) { return a > b ? a : b; }

// Columns of the panel that starts at `column` of a matrix with `columns` columns: 16, or 8 at the end.
TRIMTAB_INLINE int PanelWidth(int64_t column, int64_t columns) { return columns - column > kLanes ? kPanel : kLanes; }

struct Rows {
  const float* data;
  int64_t row_stride, inner_stride;
};

template <int kRows, int kVecs>
inline __attribute__((noinline)) void Micro(Rows a, const float* b, int64_t inner, float* c, int64_t c_stride,
                                            float alpha, bool accumulate) {
  Vec sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sum[r][v] = accumulate ? Load(c + r * c_stride + v * kLanes) : Splat(0.0f);
  }
  const float* a_row[kRows];
  for (int r = 0; r < kRows; ++r) a_row[r] = a.data + r * a.row_stride;
  const int64_t step = a.inner_stride;
  for (int64_t k = 0; k < inner; ++k) {
    Vec bv[kVecs];
    for (int v = 0; v < kVecs; ++v) bv[v] = Load(b + v * kLanes);
    b += kVecs * kLanes;
    for (int r = 0; r < kRows; ++r) {
      const Vec av = Splat(a_row[r][k * step]);
      for (int v = 0; v < kVecs; ++v) sum[r][v] = av * bv[v] + sum[r][v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      Store(c + r * c_stride + v * kLanes, alpha == 1.0f ? sum[r][v] : sum[r][v] * alpha);
    }
  }
}

template <int kVecs>
TRIMTAB_INLINE void MicroRows(int64_t rows, Rows a, const float* b, int64_t inner, float* c, int64_t c_stride,
                              float alpha, bool accumulate) {
  switch (rows) {
    case 1:
      return Micro<1, kVecs>(a, b, inner, c, c_stride, alpha, accumulate);
    case 2:
      return Micro<2, kVecs>(a, b, inner, c, c_stride, alpha, accumulate);
#if TRIMTAB_MICRO_ROWS >= 6
    case 3:
      return Micro<3, kVecs>(a, b, inner, c, c_stride, alpha, accumulate);
    case 4:
      return Micro<4, kVecs>(a, b, inner, c, c_stride, alpha, accumulate);
    case 5:
      return Micro<5, kVecs>(a, b, inner, c, c_stride, alpha, accumulate);
    case 6:
      return Micro<6, kVecs>(a, b, inner, c, c_stride, alpha, accumulate);
#endif
    default:
      return;
  }
}

// rows <= kMicroRows; c holds `width` columns a row.
TRIMTAB_INLINE void MicroTile(int64_t rows, int width, Rows a, const float* b, int64_t inner, float* c,
                              int64_t c_stride, float alpha, bool accumulate) {
  if (width == kPanel) {
    MicroRows<2>(rows, a, b, inner, c, c_stride, alpha, accumulate);
  } else {
    MicroRows<1>(rows, a, b, inner, c, c_stride, alpha, accumulate);
  }
}

// Floats that the panels of a [inner, columns] matrix take.
TRIMTAB_INLINE int64_t PanelFloats(int64_t inner, int64_t columns) { return inner * RoundUp(columns, kPanel); }

// Row `k` of a [inner, columns] matrix into its panels; columns beyond the end become 0.
inline void PackRow(const float* row, int64_t k, int64_t inner, int64_t columns, float* panels) {
  for (int64_t j = 0; j < columns; j += kPanel) {
    const int width = PanelWidth(j, columns);
    float* to = panels + j * inner + k * width;
    const int n = static_cast<int>(Min64(width, columns - j));
    if (n == kPanel) {
      Store(to, Load(row + j));
      Store(to + kLanes, Load(row + j + kLanes));
      continue;
    }
    for (int i = 0; i < n; ++i) to[i] = row[j + i];
    for (int i = n; i < width; ++i) to[i] = 0.0f;
  }
}

// Row `j` of a [columns, inner] matrix as column j of its transpose's panels.
inline void PackColumn(const float* row, int64_t j, int64_t inner, int64_t columns, float* panels) {
  const int64_t panel = j / kPanel * kPanel;
  const int width = PanelWidth(panel, columns);
  float* to = panels + panel * inner + (j - panel);
  for (int64_t k = 0; k < inner; ++k) to[k * width] = row[k];
}

// Zeroes the unused columns of the last panel that PackColumn leaves.
inline void PadColumns(int64_t inner, int64_t columns, float* panels) {
  const int64_t panel = (columns - 1) / kPanel * kPanel;
  const int width = PanelWidth(panel, columns);
  for (int64_t k = 0; k < inner; ++k) {
    for (int64_t i = columns - panel; i < width; ++i) panels[panel * inner + k * width + i] = 0.0f;
  }
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
