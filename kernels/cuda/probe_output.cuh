// O of the probe's rows, exact to FP32: P V on the tensor cores with P in three terms of the 16-bit type.
#ifndef TRIMTAB_KERNELS_CUDA_PROBE_OUTPUT_CUH_
#define TRIMTAB_KERNELS_CUDA_PROBE_OUTPUT_CUH_

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/probe_scores.cuh"
#include "kernels/cuda/read.cuh"

namespace trimtab::cuda {

// Products of one warp's tiles with V, whose rows come through the warp's own shared memory, kStages tiles ahead.
template <typename T, int kDim>
struct Products {
  using Type = typename T::Type;
  static constexpr int kStages = kDim <= 64 ? 2 : 1;
  static constexpr int kPitch = kDim + 8;  // elements; rows of eight in different banks
  static constexpr int kTileBytes = kTileKeys * kPitch * 2;
  static constexpr int kBytes = kStages * kTileBytes;  // a warp

  const Type* v;
  int stride, keys;
  uint32_t shared;  // address of this warp's kBytes
  float o[kDim / 8][4] = {};

  __device__ Products(const ProbeArguments& p, const ProbeRows& rows, void* memory)
      : v(rows.At<Type>(p.v, rows.kv_head, rows.seq.k_begin, 0)),
        stride(p.v.row_stride),
        keys(rows.seq.keys),
        shared(static_cast<uint32_t>(__cvta_generic_to_shared(memory))) {}

  // Begins to fetch V of the warp's tile number `tile`, whose first key is `begin`; nothing from keys behind the last.
  __device__ void Fetch(int tile, int begin) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = lane; i < kTileKeys * kDim / 8; i += 32) {
      const int key = i / (kDim / 8), column = i % (kDim / 8) * 8;
      CopyAsync(shared + tile % kStages * kTileBytes + (key * kPitch + column) * 2,
                v + static_cast<int64_t>(begin + key) * stride + column, begin + key < keys);
    }
    CommitCopies();
  }

  // Adds weights x V of tile number `tile`, then fetches what `next` begins into its place. Weights are used up.
  __device__ void Add(int tile, float (&weight)[2][4], int next) {
    uint32_t term[3][4];
#pragma unroll
    for (int t = 0; t < 3; ++t)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& x = weight[j / 2][j % 2 * 2];
        float& y = weight[j / 2][j % 2 * 2 + 1];
        term[t][j] = T::Pack(x, y);
        x -= T::Low(term[t][j]);
        y -= T::High(term[t][j]);
      }
    WaitCopies<kStages - 1>();
    __syncwarp();
    const int lane = threadIdx.x % 32;
    const uint32_t at = shared + tile % kStages * kTileBytes + (lane % 16 * kPitch + lane / 16 * 8) * 2;
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t b[4];
      LoadMatrixTransposed(b, at + n * 16);
#pragma unroll
      for (int t = 2; t >= 0; --t) {
        Mma<T>(o[n], term[t], b[0], b[1]);
        Mma<T>(o[n + 1], term[t], b[2], b[3]);
      }
    }
    __syncwarp();
    Fetch(tile + kStages, next);
  }
};

// Floats between rows of a block's sum of products.
template <int kDim>
constexpr int kProductPitch = kDim + 8;

// Adds up the products of the block's warps in exact[kProbeRows][kProductPitch], one warp of a strip after the other.
template <int kDim, int kKeyLanes>
__device__ void SumOverWarps(const float (&o)[kDim / 8][4], int strip, int key_lane, float* exact) {
  const int lane = threadIdx.x % 32;
  for (int w = 0; w < kKeyLanes; ++w) {
    __syncthreads();
    if (w != key_lane) continue;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        auto* to = reinterpret_cast<float2*>(exact + (strip * kStripRows + lane / 4 + 8 * half) * kProductPitch<kDim> +
                                             n * 8 + lane % 4 * 2);
        float2 x = make_float2(o[n][2 * half], o[n][2 * half + 1]);
        if (w > 0) x.x += to->x, x.y += to->y;
        *to = x;
      }
  }
}

struct OutputErrors {
  double error, norm, residual;  // ||O - exact||^2, ||exact||^2, rowsum(dO (O - exact))
};

// By one warp: errors of row r, whose weights add up to `sum`, from the sums of products of all blocks of the cluster.
template <typename T, int kDim>
__device__ OutputErrors ErrorsOf(const ProbeArguments& p, const ProbeRows& rows, int r, float sum, float* exact) {
  using Type = typename T::Type;
  const auto* out = rows.At<Type>(p.out, rows.head, rows.seq.q_begin, rows.Row(r));
  const auto* grad = p.grad.data == nullptr ? nullptr : rows.At<Type>(p.grad, rows.head, rows.seq.q_begin, rows.Row(r));
  OutputErrors e{};
  for (int i = threadIdx.x % 32; i < kDim; i += 32) {
    float product = 0.0f;
#pragma unroll
    for (int b = 0; b < kMaxCluster; ++b) {
      if (b < ClusterSize()) product += *InBlock(exact + r * kProductPitch<kDim> + i, b);
    }
    const double x = static_cast<double>(product) / sum,
                 difference = static_cast<double>(static_cast<float>(out[i])) - x;
    e.error += difference * difference;
    e.norm += x * x;
    if (grad != nullptr) e.residual += static_cast<double>(static_cast<float>(grad[i])) * difference;
  }
  return {WarpSum(e.error), WarpSum(e.norm), WarpSum(e.residual)};
}

}  // namespace trimtab::cuda
#endif
