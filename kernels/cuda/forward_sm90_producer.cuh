// The loading side of the sm_90a forward.
#ifndef TRIMTAB_KERNELS_CUDA_FORWARD_SM90_PRODUCER_CUH_
#define TRIMTAB_KERNELS_CUDA_FORWARD_SM90_PRODUCER_CUH_

#include "kernels/cuda/forward_sm90_shared.cuh"

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

}  // namespace trimtab::cuda
#endif
