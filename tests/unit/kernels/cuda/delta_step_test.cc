// The CUDA delta-preserving step picks exactly the roundings that the CPU's picks.
#include "device.h"

namespace trimtab {
namespace {

struct Spread {
  float out_mean = -2, out_sd = 0.2f, grad_mean = -1, grad_sd = 0.3f;
  float low = 1;         // of what rounding `out` takes
  float grad_scale = 1;  // a power of two
};

void Compare(trimtab_dtype dtype, int64_t columns, int32_t max_entries, int64_t pitch, bool poisoned, int64_t rows = 37,
             const Spread& spread = {}, bool in_place = false) {
  const int64_t batch = 2, heads = 3;
  const auto n = static_cast<size_t>(batch * heads * rows * pitch);
  auto out = Normal(dtype, n, 1, spread.out_mean, spread.out_sd);
  auto grad = Normal(dtype, n, 2, spread.grad_mean * spread.grad_scale, spread.grad_sd * spread.grad_scale);
  auto low = Normal(dtype, n, 3, 0, spread.low * (dtype == TRIMTAB_BF16 ? 2e-3f : 3e-4f));
  if (poisoned) {
    grad[5] = ToStored(dtype, NAN);
    low[static_cast<size_t>(pitch) + 1] = ToStored(dtype, INFINITY);
    out[static_cast<size_t>(2 * pitch) + 2] = ToStored(dtype, INFINITY);
    out[static_cast<size_t>(3 * pitch) + 3] = 0;
  }
  const Device<uint16_t> d_out(out), d_low(low), d_grad(grad), d_result(std::vector<uint16_t>(n, 0x7fc1));
  const int64_t stride[4] = {heads * rows * pitch, rows * pitch, pitch, 1};
  trimtab_cuda_delta_preserve d{};
  d.struct_size = sizeof d;
  d.dtype = dtype;
  d.batch = batch, d.heads = heads, d.rows = rows, d.columns = columns, d.max_entries = max_entries;
  d.out.data = d_out.get(), d.out_low.data = d_low.get(), d.grad_out.data = d_grad.get();
  d.result.data = in_place ? d_out.get() : d_result.get();
  std::vector<float> low32(n);
  for (size_t i = 0; i < n; ++i) low32[i] = FromStored(dtype, low[i]);
  std::vector<uint16_t> expected(n, 0x7fc1);
  trimtab_delta_preserve cpu{};
  cpu.struct_size = sizeof cpu;
  cpu.dtype = dtype;
  cpu.batch = batch, cpu.heads = heads, cpu.rows = rows, cpu.columns = columns, cpu.max_entries = max_entries;
  cpu.out.data = out.data(), cpu.out_low.data = low32.data(), cpu.grad_out.data = grad.data();
  cpu.result.data = expected.data();
  for (int i = 0; i < 4; ++i) {
    d.out.stride[i] = d.out_low.stride[i] = d.grad_out.stride[i] = d.result.stride[i] = stride[i];
    cpu.out.stride[i] = cpu.out_low.stride[i] = cpu.grad_out.stride[i] = cpu.result.stride[i] = stride[i];
  }
  ASSERT_EQ(trimtab_delta_preserving_step(&cpu), TRIMTAB_KERNEL_OK);
  ASSERT_EQ(trimtab_cuda_delta_preserving_step(&d, nullptr), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
  Synchronize();
  const auto got = in_place ? d_out.Host() : d_result.Host();
  if (in_place) {
    for (size_t i = 0; i < n; ++i) expected[i] = static_cast<int64_t>(i) % pitch < columns ? expected[i] : out[i];
  }
  size_t different = 0, moved = 0;
  for (size_t i = 0; i < n; ++i) different += got[i] != expected[i], moved += got[i] != out[i];
  EXPECT_EQ(different, 0u) << "of " << n << ", columns " << columns << " dtype " << dtype;
  EXPECT_GT(moved, spread.grad_scale < 1 ? 0u : static_cast<size_t>(batch * heads * rows));
}

TEST(CudaDeltaStep, EqualsTheCpuBitForBit) {
  for (auto dtype : {TRIMTAB_BF16, TRIMTAB_F16}) {
    for (int64_t columns : {1, 7, 64, 72, 96, 128, 192, 250, 256})
      Compare(dtype, columns, 0, columns + columns % 8 + 8, false);
    Compare(dtype, 64, 3, 64, false);
  }
}

// Many rows, spreads and sizes: rare turns of the visit are taken as well.
TEST(CudaDeltaStep, EqualsTheCpuOnManyRowsAndSpreads) {
  for (auto dtype : {TRIMTAB_BF16, TRIMTAB_F16}) {
    for (int64_t columns : {64, 128, 256}) {
      Compare(dtype, columns, 0, columns, false, 3000);
      Compare(dtype, columns, 0, columns, false, 3000, {0, 1, 0, 1});                 // steps of many sizes
      Compare(dtype, columns, 0, columns, false, 3000, {-2, 0.01f, -1, 0.3f});        // moves over a power of two
      Compare(dtype, columns, 0, columns, false, 3000, {-2, 0.2f, -1, 0.3f, 30.0f});  // moves as far as they may
    }
    Compare(dtype, 3, 0, 8, false, 3000, {0, 1, 0, 1, 8.0f});
    Compare(dtype, 128, 2, 128, false, 3000, {0, 1, 0, 1});
  }
}

TEST(CudaDeltaStep, EqualsTheCpuOnTinyAndHugeGradients) {
  for (float scale : {0x1p-118f, 0x1p-100f, 0x1p60f, 0x1p110f}) {
    Compare(TRIMTAB_BF16, 64, 0, 64, false, 300, {0, 1, 0, 1, 1, scale});
  }
}

TEST(CudaDeltaStep, WorksInPlace) {
  for (auto dtype : {TRIMTAB_BF16, TRIMTAB_F16}) {
    for (int64_t columns : {64, 100, 128}) Compare(dtype, columns, 0, columns + 12, false, 200, {}, true);
  }
}

TEST(CudaDeltaStep, NanAndInfLikeTheCpu) {
  for (auto dtype : {TRIMTAB_BF16, TRIMTAB_F16}) Compare(dtype, 64, 0, 64, true);
}

}  // namespace
}  // namespace trimtab
