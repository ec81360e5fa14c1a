// Clusters of thread blocks and words sent between their shared memories. Before sm_90 every block is its own cluster.
//
// A mailbox is a barrier in shared memory that opens when as many bytes were sent to it as its block expects: no fence
// and no barrier of the cluster, which would wait for memory and empty the first-level cache.
#ifndef TRIMTAB_KERNELS_CUDA_CLUSTER_CUH_
#define TRIMTAB_KERNELS_CUDA_CLUSTER_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace trimtab::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ inline int ClusterSize() { return static_cast<int>(__clusterSizeInBlocks()); }
__device__ inline int ClusterRank() { return static_cast<int>(__clusterRelativeBlockRank()); }

// The variable of block `rank` at the place of this block's `shared`.
template <typename T>
__device__ inline T* InBlock(T* shared, int rank) {
  return static_cast<T*>(__cluster_map_shared_rank(shared, static_cast<unsigned>(rank)));
}

// A barrier of all threads of the cluster in two halves. What was written before the first is seen behind the second; a
// relaxed first half promises that of mailboxes only.
__device__ inline void ClusterArrive() { __cluster_barrier_arrive(); }
__device__ inline void ClusterArriveRelaxed() { __cluster_barrier_arrive_relaxed(); }
__device__ inline void ClusterWait() { __cluster_barrier_wait(); }

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// By one thread, before the cluster's first barrier, for each mailbox; opens once.
__device__ inline void OpenMailbox(uint64_t* mailbox, int bytes) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(SharedAddress(mailbox)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(SharedAddress(mailbox)), "r"(bytes)
               : "memory");
}

// Stores x, of 4 or 8 bytes, in `place` of block `rank`.
template <typename T>
__device__ inline void Send(T* place, uint64_t* mailbox, int rank, T x) {
  static_assert(sizeof x == 4 || sizeof x == 8);
  uint32_t to, box;
  asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(to) : "r"(SharedAddress(place)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(box) : "r"(SharedAddress(mailbox)), "r"(rank));
  if constexpr (sizeof x == 4) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0],%1,[%2];" ::"r"(to),
                 "r"(reinterpret_cast<const uint32_t&>(x)), "r"(box)
                 : "memory");
  } else {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0],%1,[%2];" ::"r"(to),
                 "l"(reinterpret_cast<const uint64_t&>(x)), "r"(box)
                 : "memory");
  }
}

// Returns when all that this block's mailbox expects is there; by any of its threads.
__device__ inline void Receive(uint64_t* mailbox) {
  asm volatile(
      "{\n.reg .pred arrived;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 arrived,[%0],0;\n@!arrived bra "
      "again;\n}" ::"r"(SharedAddress(mailbox))
      : "memory");
}

#else

__device__ inline int ClusterSize() { return 1; }
__device__ inline int ClusterRank() { return 0; }
template <typename T>
__device__ inline T* InBlock(T* shared, int) {
  return shared;
}
__device__ inline void ClusterArrive() {}
__device__ inline void ClusterArriveRelaxed() {}
__device__ inline void ClusterWait() { __syncthreads(); }
__device__ inline void OpenMailbox(uint64_t*, int) {}
template <typename T>
__device__ inline void Send(T* place, uint64_t*, int, T x) {
  *place = x;
}
__device__ inline void Receive(uint64_t*) { __syncthreads(); }  // so all of the block's threads come here

#endif

}  // namespace trimtab::cuda
#endif
