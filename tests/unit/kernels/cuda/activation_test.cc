// CUDA activation statistics against the CPU's: counts exactly, sums to FP64 rounding; and the step counter and copy.
#include "device.h"

namespace trimtab {
namespace {

TEST(CudaActivation, AgreesWithTheCpuAtEveryLengthAndAlignment) {
  for (auto dtype : {TRIMTAB_BF16, TRIMTAB_F16}) {
    auto x = Normal(dtype, 1 << 20, 4, 0.5f, 3);
    x[3] = ToStored(dtype, NAN), x[77] = ToStored(dtype, INFINITY), x[1000] = ToStored(dtype, -INFINITY);
    const Device<uint16_t> data(x);
    const Device<char> workspace(TRIMTAB_CUDA_ACTIVATION_WORKSPACE);
    for (int64_t begin : {0, 1, 5}) {
      for (int64_t n : {0, 1, 7, 8, 100, 4099, (1 << 20) - 5}) {
        trimtab_activation_stats cpu{};
        ASSERT_EQ(trimtab_activation(dtype, x.data() + begin, n, 4, &cpu), TRIMTAB_KERNEL_OK);
        const Device<trimtab_activation_stats> stats(1);
        for (int i = 0; i < 2; ++i) {  // calls add
          ASSERT_EQ(trimtab_cuda_activation(dtype, data.get() + begin, n, 4, stats.get(), workspace.get(), nullptr),
                    TRIMTAB_KERNEL_OK);
        }
        Synchronize();
        const auto got = stats.Host()[0];
        EXPECT_EQ(got.count, 2 * cpu.count);
        EXPECT_EQ(got.nonfinite, 2 * cpu.nonfinite);
        EXPECT_EQ(got.above_threshold, 2 * cpu.above_threshold);
        EXPECT_EQ(got.abs_max, cpu.abs_max);
        EXPECT_NEAR(got.sum, 2 * cpu.sum, 1e-9 * (1 + std::fabs(cpu.sum_squares)));
        EXPECT_NEAR(got.sum_squares, 2 * cpu.sum_squares, 1e-12 * (1 + cpu.sum_squares));
      }
    }
  }
}

TEST(CudaTransfer, StepCountsAndStatisticsArrive) {
  const Device<uint64_t> step(1);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(trimtab_cuda_advance_step(step.get(), nullptr), TRIMTAB_KERNEL_OK);
  uint64_t* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof *pinned), cudaSuccess);
  ASSERT_EQ(trimtab_cuda_copy_stats(pinned, step.get(), sizeof *pinned, nullptr), TRIMTAB_KERNEL_OK);
  Synchronize();
  EXPECT_EQ(*pinned, 3u);
  cudaFreeHost(pinned);
}

}  // namespace
}  // namespace trimtab
