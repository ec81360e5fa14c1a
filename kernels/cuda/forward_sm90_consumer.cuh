// The multiplying side of the sm_90a forward: products and softmax of 64 query rows a warpgroup.
#ifndef TRIMTAB_KERNELS_CUDA_FORWARD_SM90_CONSUMER_CUH_
#define TRIMTAB_KERNELS_CUDA_FORWARD_SM90_CONSUMER_CUH_

#include "kernels/cuda/forward_sm90_shared.cuh"
#include "kernels/cuda/forward_sm90_store.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace trimtab::cuda {

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

}  // namespace trimtab::cuda
#endif
