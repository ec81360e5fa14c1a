// Activation statistics in one read: partial figures a block, added up in block order by the block that ends last.
#include "kernels/cuda/job.h"
#include "kernels/cuda/read.cuh"

namespace trimtab::cuda {
namespace {

constexpr int kThreads = 256, kMaxBlocks = 1024;

struct Workspace {
  unsigned done;  // blocks of the call under way
  unsigned reserved[15];
  trimtab_activation_stats part[kMaxBlocks];
};
static_assert(sizeof(Workspace) <= TRIMTAB_CUDA_ACTIVATION_WORKSPACE);

__device__ void Add(trimtab_activation_stats* to, const trimtab_activation_stats& x) {
  to->count += x.count;
  to->nonfinite += x.nonfinite;
  to->above_threshold += x.above_threshold;
  to->sum += x.sum;
  to->sum_squares += x.sum_squares;
  to->abs_max = fmaxf(to->abs_max, x.abs_max);
}

__device__ trimtab_activation_stats Shuffled(const trimtab_activation_stats& x, int i) {
  trimtab_activation_stats y{};
  y.count = __shfl_xor_sync(~0u, x.count, i);
  y.nonfinite = __shfl_xor_sync(~0u, x.nonfinite, i);
  y.above_threshold = __shfl_xor_sync(~0u, x.above_threshold, i);
  y.sum = __shfl_xor_sync(~0u, x.sum, i);
  y.sum_squares = __shfl_xor_sync(~0u, x.sum_squares, i);
  y.abs_max = __shfl_xor_sync(~0u, x.abs_max, i);
  return y;
}

// Sum over the block, valid in thread 0.
__device__ trimtab_activation_stats BlockSum(trimtab_activation_stats x) {
  __shared__ trimtab_activation_stats warp_sum[kThreads / 32];
  for (int i = 16; i > 0; i /= 2) Add(&x, Shuffled(x, i));
  __syncthreads();
  if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / 32; ++i) Add(&x, warp_sum[i]);
  }
  return x;
}

struct Accumulator {
  float threshold;
  unsigned nonfinite = 0, above = 0;
  float abs_max = 0.0f;
  double sum = 0.0, squares = 0.0;

  __device__ void Take(float x) {
    above += fabsf(x) > threshold;
    const bool finite = x - x == 0.0f;
    nonfinite += !finite;
    x = finite ? x : 0.0f;
    abs_max = fmaxf(abs_max, fabsf(x));
    sum += x;
    squares += static_cast<double>(x) * x;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) ActivationKernel(const typename T::Type* data, int64_t n, float threshold,
                                                             trimtab_activation_stats* stats, Workspace* workspace) {
  Accumulator all{threshold};
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % 16) / sizeof(*data);
  const int64_t head = misaligned == 0 ? 0 : min(n, static_cast<int64_t>(16 / sizeof(*data)) - misaligned);
  const int64_t groups = (n - head) / 8;
  for (int64_t i = thread; i < groups; i += threads) {
    float x[8];
    ReadEight<T>(data + head + i * 8, x);
#pragma unroll
    for (int j = 0; j < 8; ++j) all.Take(x[j]);
  }
  if (thread < head) all.Take(static_cast<float>(data[thread]));
  if (const int64_t i = head + groups * 8 + thread; i < n) all.Take(static_cast<float>(data[i]));

  const auto part = BlockSum({0, all.nonfinite, all.above, all.sum, all.squares, all.abs_max, 0});
  __shared__ bool last;
  if (threadIdx.x == 0) {
    workspace->part[blockIdx.x] = part;
    __threadfence();
    last = atomicAdd(&workspace->done, 1u) + 1 == gridDim.x;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  trimtab_activation_stats total{};
  for (int i = threadIdx.x; i < static_cast<int>(gridDim.x); i += kThreads) Add(&total, workspace->part[i]);
  total = BlockSum(total);
  if (threadIdx.x != 0) return;
  total.count = static_cast<uint64_t>(n);
  Add(stats, total);
  workspace->done = 0;
}

template <typename T>
void Launch(const void* data, int64_t n, float threshold, trimtab_activation_stats* stats, void* workspace,
            cudaStream_t stream) {
  const int64_t wanted = (n / 8 + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < 1 ? 1 : (wanted > kMaxBlocks ? kMaxBlocks : wanted));
  ActivationKernel<T><<<blocks, kThreads, 0, stream>>>(static_cast<const typename T::Type*>(data), n, threshold, stats,
                                                       static_cast<Workspace*>(workspace));
}

__global__ void AdvanceKernel(uint64_t* step) { ++*step; }

}  // namespace
}  // namespace trimtab::cuda

extern "C" {

trimtab_kernel_status trimtab_cuda_activation(trimtab_dtype dtype, const void* data, int64_t n, float threshold,
                                              trimtab_activation_stats* stats, void* workspace, void* stream) {
  using namespace trimtab::cuda;
  if (n < 0 || (n > 0 && data == nullptr) || stats == nullptr || workspace == nullptr || !(threshold >= 0.0f)) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "n or threshold is out of range, or data, stats or workspace is NULL");
  }
  const auto s = static_cast<cudaStream_t>(stream);
  switch (dtype) {
    case TRIMTAB_F32:
      Launch<Fp32>(data, n, threshold, stats, workspace, s);
      break;
    case TRIMTAB_BF16:
      Launch<Bf16>(data, n, threshold, stats, workspace, s);
      break;
    case TRIMTAB_F16:
      Launch<Fp16>(data, n, threshold, stats, workspace, s);
      break;
    default:
      return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "dtype %d", dtype);
  }
  return Launched();
}

trimtab_kernel_status trimtab_cuda_advance_step(uint64_t* step, void* stream) {
  using namespace trimtab::cuda;
  if (step == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "step is NULL");
  AdvanceKernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(step);
  return Launched();
}

trimtab_kernel_status trimtab_cuda_copy_stats(void* pinned, const void* device, size_t bytes, void* stream) {
  using namespace trimtab::cuda;
  if (pinned == nullptr || device == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "pinned or device is NULL");
  cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream));
  return Launched();
}

}  // extern "C"
