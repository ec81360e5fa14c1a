// Attention forward on wgmma and bulk tensor copies, sm_90a.
//
// One warpgroup loads: Q once a block of rows, K and V in tiles through two rings. Each of the others owns 64 query
// rows and walks the visible tiles from the last to the first, so that only its first ones need a mask. The scores of a
// tile and the values of the tile before are multiplied back to back, and the softmax of the scores runs under the
// second product and under the other warpgroups' products. Thread blocks take blocks of query rows in turn; loads run
// ahead into the next. docs/numerics.md has the rules, docs/kernel-notes.md the figures behind the shapes.
#ifndef TRIMTAB_KERNELS_CUDA_FORWARD_SM90_CUH_
#define TRIMTAB_KERNELS_CUDA_FORWARD_SM90_CUH_

#include "kernels/cuda/forward_sm90_consumer.cuh"
#include "kernels/cuda/forward_sm90_producer.cuh"

namespace trimtab::cuda {

template <typename T, int kDim>
__global__ void __launch_bounds__(ForwardSm90Shape<kDim>::kThreads, 1)
    ForwardSm90Kernel(const __grid_constant__ ForwardSm90Job job) {
  using Shape = ForwardSm90Shape<kDim>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const ForwardSm90Shared<kDim> shared(memory);
  shared.FillOnes(T::kMantissaBits == 7 ? 0x3f803f80u : 0x3c003c00u);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&job.q);
    PrefetchTensorMap(&job.k);
    PrefetchTensorMap(&job.v);
    shared.Init();
    // Read once: producer and consumers must agree on the number of passes.
    *shared.Kind() = job.a.kind != nullptr ? *job.a.kind : TRIMTAB_ATTENTION_STABILIZED;
  }
  __syncthreads();
  // Reductions, so that the compiler knows these to be the same for a warp.
  const int kind = static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(*shared.Kind())));
  const int warpgroup = static_cast<int>(__reduce_min_sync(~0u, threadIdx.x / 128));
  if (warpgroup == 0) {
    ShrinkRegisters<Shape::kProducerRegisters>();
    if (threadIdx.x == 0) Produce<kDim>(job, shared, kind == TRIMTAB_ATTENTION_PAPER);
  } else {
    GrowRegisters<Shape::kConsumerRegisters>();
    Consumer<T, kDim>(job, shared, kind, warpgroup - 1).Run();
  }
}

template <typename T, int kDim>
trimtab_kernel_status LaunchForwardSm90(const ForwardSm90Job& job, cudaStream_t stream) {
  using Shape = ForwardSm90Shape<kDim>;
  const auto kernel = ForwardSm90Kernel<T, kDim>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes) != cudaSuccess) {
    return Launched();
  }
  kernel<<<static_cast<unsigned>(job.grid), Shape::kThreads, Shape::kSharedBytes, stream>>>(job);
  return Launched();
}

}  // namespace trimtab::cuda
#endif
