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

// Addresses of the queries of each consumer, of the rings of keys and values, and of their barriers: `full` once the
// copy has arrived, `empty` once every warp that reads has.
template <int kDim>
class ForwardSm90Shared {
 public:
  using Shape = ForwardSm90Shape<kDim>;
  __device__ explicit ForwardSm90Shared(unsigned char* memory)
      : base_((SharedAddress(memory) + 1023) & ~1023u), memory_(memory + (base_ - SharedAddress(memory))) {}

  __device__ uint32_t Q(int consumer) const { return base_ + consumer * Shape::kQueryBytes; }
  __device__ uint32_t K() const { return base_ + Shape::kConsumers * Shape::kQueryBytes; }
  __device__ uint32_t V() const { return K() + Shape::kStages * Shape::kTileBytes; }
  __device__ uint32_t Ones(int stage) const {
    return V() +
           (Shape::kOnes == 1 ? Shape::kStages * Shape::kTileBytes : stage * Shape::kValueStride + Shape::kTileBytes);
  }
  __device__ uint32_t QFull(int consumer) const { return Barriers() + 8 * consumer; }
  __device__ uint32_t QEmpty(int consumer) const { return Barriers() + 8 * (Shape::kConsumers + consumer); }
  __device__ uint32_t KFull() const { return Barriers() + 8 * (2 * Shape::kConsumers); }
  __device__ uint32_t KEmpty() const { return KFull() + 8 * Shape::kStages; }
  __device__ uint32_t VFull() const { return KEmpty() + 8 * Shape::kStages; }
  __device__ uint32_t VEmpty() const { return VFull() + 8 * Shape::kStages; }
  __device__ int* Kind() const { return reinterpret_cast<int*>(memory_ + (Barriers() - base_) + 8 * Shape::kBarriers); }

  // Fills the columns of ones, by all threads, before a __syncthreads(). `pair`: two ones.
  __device__ void FillOnes(uint32_t pair) const {
    for (int i = threadIdx.x * 16; i < Shape::kOnes * Shape::kBlockBytes; i += Shape::kThreads * 16) {
      const uint32_t ones = Ones(i / Shape::kBlockBytes) - base_;
      *reinterpret_cast<uint4*>(memory_ + ones + i % Shape::kBlockBytes) = make_uint4(pair, pair, pair, pair);
    }
    PublishShared();
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
    PublishShared();
  }

 private:
  __device__ uint32_t Barriers() const {
    return V() + Shape::kStages * Shape::kTileBytes + Shape::kOnes * Shape::kBlockBytes;
  }

  uint32_t base_;  // in the shared window
  unsigned char* memory_;
};

// A block of query rows of one head, and the tiles of keys that it sees.
template <int kDim>
class RowBlock {
 public:
  using Shape = ForwardSm90Shape<kDim>;

  // This thread block's `turn`-th block of rows; false: there are no more. (The callers count: a counter in here keeps
  // the compiler from seeing that loops over tiles are the same for a whole warp, and descriptors leave the uniform
  // registers.)
  __device__ __forceinline__ bool Take(const ForwardSm90Job& job, int turn) {
    const ForwardOrder& order = job.order;
    const int wave = static_cast<int>(gridDim.x), place = static_cast<int>(blockIdx.x);
    int any_head, rank;  // rank 0: the block with the most keys
    if (order.pairs) {
      const int pairs = (order.blocks + 1) / 2, pair = turn / 2 * wave + place;
      any_head = pair / pairs;
      rank = pair % pairs;
      // The middle block has no partner: rank -1 is behind the last row.
      if (turn % 2 == 1) rank = 2 * rank + 1 == order.blocks ? -1 : order.blocks - 1 - rank;
      if (any_head >= order.heads) return false;
    } else {
      const int at = turn * wave + (turn % 2 == 0 ? place : wave - 1 - place);
      const int begin = at / (order.blocks * order.section) * order.section;
      if (begin >= order.heads) return false;
      const int section = min(order.section, order.heads - begin);
      const int inside = at - begin * order.blocks;
      any_head = begin + inside % section;
      rank = inside / section;
      if (rank >= order.blocks) return false;
    }
    const int heads = static_cast<int>(job.a.heads);
    batch = any_head / heads;
    head = any_head % heads;
    first_row = (order.blocks - 1 - rank) * Shape::kRows;
    tiles = Tiles(job, first_row, Shape::kRows);
    return true;
  }

  // Tiles that some of `count` rows from `row` on sees.
  __device__ __forceinline__ static int Tiles(const ForwardSm90Job& job, int row, int count) {
    const Sequence sequence = SequenceOf(job.a, 0);
    if (row >= sequence.queries) return 0;
    const int last = min(row + count, sequence.queries) - 1;
    return (EndKey(job.a.mask, sequence, last) + Shape::kKeys - 1) / Shape::kKeys;
  }

  int batch, head, first_row, tiles;
};

}  // namespace trimtab::cuda
#endif
