#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/unit/kernels/strided_tensor.h"
#include "trimtab/kernels.h"

namespace trimtab::testing {
namespace {

TEST(Activation, AgreesWithFp64AtEveryLengthAndDtype) {
  std::mt19937 random(61);
  for (const trimtab_dtype dtype : {TRIMTAB_F32, TRIMTAB_BF16, TRIMTAB_F16}) {
    for (const int64_t n : {1, 7, 8, 9, 4095, 4096, 4097, 20001}) {
      StridedTensor x(dtype, {1, 1, 1, n});
      x.FillNormal(random, 0.5, 3.0);
      if (n > 8) {
        x.Set(0, 0, 0, 2, NAN);
        x.Set(0, 0, 0, 5, INFINITY);
        x.Set(0, 0, 0, n - 1, -INFINITY);
      }
      trimtab_activation_stats stats{}, expected{};
      for (int64_t i = 0; i < n; ++i) {
        const double value = x.Get(0, 0, 0, i);
        expected.above_threshold += std::fabs(value) > 4.0;
        if (!std::isfinite(value)) {
          ++expected.nonfinite;
          continue;
        }
        expected.sum += value;
        expected.sum_squares += value * value;
        expected.abs_max = std::max(expected.abs_max, static_cast<float>(std::fabs(value)));
      }
      ASSERT_EQ(trimtab_activation(dtype, x.view().data, n, 4.0f, &stats), TRIMTAB_KERNEL_OK);
      EXPECT_EQ(stats.count, static_cast<uint64_t>(n));
      EXPECT_EQ(stats.nonfinite, expected.nonfinite);
      EXPECT_EQ(stats.above_threshold, expected.above_threshold);
      EXPECT_EQ(stats.abs_max, expected.abs_max);
      EXPECT_NEAR(stats.sum, expected.sum, 1e-9 * (1 + std::sqrt(n * expected.sum_squares)));
      EXPECT_NEAR(stats.sum_squares, expected.sum_squares, 1e-12 * expected.sum_squares);
    }
  }
}

TEST(Activation, CallsAddAndNothingIsNotAnError) {
  const float x[] = {1.0f, -3.0f};
  trimtab_activation_stats stats{};
  ASSERT_EQ(trimtab_activation(TRIMTAB_F32, x, 2, 2.0f, &stats), TRIMTAB_KERNEL_OK);
  ASSERT_EQ(trimtab_activation(TRIMTAB_F32, x, 1, 0.0f, &stats), TRIMTAB_KERNEL_OK);
  ASSERT_EQ(trimtab_activation(TRIMTAB_F32, nullptr, 0, 0.0f, &stats), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(stats.count, 3u);
  EXPECT_EQ(stats.above_threshold, 2u);
  EXPECT_EQ(stats.sum, -1.0);
  EXPECT_EQ(stats.sum_squares, 11.0);
  EXPECT_EQ(stats.abs_max, 3.0f);
}

TEST(Activation, HugeValuesDoNotOverflowTheSquares) {
  const float x[] = {3e38f, -3e38f};
  trimtab_activation_stats stats{};
  ASSERT_EQ(trimtab_activation(TRIMTAB_F32, x, 2, 1e30f, &stats), TRIMTAB_KERNEL_OK);
  EXPECT_NEAR(stats.sum_squares, 1.8e77, 1e70);
  EXPECT_EQ(stats.nonfinite, 0u);
}

}  // namespace
}  // namespace trimtab::testing
