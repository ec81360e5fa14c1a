// The probe's kernel. A cluster takes 64 sampled rows of one (batch, head); its warps hold sixteen rows each and share
// the keys tile by tile, all over the cluster. Two exchanges: the rows' final maxima, then the sums against them.
#ifndef TRIMTAB_KERNELS_CUDA_PROBE_KERNEL_CUH_
#define TRIMTAB_KERNELS_CUDA_PROBE_KERNEL_CUH_

#include "kernels/cuda/probe_head.cuh"

namespace trimtab::cuda {

template <int kDim, bool kOutput>
struct ProbeShape {
  static constexpr int kKeyLanes = kOutput && kDim > 64 ? 2 : 4;  // warps of a block that share a strip's keys
  static constexpr int kTiles = 2;                                // of scores that a warp holds at a time
  static constexpr int kWarps = kStrips * kKeyLanes, kThreads = kWarps * 32;
};

// Dynamic shared memory: V's tiles, then the products, in one place.
template <typename T, int kDim>
constexpr size_t ProductBytes() {
  constexpr size_t kTiles = ProbeShape<kDim, true>::kWarps * Products<T, kDim>::kBytes;
  constexpr size_t kSums = kProbeRows * kProductPitch<kDim> * sizeof(float);
  return kTiles > kSums ? kTiles : kSums;
}

template <int kKeyLanes>
struct ProbeShared {
  float warp_max[kKeyLanes][kProbeRows], row_max[kProbeRows];
  float4 block_max[kProbeRows][kMaxCluster / 4];  // written by every block of the cluster
  uint32_t warp_sum[kKeyLanes][kRowFigures][kProbeRows];
  float weights[kMaxCluster][kProbeRows];                    // likewise: sums of the rows' weights
  uint32_t block_sum[kMaxCluster][kRowFigures][kProbeRows];  // of block 0, written by every block, as `errors`
  OutputErrors errors[kProbeRows];
  uint32_t sum[kRowFigures][kProbeRows];
  double field[kHeadFields][kProbeRows];
  uint64_t before[kHeadFields];             // the head's statistics
  uint64_t max_mail, sum_mail, error_mail;  // of block_max, block_sum, errors
};

template <typename T, int kDim, bool kOutput>
__global__ void __launch_bounds__(ProbeShape<kDim, kOutput>::kThreads)
    ProbeKernel(const __grid_constant__ ProbeArguments p) {
  using Shape = ProbeShape<kDim, kOutput>;
  constexpr int kKeyLanes = Shape::kKeyLanes, kThreads = Shape::kThreads;
  if (p.step != nullptr && *p.step % p.period != 0) return;
  __shared__ ProbeShared<kKeyLanes> shared;
  extern __shared__ __align__(16) unsigned char memory[];
  const int blocks = ClusterSize(), rank = ClusterRank();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int group = static_cast<int>(blockIdx.x) >> (__ffs(blocks) - 1);
  const ProbeRows rows(p, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y), group);
  if (threadIdx.x == Shape::kThreads - 32) {
    OpenMailbox(&shared.max_mail, blocks * kProbeRows * 4);
    OpenMailbox(&shared.sum_mail, rank == 0 ? blocks * kRowFigures * kProbeRows * 4 : 0);
    OpenMailbox(&shared.error_mail, rank == 0 && kOutput ? rows.count * static_cast<int>(sizeof(OutputErrors)) : 0);
  }
  ClusterArriveRelaxed();  // behind the matching wait all mailboxes are open
  const int key_lane = static_cast<int>(threadIdx.x / (32 * kStrips));
  // Strips see unequal numbers of keys: one of each for a scheduler.
  const int strip_index = static_cast<int>((threadIdx.x / 32 + threadIdx.x / (32 * kStrips)) % kStrips);
  const Strip<T, kDim, Shape::kTiles> strip(p, rows, strip_index);
  const int stride = blocks * kKeyLanes * kTileKeys;
  const int begin = strip.begin_all + (rank * kKeyLanes + key_lane) * kTileKeys;
  const bool again = begin + Shape::kTiles * stride < strip.end_all;  // more tiles than a warp holds
  const int top_row = strip_index * kStripRows + lane / 4;            // the lane's rows are this and 8 behind

  Products<T, kDim> products(p, rows, memory + warp * Products<T, kDim>::kBytes);
  if constexpr (kOutput) {
#pragma unroll
    for (int t = 0; t < products.kStages; ++t) products.Fetch(t, begin + t * stride);
  }

  float s[Shape::kTiles][2][4], max[2] = {-INFINITY, -INFINITY};
  RowPart part[2];
  // First the maxima, then all figures against them; one body, since code that is new to a multiprocessor is slow.
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    int tile = 0;
#pragma unroll 1
    for (int first = begin; first < strip.end_all; first += Shape::kTiles * stride) {
      if (pass == 0 || again) {
        strip.Score(first, stride, s);
#pragma unroll
        for (int t = 0; t < Shape::kTiles; ++t) {
          if (first + t * stride < strip.end_all) strip.Look(pass == 1, first + t * stride, s[t], max, part);
        }
      }
      if (pass == 0) continue;
#pragma unroll
      for (int t = 0; t < Shape::kTiles; ++t, ++tile) {
        const int key = first + t * stride;
        if (key >= strip.end_all) break;
        AddWeights<T>(max, s[t], part);
        if (key == 0 && lane % 4 == 0) part[0].sink = s[t][0][0], part[1].sink = s[t][0][2];
        if constexpr (kOutput) products.Add(tile, s[t], key + products.kStages * stride);
      }
    }
    if (pass == 1) break;
    if (rank == 0 && threadIdx.x < kHeadFields) {
      CopyAsync8(&shared.before[threadIdx.x], reinterpret_cast<const uint64_t*>(p.stats + rows.head) + threadIdx.x);
    }
#pragma unroll
    for (unsigned i = threadIdx.x; i < kProbeRows * kMaxCluster; i += kThreads) {  // what no block will send
      if (static_cast<int>(i % kMaxCluster) >= blocks) reinterpret_cast<float*>(shared.block_max)[i] = -INFINITY;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      for (int i = 1; i < 4; i *= 2) max[half] = fmaxf(max[half], __shfl_xor_sync(~0u, max[half], i));
      if (lane % 4 == 0) shared.warp_max[key_lane][top_row + 8 * half] = max[half];
    }
    __syncthreads();
    ClusterWait();
    for (int i = threadIdx.x; i < kProbeRows * blocks; i += kThreads) {
      const int r = i % kProbeRows;
      float top = shared.warp_max[0][r];
#pragma unroll
      for (int w = 1; w < kKeyLanes; ++w) top = fmaxf(top, shared.warp_max[w][r]);
      Send(&reinterpret_cast<float*>(shared.block_max[r])[rank], &shared.max_mail, i / kProbeRows, top);
    }
    Receive(&shared.max_mail);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int b = 0; b < kMaxCluster / 4; ++b) {
        const float4 x = shared.block_max[top_row + 8 * half][b];
        max[half] = fmaxf(max[half], fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)));
      }
  }
  if (lane % 4 == 0) shared.row_max[top_row] = max[0], shared.row_max[top_row + 8] = max[1];

  uint32_t word[kRowFigures];
  SumOverQuad(part, word);
  if (lane % 4 < 2) {
#pragma unroll
    for (int f = 0; f < kRowFigures; ++f) {
      shared.warp_sum[key_lane][f][top_row + lane % 4 * 8] = word[f];
    }
  }
  auto* exact = reinterpret_cast<float*>(memory);
  if constexpr (kOutput) {
    WaitCopies<0>();
    SumOverWarps<kDim, kKeyLanes>(products.o, strip_index, key_lane, exact);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRowFigures * kProbeRows; i += kThreads) {
    const int f = i / kProbeRows, r = i % kProbeRows;
    uint32_t x = shared.warp_sum[0][f][r];
#pragma unroll
    for (int w = 1; w < kKeyLanes; ++w) x = Combine(f, x, shared.warp_sum[w][f][r]);
    Send(&shared.block_sum[rank][f][r], &shared.sum_mail, 0, x);
    if constexpr (kOutput) {
      for (int b = 0; f == kSum && b < blocks; ++b) *InBlock(&shared.weights[rank][r], b) = __uint_as_float(x);
    }
  }
  if constexpr (kOutput) {  // every block a share of the rows, from the products of all
    ClusterArrive();
    ClusterWait();
    for (int r = rank + warp * blocks; r < rows.count; r += blocks * Shape::kWarps) {
      float weights = 0.0f;
      for (int b = 0; b < blocks; ++b) weights += shared.weights[b][r];
      const OutputErrors e = ErrorsOf<T, kDim>(p, rows, r, weights, exact);
      if (lane != 0) continue;
      Send(&shared.errors[r].error, &shared.error_mail, 0, e.error);
      Send(&shared.errors[r].norm, &shared.error_mail, 0, e.norm);
      Send(&shared.errors[r].residual, &shared.error_mail, 0, e.residual);
    }
    ClusterArriveRelaxed();  // this block has read the others
    ClusterWait();
  }
  if (rank != 0) return;
  Receive(&shared.sum_mail);
  if constexpr (kOutput) Receive(&shared.error_mail);
  for (int i = threadIdx.x; i < kRowFigures * kProbeRows; i += kThreads) {
    const int f = i / kProbeRows, r = i % kProbeRows;
    uint32_t x = shared.block_sum[0][f][r];
#pragma unroll
    for (int b = 1; b < kMaxCluster; ++b) {
      if (b < blocks) x = Combine(f, x, shared.block_sum[b][f][r]);
    }
    shared.sum[f][r] = x;
  }
  CommitCopies();
  WaitCopies<0>();
  __syncthreads();
  if (const int r = threadIdx.x; r < kProbeRows) {
    FieldsOfRow(p, rows, r, shared.sum, shared.row_max[r], kOutput ? &shared.errors[r] : nullptr, shared.field);
  }
  __syncthreads();
  SumHead<Shape::kWarps>(shared.field, shared.before, p, static_cast<int>(blockIdx.z) * p.groups + group, rows.head);
}

}  // namespace trimtab::cuda
#endif
