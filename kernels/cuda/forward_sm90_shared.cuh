// Shared memory and the order of work of the sm_90a forward.
#ifndef TRIMTAB_KERNELS_CUDA_FORWARD_SM90_SHARED_CUH_
#define TRIMTAB_KERNELS_CUDA_FORWARD_SM90_SHARED_CUH_

#include "kernels/cuda/forward_sm90.h"
#include "kernels/cuda/tma.cuh"

namespace trimtab::cuda {

// Buffers used in turn.
template <int kStages>
struct Ring {
  uint32_t uses = 0;
  __device__ __forceinline__ uint32_t Stage() const { return uses % kStages; }
  __device__ __forceinline__ uint32_t Parity() const { return uses / kStages % 2; }
  __device__ __forceinline__ void Next() { ++uses; }
};

// Addresses of the queries of each consumer, of the rings of keys and values, and of their barriers: `full` once the copy
// has arrived, `empty` once every warp that reads has.
template <int kDim>
class ForwardSm90Shared {
 public:
  using Shape = ForwardSm90Shape<kDim>;
  __device__ explicit ForwardSm90Shared(unsigned char* memory)
      : base_((SharedAddress(memory) + 1023) & ~1023u), memory_(memory + (base_ - SharedAddress(memory))) {}

  __device__ uint32_t Q(int consumer) const { return base_ + consumer * Shape::kQueryBytes; }
  __device__ uint32_t K() const { return base_ + Shape::kConsumers * Shape::kQueryBytes; }
  __device__ uint32_t V() const { return K() + Shape::kStages * Shape::kTileBytes; }
  __device__ uint32_t QFull(int consumer) const { return Barriers() + 8 * consumer; }
  __device__ uint32_t QEmpty(int consumer) const { return Barriers() + 8 * (Shape::kConsumers + consumer); }
  __device__ uint32_t KFull() const { return Barriers() + 8 * (2 * Shape::kConsumers); }
  __device__ uint32_t KEmpty() const { return KFull() + 8 * Shape::kStages; }
  __device__ uint32_t VFull() const { return KEmpty() + 8 * Shape::kStages; }
  __device__ uint32_t VEmpty() const { return VFull() + 8 * Shape::kStages; }
  __device__ int* Kind() const {
    return reinterpret_cast<int*>(memory_ + (Barriers() - base_) + 8 * Shape::kBarriers);
  }

  // By one thread, before a __syncthreads().
  __device__ void Init() const {
    for (int i = 0; i < Shape::kConsumers; ++i) {
      InitBarrier(QFull(i), 1);
      InitBarrier(QEmpty(i), 4);
    }
    for (int i = 0; i < Shape::kStages; ++i) {
      InitBarrier(KFull() + 8 * i, 1);
      InitBarrier(VFull() + 8 * i, 1);
      InitBarrier(KEmpty() + 8 * i, 4 * Shape::kConsumers);
      InitBarrier(VEmpty() + 8 * i, 4 * Shape::kConsumers);
    }
    PublishBarriers();
  }

 private:
  __device__ uint32_t Barriers() const { return V() + Shape::kStages * Shape::kTileBytes; }

  uint32_t base_;  // in the shared window
  unsigned char* memory_;
};

// A block of query rows of one head, and the tiles of keys that it sees.
template <int kDim>
struct RowBlock {
  Sequence sequence;
  int batch, head, first_row, tiles;

  // This thread block's `turn`-th block of rows; false: there are no more. Every other turn runs backwards through the
  // thread blocks, which evens out the falling cost of the blocks of rows.
  __device__ __forceinline__ bool Take(const ForwardSm90Job& job, int turn) {
    using Shape = ForwardSm90Shape<kDim>;
    const ForwardOrder& order = job.order;
    const int wave = static_cast<int>(gridDim.x), place = static_cast<int>(blockIdx.x);
    const int64_t at = static_cast<int64_t>(turn) * wave + (turn % 2 == 0 ? place : wave - 1 - place);
    if (at >= static_cast<int64_t>(order.blocks) * order.heads) return false;
    const int begin = static_cast<int>(at) / (order.blocks * order.section) * order.section;
    const int section = min(order.section, order.heads - begin);
    const int inside = static_cast<int>(at) - begin * order.blocks;
    const int any_head = begin + inside % section;
    batch = any_head / static_cast<int>(job.a.heads);
    head = any_head % static_cast<int>(job.a.heads);
    first_row = (order.blocks - 1 - inside / section) * Shape::kRows;
    sequence = SequenceOf(job.a, 0);
    const int last_row = min(first_row + Shape::kRows, sequence.queries) - 1;
    tiles = (EndKey(job.a.mask, sequence, last_row) + Shape::kKeys - 1) / Shape::kKeys;
    return true;
  }
};

}  // namespace trimtab::cuda
#endif
