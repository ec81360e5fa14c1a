// Bulk tensor copies of sm_90 into shared memory, and the barriers that count their bytes.
//
// Every barrier here is a ring: its n-th completion has parity n % 2, and waiting for parity 1 on a fresh one returns
// at once, so that a producer need not know whether a buffer was ever used.
#ifndef TRIMTAB_KERNELS_CUDA_TMA_CUH_
#define TRIMTAB_KERNELS_CUDA_TMA_CUH_

#include <cuda.h>

#include <cstdint>

namespace trimtab::cuda {

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes what this thread wrote to shared memory, barriers too, visible to copies and products; a __syncthreads()
// follows.
__device__ inline void PublishShared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// One arrival, which completes once `bytes` have been copied too.
__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void WaitBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ inline void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// A box of a tensor (column, row, head, batch) to `shared`; what lies outside the tensor becomes zero.
__device__ __forceinline__ void LoadBox(uint32_t shared, const CUtensorMap* map, uint32_t barrier, int column, int row,
                                        int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

}  // namespace trimtab::cuda
#endif
