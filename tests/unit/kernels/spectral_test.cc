// Warm power iteration against singular values known by construction or found in FP64.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/unit/kernels/strided_tensor.h"
#include "trimtab/kernels.h"

namespace trimtab::testing {
namespace {

// Largest singular value of rows [begin, begin + rows) by 3,000 FP64 iterations.
double LargestSingularValue(const StridedTensor& w, int64_t begin, int64_t rows) {
  const int64_t columns = w.sizes()[3];
  std::vector<double> v(columns, 1.0), y(rows);
  double sigma = 0.0;
  for (int t = 0; t < 3000; ++t) {
    double norm = 0.0;
    for (const double x : v) norm += x * x;
    for (double& x : v) x /= std::sqrt(norm);
    sigma = 0.0;
    for (int64_t i = 0; i < rows; ++i) {
      y[i] = 0.0;
      for (int64_t j = 0; j < columns; ++j) y[i] += w.Get(0, 0, begin + i, j) * v[j];
      sigma += y[i] * y[i];
    }
    std::fill(v.begin(), v.end(), 0.0);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) v[j] += w.Get(0, 0, begin + i, j) * y[i];
    }
    sigma = std::sqrt(sigma);
  }
  return sigma;
}

struct Iteration {
  std::vector<float> vector, sigma, residual;
};

trimtab_kernel_status Iterate(const StridedTensor& w, trimtab_dtype dtype, int64_t slices, int32_t iterations,
                              Iteration* state) {
  trimtab_spectral s{};
  s.struct_size = sizeof s;
  s.dtype = dtype;
  s.data = w.view().data;
  s.rows = w.sizes()[2];
  s.columns = w.sizes()[3];
  s.row_stride = w.view().stride[2];
  s.column_stride = w.view().stride[3];
  s.slices = slices;
  s.iterations = iterations;
  state->vector.resize(static_cast<size_t>(slices * s.columns));
  state->sigma.resize(static_cast<size_t>(slices));
  state->residual.resize(static_cast<size_t>(slices));
  s.vector = state->vector.data();
  s.sigma = state->sigma.data();
  s.residual = state->residual.data();
  return trimtab_spectral_norm(&s);
}

TEST(Spectral, WholeMatrixAndSlicesInEveryLayoutAndDtype) {
  std::mt19937 random(51);
  const Layout transposed{{0, 1, 3, 2}, {0, 0, 0, 0}}, spaced{{0, 1, 2, 3}, {0, 0, 5, 1}};
  for (const Layout& layout : {kContiguous, transposed, spaced, Layout{{3, 2, 0, 1}, {0, 0, 2, 3}}}) {
    for (const trimtab_dtype dtype : {TRIMTAB_F32, TRIMTAB_BF16, TRIMTAB_F16}) {
      StridedTensor w(dtype, {1, 1, 48, 37}, layout);
      w.FillNormal(random, 0.1, 1.0);  // the mean gives a gap after the first singular value
      for (const int64_t slices : {1, 4}) {
        Iteration state;
        ASSERT_EQ(Iterate(w, dtype, slices, 300, &state), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
        for (int64_t i = 0; i < slices; ++i) {
          const double exact = LargestSingularValue(w, i * (48 / slices), 48 / slices);
          EXPECT_NEAR(state.sigma[i], exact, 2e-5 * exact);
          EXPECT_LE(state.sigma[i], exact * (1 + 1e-6));
          EXPECT_LE(state.residual[i], 2e-2 * exact);
        }
      }
    }
  }
}

TEST(Spectral, WarmVectorConvergesOverCallsFromBelow) {
  std::mt19937 random(52);
  StridedTensor w(TRIMTAB_F32, {1, 1, 64, 96});
  w.FillNormal(random, 0.3, 1.0);
  const double exact = LargestSingularValue(w, 0, 64);
  Iteration state;
  double last_sigma = 0.0, first_residual = 0.0;
  for (int call = 0; call < 30; ++call) {
    ASSERT_EQ(Iterate(w, TRIMTAB_F32, 1, 0, &state), TRIMTAB_KERNEL_OK);
    EXPECT_GE(state.sigma[0], last_sigma * (1 - 1e-6));
    EXPECT_LE(state.sigma[0], exact * (1 + 1e-6));
    last_sigma = state.sigma[0];
    if (call == 0) first_residual = state.residual[0];
  }
  EXPECT_NEAR(last_sigma, exact, 1e-4 * exact);
  EXPECT_LT(state.residual[0], 1e-2 * first_residual);
}

TEST(Spectral, ResidualIsTheDefinition) {
  // W = diag(3, 1), v = (0.6, 0.8): W v = (1.8, 0.8), sigma = 1.9698, W^T u - sigma v = (1.559, -1.170).
  StridedTensor w(TRIMTAB_F32, {1, 1, 2, 2});
  w.FillConstant(0.0);
  w.Set(0, 0, 0, 0, 3.0);
  w.Set(0, 0, 1, 1, 1.0);
  Iteration state;
  state.vector = {0.6f, 0.8f};
  ASSERT_EQ(Iterate(w, TRIMTAB_F32, 1, 1, &state), TRIMTAB_KERNEL_OK);
  EXPECT_NEAR(state.sigma[0], 1.969772, 1e-5);
  EXPECT_NEAR(state.residual[0], std::hypot(5.4 / 1.969772 - 1.969772 * 0.6, 0.8 / 1.969772 - 1.969772 * 0.8), 1e-5);
}

TEST(Spectral, ZeroMatrixIsZeroAndANonFiniteOneKeepsTheVector) {
  StridedTensor w(TRIMTAB_F32, {1, 1, 8, 8});
  w.FillConstant(0.0);
  Iteration state;
  ASSERT_EQ(Iterate(w, TRIMTAB_F32, 1, 3, &state), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(state.sigma[0], 0.0f);
  EXPECT_EQ(state.residual[0], 0.0f);
  std::mt19937 random(53);
  w.FillNormal(random, 0.0, 1.0);
  ASSERT_EQ(Iterate(w, TRIMTAB_F32, 1, 50, &state), TRIMTAB_KERNEL_OK);
  const float healthy = state.sigma[0];
  w.Set(0, 0, 3, 3, NAN);
  ASSERT_EQ(Iterate(w, TRIMTAB_F32, 1, 1, &state), TRIMTAB_KERNEL_OK);
  EXPECT_TRUE(std::isnan(state.sigma[0]));
  for (const float v : state.vector) EXPECT_TRUE(std::isfinite(v));
  w.Set(0, 0, 3, 3, 0.0);
  ASSERT_EQ(Iterate(w, TRIMTAB_F32, 1, 100, &state), TRIMTAB_KERNEL_OK);
  EXPECT_NEAR(state.sigma[0], healthy, 0.5 * healthy);
  state.vector.assign(8, NAN);
  ASSERT_EQ(Iterate(w, TRIMTAB_F32, 1, 100, &state), TRIMTAB_KERNEL_OK);
  EXPECT_TRUE(std::isfinite(state.sigma[0]));
}

}  // namespace
}  // namespace trimtab::testing
