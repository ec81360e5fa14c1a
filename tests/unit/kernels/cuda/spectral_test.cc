// The CUDA power iteration against the CPU's and against a known spectrum.
#include "device.h"

namespace trimtab {
namespace {

void Compare(trimtab_dtype dtype, int64_t rows, int64_t columns, int64_t slices) {
  auto stored = Normal(dtype == TRIMTAB_F32 ? TRIMTAB_BF16 : dtype, static_cast<size_t>(rows * columns), 1);
  // A direction that stands out in each slice, so that both iterations converge.
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      auto& x = stored[static_cast<size_t>(i * columns + j)];
      const auto type = dtype == TRIMTAB_F32 ? TRIMTAB_BF16 : dtype;
      x = ToStored(type, FromStored(type, x) + 2.0f * (i % 3 == 0) - 1.0f * (j % 2));
    }
  }
  std::vector<float> wide;
  for (uint16_t x : stored) wide.push_back(FromStored(dtype == TRIMTAB_F32 ? TRIMTAB_BF16 : dtype, x));
  const Device<uint16_t> d_stored(stored);
  const Device<float> d_wide(wide), vector(static_cast<size_t>(slices * columns)), sigma(static_cast<size_t>(slices)),
      residual(static_cast<size_t>(slices));
  const Device<char> workspace(trimtab_cuda_spectral_workspace(rows, columns, slices));
  trimtab_cuda_spectral s{};
  s.struct_size = sizeof s;
  s.dtype = dtype;
  s.data = dtype == TRIMTAB_F32 ? static_cast<const void*>(d_wide.get()) : d_stored.get();
  s.rows = rows, s.columns = columns, s.row_stride = columns, s.slices = slices;
  s.vector = vector.get(), s.sigma = sigma.get(), s.residual = residual.get(), s.workspace = workspace.get();
  for (int i = 0; i < 40; ++i) ASSERT_EQ(trimtab_cuda_spectral_norm(&s, nullptr), TRIMTAB_KERNEL_OK);
  Synchronize();
  std::vector<float> cpu_vector(static_cast<size_t>(slices * columns)), cpu_sigma(static_cast<size_t>(slices)),
      cpu_residual(static_cast<size_t>(slices));
  trimtab_spectral c{};
  c.struct_size = sizeof c;
  c.dtype = TRIMTAB_F32;
  c.data = wide.data();
  c.rows = rows, c.columns = columns, c.row_stride = columns, c.column_stride = 1, c.slices = slices, c.iterations = 40;
  c.vector = cpu_vector.data(), c.sigma = cpu_sigma.data(), c.residual = cpu_residual.data();
  ASSERT_EQ(trimtab_spectral_norm(&c), TRIMTAB_KERNEL_OK);
  const auto got = sigma.Host(), miss = residual.Host();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], cpu_sigma[i], 1e-4 * cpu_sigma[i]) << rows << "x" << columns << " slice " << i;
    EXPECT_LT(miss[i], 0.05f * cpu_sigma[i]);
  }
}

TEST(CudaSpectral, AgreesWithTheCpu) {
  Compare(TRIMTAB_F32, 200, 96, 1);
  Compare(TRIMTAB_BF16, 256, 768, 4);
  Compare(TRIMTAB_F16, 111, 77, 3);
}

TEST(CudaSpectral, NanGivesNanAndKeepsTheVector) {
  const int64_t n = 64;
  std::vector<float> w(static_cast<size_t>(n * n), 1.0f);
  w[5] = NAN;
  const std::vector<float> kept(static_cast<size_t>(n), 0.125f);
  const Device<float> data(w), vector(kept), sigma(1);
  const Device<char> workspace(trimtab_cuda_spectral_workspace(n, n, 1));
  trimtab_cuda_spectral s{};
  s.struct_size = sizeof s;
  s.dtype = TRIMTAB_F32;
  s.data = data.get(), s.rows = s.columns = s.row_stride = n, s.slices = 1;
  s.vector = vector.get(), s.sigma = sigma.get(), s.workspace = workspace.get();
  ASSERT_EQ(trimtab_cuda_spectral_norm(&s, nullptr), TRIMTAB_KERNEL_OK);
  Synchronize();
  EXPECT_TRUE(std::isnan(sigma.Host()[0]));
  EXPECT_EQ(vector.Host(), kept);
}

}  // namespace
}  // namespace trimtab
