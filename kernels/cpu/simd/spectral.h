// One slice of the warm power iteration.
#ifndef TRIMTAB_KERNELS_CPU_SIMD_SPECTRAL_H_
#define TRIMTAB_KERNELS_CPU_SIMD_SPECTRAL_H_

#include "kernels/cpu/simd/convert.h"

namespace trimtab::cpu::TRIMTAB_INSTANCE {
namespace {

inline float Dot(const float* a, const float* b, int64_t n) {
  Vec even = Splat(0.0f), odd = Splat(0.0f);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even = Load(a + i) * Load(b + i) + even;
    odd = Load(a + i + kLanes) * Load(b + i + kLanes) + odd;
  }
  float tail = 0.0f;
  for (; i < n; ++i) tail += a[i] * b[i];
  return SumOf(even + odd) + tail;
}

inline void AddScaled(float factor, const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

inline double Norm(const float* x, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return std::sqrt(sum);
}

// A fixed start without structure, so that it is not orthogonal to the vector that is sought.
inline void StartVector(float* v, int64_t n) {
  uint32_t state = 0x9e3779b9u;
  for (int64_t i = 0; i < n; ++i) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    v[i] = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
}

struct Slice {
  const trimtab_spectral& s;
  int64_t begin, rows;
  float *line, *y, *w;  // a row or column, [rows], [columns]

  // y = W v and w = W^T y, in one read of W where its rows are the nearer lines in memory, else in two.
  void Multiply(const float* v) const {
    const int64_t columns = s.columns;
    for (int64_t j = 0; j < columns; ++j) w[j] = 0.0f;
    if (s.row_stride == 1 && s.column_stride != 1) {
      for (int64_t i = 0; i < rows; ++i) y[i] = 0.0f;
      for (int64_t j = 0; j < columns; ++j) AddScaled(v[j], Line(begin + j * s.column_stride, 1, rows), rows, y);
      for (int64_t j = 0; j < columns; ++j) w[j] = Dot(Line(begin + j * s.column_stride, 1, rows), y, rows);
      return;
    }
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = Line((begin + i) * s.row_stride, s.column_stride, columns);
      y[i] = Dot(row, v, columns);
      AddScaled(y[i], row, columns, w);
    }
  }

  const float* Line(int64_t offset, int64_t stride, int64_t n) const {
    if (s.dtype == TRIMTAB_F32 && stride == 1) return static_cast<const float*>(s.data) + offset;
    LoadRow(s.dtype, s.data, offset, stride, n, line);
    return line;
  }
};

inline bool Spectral(const trimtab_spectral& s, int64_t index) {
  const int64_t rows = s.rows / s.slices, columns = s.columns;
  Slice slice{s,
              index * rows,
              rows,
              ThreadScratch(Slot::kRow, rows > columns ? rows : columns),
              ThreadScratch(Slot::kRow2, rows),
              ThreadScratch(Slot::kRow3, columns)};
  if (!slice.line || !slice.y || !slice.w) return false;
  float* v = s.vector + index * columns;
  double sigma = 0.0, residual = 0.0;
  for (int32_t t = 0; t < s.iterations; ++t) {
    double length = Norm(v, columns);
    if (!(length > 0.0) || length - length != 0.0) {
      StartVector(v, columns);
      length = Norm(v, columns);
    }
    for (int64_t j = 0; j < columns; ++j) v[j] = static_cast<float>(v[j] / length);
    slice.Multiply(v);
    sigma = Norm(slice.y, rows);
    residual = 0.0;
    if (sigma == 0.0) break;
    double next = 0.0;
    for (int64_t j = 0; j < columns; ++j) {
      const double w = slice.w[j] / sigma, miss = w - sigma * v[j];
      residual += miss * miss;
      next += w * w;
    }
    residual = std::sqrt(residual);
    next = std::sqrt(next);
    // A matrix with NaN or Inf gives NaN, and leaves the vector for the next, healthy visit.
    if (!(next > 0.0) || next - next != 0.0) break;
    for (int64_t j = 0; j < columns; ++j) v[j] = static_cast<float>(slice.w[j] / sigma / next);
  }
  s.sigma[index] = static_cast<float>(sigma);
  if (s.residual != nullptr) s.residual[index] = static_cast<float>(residual);
  return true;
}

}  // namespace
}  // namespace trimtab::cpu::TRIMTAB_INSTANCE
#endif
