// The forward for sm_90a: which calls it takes, and what it is launched with.
#ifndef TRIMTAB_KERNELS_CUDA_FORWARD_SM90_H_
#define TRIMTAB_KERNELS_CUDA_FORWARD_SM90_H_

#include <cuda.h>

#include "kernels/cuda/job.h"

namespace trimtab::cuda {

// At head size 64 the softmax is most of the work and needs warps to hide its latencies: four consumers with narrow
// tiles. At 128 the products are: two, which take turns at them.
template <int kDim>
struct ForwardSm90Shape {
  static constexpr int kConsumers = kDim == 64 ? 4 : 2;  // warpgroups, of 64 query rows each
  static constexpr bool kTurns = kDim == 128;
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kKeys = kDim == 64 ? 64 : 128;
  static constexpr int kStages = kDim == 64 ? 4 : 2;  // of K and of V
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kConsumerRegisters = kDim == 64 ? 112 : 232, kProducerRegisters = kDim == 64 ? 32 : 40;
  static constexpr int kBlockColumns = 64;  // of a swizzled block in shared memory
  static constexpr int kBlocks = kDim / kBlockColumns;
  static constexpr int kBlockBytes = kKeys * kBlockColumns * 2;  // of a tile of keys
  static constexpr int kQueryBytes = 64 * kDim * 2;
  static constexpr int kTileBytes = kBlocks * kBlockBytes;
  // One block of ones behind the values: a product with it sums the rounded weights. Blocks of one tile lie at equal
  // distances, so all stages share it only where a tile is one block.
  static constexpr int kOnes = kBlocks == 1 ? 1 : kStages;
  static constexpr int kValueStride = kTileBytes + (kBlocks == 1 ? 0 : kBlockBytes);  // between stages
  static constexpr int kOutputs = kDim / 2 + 4;  // accumulators of a thread: O, and the sum of the rounded weights
  static constexpr int kBarriers = 2 * kConsumers + 4 * kStages;
  static constexpr int kSharedBytes =
      1024 + kConsumers * kQueryBytes + 2 * kStages * kTileBytes + kOnes * kBlockBytes + 8 * kBarriers + 8;
};

// Order of the blocks of query rows of all heads: heads in sections, so that the keys and values of those under way
// stay in the L2 cache, and in a section the blocks with the most keys first, so that the short ones fill the end.
struct ForwardOrder {
  int blocks;   // of query rows, a head
  int heads;    // heads of all sequences
  int section;  // heads
  bool pairs;   // instead: a head's blocks with the most and the fewest keys in turn, whose cost is the same for all
                // pairs
};

struct ForwardSm90Job {
  trimtab_cuda_attention a;
  CUtensorMap q, k, v;
  ForwardOrder order;
  int grid;                 // thread blocks; each takes several blocks of query rows in turn when there are fewer
  bool wide_out, wide_low;  // rows are in units of 16 bytes
};

// Fills in *job and returns true when a call is for the sm_90a kernel: its device is one, head size 64 or 128, dense,
// no left window limit, no softcap, at least one key, positive strides. Needs a checked `a`. Thread-safe.
bool PrepareForwardSm90(const trimtab_cuda_attention& a, ForwardSm90Job* job);

template <typename T, int kDim>
trimtab_kernel_status LaunchForwardSm90(const ForwardSm90Job& job, cudaStream_t stream);

}  // namespace trimtab::cuda
#endif
