// A four-dimensional test tensor of any dtype, dimension order and padding, read and written as double.
#ifndef TRIMTAB_TESTS_UNIT_KERNELS_STRIDED_TENSOR_H_
#define TRIMTAB_TESTS_UNIT_KERNELS_STRIDED_TENSOR_H_

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "trimtab/kernels.h"

namespace trimtab::testing {

// Order of the dimensions in memory, outermost first, with spare elements after each.
struct Layout {
  std::array<int, 4> order{0, 1, 2, 3};
  std::array<int64_t, 4> padding{0, 0, 0, 0};
};

inline constexpr Layout kContiguous{};
inline constexpr Layout kRowsBeforeHeads{{0, 2, 1, 3}, {0, 0, 0, 0}};

Layout RandomLayout(std::mt19937& random);

class StridedTensor {
 public:
  StridedTensor() = default;
  StridedTensor(trimtab_dtype dtype, std::array<int64_t, 4> sizes, const Layout& layout = kContiguous);

  double Get(int64_t batch, int64_t head, int64_t row, int64_t column) const;
  // Stores the nearest value of the dtype.
  void Set(int64_t batch, int64_t head, int64_t row, int64_t column, double value);
  void FillNormal(std::mt19937& random, double mean, double deviation);
  void FillConstant(double value);

  const std::array<int64_t, 4>& sizes() const { return sizes_; }
  trimtab_tensor view() const;
  trimtab_mutable_tensor mutable_view();
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  int64_t Offset(int64_t batch, int64_t head, int64_t row, int64_t column) const {
    return batch * stride_[0] + head * stride_[1] + row * stride_[2] + column * stride_[3];
  }

  trimtab_dtype dtype_ = TRIMTAB_F32;
  std::array<int64_t, 4> sizes_{}, stride_{};
  std::vector<uint8_t> bytes_;
};

// The value of `dtype` nearest to x, computed by the compiler's own types or by long division, not by the kernels.
double NearestOf(trimtab_dtype dtype, double x);

}  // namespace trimtab::testing
#endif
