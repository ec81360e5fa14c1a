// Attention forward on wgmma and bulk tensor copies, sm_90a.
//
// One warpgroup loads: Q once a block of rows, K and V in tiles through two rings. Each of the others owns 64 query
// rows and walks the visible tiles from the last to the first, so that only its first ones need a mask. The scores of a
// tile and the values of the tile before are multiplied back to back, and the softmax of the scores runs under the
// second product and under the other warpgroups' products. Thread blocks take blocks of query rows in turn; loads run
// ahead into the next. docs/numerics.md has the rules, docs/kernel-notes.md the figures behind the shapes.
#ifndef TRIMTAB_KERNELS_CUDA_FORWARD_SM90_CUH_
#define TRIMTAB_KERNELS_CUDA_FORWARD_SM90_CUH_

#include "kernels/cuda/forward_sm90_shared.cuh"
#include "kernels/cuda/forward_sm90_store.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace trimtab::cuda {

// One thread: for each block of rows its queries and the tiles of keys, each tile of values behind the keys of the
// next. The published rule passes over the keys twice before.
template <int kDim>
__device__ __forceinline__ void Produce(const ForwardSm90Job& job, const ForwardSm90Shared<kDim>& shared, bool paper) {
  using Shape = ForwardSm90Shape<kDim>;
  const trimtab_cuda_attention& a = job.a;
  const int group = static_cast<int>(a.heads / a.kv_heads);
  Ring<Shape::kStages> k_ring, v_ring;
  uint32_t blocks_taken = 0;
  RowBlock<kDim> block;
  for (int turn = 0; block.Take(job, turn); ++turn) {
    const int kv_head = block.head / group;
    const auto load = [&](const CUtensorMap* map, Ring<Shape::kStages>& ring, uint32_t tiles, int stride, uint32_t full,
                          uint32_t empty, int tile) {
      WaitBarrier(empty + 8 * ring.Stage(), ring.Parity() ^ 1);
      ArriveExpecting(full + 8 * ring.Stage(), Shape::kTileBytes);
#pragma unroll
      for (int i = 0; i < Shape::kBlocks; ++i) {
        LoadBox(tiles + ring.Stage() * stride + i * Shape::kBlockBytes, map, full + 8 * ring.Stage(), i * 64,
                tile * Shape::kKeys, kv_head, block.batch);
      }
      ring.Next();
    };
    const int first_pass = paper ? 0 : 2;
    for (int pass = first_pass; pass < 3; ++pass) {
      for (int tile = block.tiles - 1; tile >= 0; --tile) {
        load(&job.k, k_ring, shared.K(), Shape::kTileBytes, shared.KFull(), shared.KEmpty(), tile);
        if (pass == first_pass && tile == block.tiles - 1) {
          for (int w = 0; w < Shape::kConsumers; ++w) {
            WaitBarrier(shared.QEmpty(w), (blocks_taken & 1) ^ 1);
            ArriveExpecting(shared.QFull(w), Shape::kQueryBytes);
            for (int i = 0; i < Shape::kBlocks; ++i) {
              LoadBox(shared.Q(w) + i * 64 * 128, &job.q, shared.QFull(w), i * 64, block.first_row + 64 * w, block.head,
                      block.batch);
            }
          }
          ++blocks_taken;
        }
        if (pass == 2 && tile < block.tiles - 1) {
          load(&job.v, v_ring, shared.V(), Shape::kValueStride, shared.VFull(), shared.VEmpty(), tile + 1);
        }
      }
    }
    if (block.tiles > 0) load(&job.v, v_ring, shared.V(), Shape::kValueStride, shared.VFull(), shared.VEmpty(), 0);
  }
}

// A warpgroup with 64 query rows.
template <typename T, int kDim>
struct Consumer {
  using Shape = ForwardSm90Shape<kDim>;
  static constexpr int kKeys = Shape::kKeys;

  const ForwardSm90Job& job;
  const ForwardSm90Shared<kDim>& shared;
  const SoftmaxRule rule;
  const int w;  // which of the consumers
  RowBlock<kDim> block;
  int tiles;  // of the block's, those that this warpgroup's rows see
  int row;    // this thread's first
  Ring<Shape::kStages> k_ring, v_ring;
  uint32_t blocks_taken = 0;
  OnlineSoftmax<T, kKeys> softmax;
  float s[kKeys / 2], o[Shape::kOutputs];
  uint32_t p[kKeys / 4];

  __device__ Consumer(const ForwardSm90Job& job, const ForwardSm90Shared<kDim>& shared, int kind, int w)
      : job(job), shared(shared), rule(job.a, kind), w(w) {}

  // All reads of a buffer are done in this warp.
  __device__ __forceinline__ static void Release(uint32_t empty) {
    if (threadIdx.x % 32 == 0) Arrive(empty);
  }

  // Issues s = Q K^T for the next tile of keys.
  __device__ __forceinline__ void IssueScores() {
    const uint64_t q = RowDescriptor(shared.Q(w)), k = RowDescriptor(shared.K() + k_ring.Stage() * Shape::kTileBytes);
    BeginProducts();
    ProductOfRows<T, false>(s, q, k);
#pragma unroll
    for (int d = 1; d < kDim / 16; ++d) {
      const uint64_t step = d % 4 * kRowStep;
      ProductOfRows<T, true>(s, q + step + d / 4 * (64 * 128 >> 4), k + step + d / 4 * (Shape::kBlockBytes >> 4));
    }
    CommitProducts();
  }
  // Issues o += P V for the next tile of values.
  __device__ __forceinline__ void IssueValues() {
    const uint32_t tile = shared.V() + v_ring.Stage() * Shape::kValueStride;
    const uint64_t v = ColumnDescriptor(tile, Shape::kBlocks == 1 ? shared.Ones(0) - tile : Shape::kBlockBytes);
    BeginProducts();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      ProductOfColumns<T>(o, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3], v + k * kColumnStep);
    }
    CommitProducts();
  }

  __device__ __forceinline__ void WaitK() const { WaitBarrier(shared.KFull() + 8 * k_ring.Stage(), k_ring.Parity()); }
  __device__ __forceinline__ void WaitV() const { WaitBarrier(shared.VFull() + 8 * v_ring.Stage(), v_ring.Parity()); }
  __device__ __forceinline__ void ReleaseK() {
    Release(shared.KEmpty() + 8 * k_ring.Stage());
    k_ring.Next();
  }
  __device__ __forceinline__ void ReleaseV() {
    Release(shared.VEmpty() + 8 * v_ring.Stage());
    v_ring.Next();
  }

  // Scores of one tile with nothing else under way.
  __device__ __forceinline__ void Scores(int tile) {
    WaitK();
    Pin(s);
    IssueScores();
    WaitProducts<0>();
    Pin(s);
    ReleaseK();
    Mask(tile);
  }

  __device__ __forceinline__ void Mask(int tile) {
    const Sequence sequence = SequenceOf(job.a, 0);
    const int visible[2] = {EndKey(job.a.mask, sequence, row) - tile * kKeys,
                            EndKey(job.a.mask, sequence, row + 8) - tile * kKeys};
    softmax.Mask(s, visible);
  }

  __device__ __forceinline__ void RescaleOutput() {
    if (__all_sync(~0u, softmax.rescale[0] == 1.0f && softmax.rescale[1] == 1.0f)) return;
#pragma unroll
    for (int i = 0; i < Shape::kOutputs; ++i) o[i] *= softmax.rescale[i / 2 % 2];
  }

  // The published rule's maximum of each row: the final maximum, then the number of scores near it.
  __device__ __forceinline__ void FindPaperMaximum() {
    const float unit = kLog2E / rule.scale_log2, tolerance = kPaperTolerance * unit;
    float max[2] = {-INFINITY, -INFINITY}, count[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      if constexpr (!Shape::kTurns) PassTiles(false);
      for (int tile = tiles - 1; tile >= 0; --tile) {
        Scores(tile);
        float tile_max[2];
        if (pass == 0) softmax.TileMax(s, tile_max);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (pass == 0) {
            max[half] = fmaxf(max[half], tile_max[half]);
            continue;
          }
          const float limit = max[half] - tolerance;
#pragma unroll
          for (int i = 0; i < kKeys / 4; ++i) count[half] += s[i / 2 * 4 + half * 2 + i % 2] >= limit ? 1.0f : 0.0f;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      softmax.top[half] = PaperMaximum(max[half], QuadSum(count[half]), job.a.beta, unit) * rule.scale_log2;
    }
  }

  // Scores of `tile` to weights, and the values of the tile before with their weights into O.
  template <bool kMask>
  __device__ __forceinline__ void Step(int tile) {
    WaitK();
    if constexpr (Shape::kTurns) NamedWait(1 + w, 256);
    Pin(s);
    IssueScores();
    RescaleOutput();
    WaitV();
    Pin(o);
    IssueValues();
    if constexpr (Shape::kTurns) NamedArrive(1 + (w + 1) % Shape::kConsumers, 256);
    WaitProducts<1>();
    Pin(s);
    ReleaseK();
    if constexpr (kMask) Mask(tile);
    softmax.Advance(s, rule);
    softmax.Weigh(s, rule);
    WaitProducts<0>();
    Pin(o);
    Pin(p);
    ReleaseV();
    softmax.Round(p, s);
  }

  __device__ __forceinline__ void Run() {
    if (Shape::kTurns && w == Shape::kConsumers - 1) NamedArrive(1, 256);
    for (int turn = 0; block.Take(job, turn); ++turn) {
      const int first_row = block.first_row + 64 * w;
      row = first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
      // Rows that see nothing take one tile all the same, masked whole.
      tiles = Shape::kTurns ? block.tiles : max(RowBlock<kDim>::Tiles(job, first_row, 64), 1);
      softmax.Reset();
#pragma unroll
      for (int i = 0; i < Shape::kOutputs; ++i) o[i] = 0.0f;
      if (block.tiles > 0) {
        WaitBarrier(shared.QFull(w), blocks_taken++ & 1);
        if (rule.paper) FindPaperMaximum();
        if constexpr (!Shape::kTurns) PassTiles(true);
        AllTiles(first_row);
      }
      StoreRows<T, kDim>(job, rule, softmax, o, block.batch, block.head, row);
    }
    if (Shape::kTurns && w == 0) NamedWait(1, 256);  // the last turn, which nobody takes
  }

  // Gives back the tiles that only rows of later consumers see.
  __device__ __forceinline__ void PassTiles(bool values) {
    for (int tile = block.tiles; tile > tiles; --tile) {
      WaitK();
      ReleaseK();
      if (!values) continue;
      WaitV();
      ReleaseV();
    }
  }

  __device__ __forceinline__ void AllTiles(int first_row) {
    // Tiles from here on are not whole for this warpgroup's first row.
    const int first_masked = EndKey(job.a.mask, SequenceOf(job.a, 0), first_row) / kKeys;
    int tile = tiles - 1;
    Scores(tile);
    softmax.Advance(s, rule);
    softmax.Weigh(s, rule);
    softmax.Round(p, s);
    for (--tile; tile >= first_masked && tile >= 0; --tile) Step<true>(tile);
    for (; tile >= 0; --tile) Step<false>(tile);
    Release(shared.QEmpty(w));
    RescaleOutput();
    WaitV();
    Pin(o);
    IssueValues();
    WaitProducts<0>();
    Pin(o);
    Pin(p);
    ReleaseV();
  }
};

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
