// Attention forward on mma.sync: online softmax over tiles of keys, each warp owning whole query rows.
//
// The three kinds differ in the weights' constant, in the sum that normalises O and, for the paper's rule, in a first pass
// that finds each row's final maximum and how often it is reached. docs/numerics.md says why.
#ifndef TRIMTAB_KERNELS_CUDA_FORWARD_CUH_
#define TRIMTAB_KERNELS_CUDA_FORWARD_CUH_

#include "kernels/cuda/forward_rows.cuh"
#include "kernels/cuda/forward_sm90.h"

namespace trimtab::cuda {

template <int kDim>
struct ForwardShape {
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int kWarps = 4;
  static constexpr int kRows = 16 * kRowTiles * kWarps;
  static constexpr int kKeys = kDim <= 128 ? 64 : 32;
  static constexpr int kPitch = kDim * 2 + 16;  // bytes; eight rows never share a bank group
  static constexpr int kBlocks = kDim == 64 ? 3 : (kDim == 256 ? 1 : 2);  // a multiprocessor, by registers
  static constexpr int kQueryBytes = kRows * kPitch;
  static constexpr int kTileBytes = kKeys * kPitch;
  static constexpr int kSharedBytes = kQueryBytes + 4 * kTileBytes;
};

template <typename T, int kDim>
struct ForwardBlock {
  using Shape = ForwardShape<kDim>;
  static constexpr int kRowTiles = Shape::kRowTiles, kPitch = Shape::kPitch, kKeyTiles = Shape::kKeys / 8;

  // Rows [begin, begin + kCount) of a tensor into shared memory; rows from `end` on become zeros.
  template <int kCount>
  __device__ static void Load(uint32_t shared, const typename T::Type* base, int64_t stride, int begin, int end) {
    constexpr int kChunks = kDim / 8;
    for (int i = threadIdx.x; i < kCount * kChunks; i += Shape::kWarps * 32) {
      const int row = i / kChunks, chunk = i % kChunks;
      const bool valid = begin + row < end;
      CopyAsync(shared + row * kPitch + chunk * 16, base + (valid ? (begin + row) * stride : 0) + chunk * 8, valid);
    }
  }

  // s = Q K^T of this warp's rows with one tile of keys.
  __device__ static void Scores(float (&s)[kRowTiles][kKeyTiles][4], uint32_t q, uint32_t k) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t q_lane = q + (warp * kRowTiles * 16 + lane % 16) * kPitch + lane / 16 * 16;
    const uint32_t k_lane = k + (lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) LoadMatrix(a[m], q_lane + m * 16 * kPitch + d * 32);
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];
        LoadMatrix(b, k_lane + n * 8 * kPitch + d * 32);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          Mma<T>(s[m][n], a[m], b[0], b[1]);
          Mma<T>(s[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ static void Values(float (&o)[kRowTiles][kDim / 8][4], const uint32_t (&p)[kRowTiles][kKeyTiles][2],
                                uint32_t v) {
    const int lane = threadIdx.x % 32;
    const uint32_t v_lane = v + lane % 16 * kPitch + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < kKeyTiles; k += 2) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        a[m][0] = p[m][k][0];
        a[m][1] = p[m][k][1];
        a[m][2] = p[m][k + 1][0];
        a[m][3] = p[m][k + 1][1];
      }
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 2) {
        uint32_t b[4];
        LoadMatrixTransposed(b, v_lane + k * 8 * kPitch + n * 16);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          Mma<T>(o[m][n], a[m], b[0], b[1]);
          Mma<T>(o[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(ForwardShape<kDim>::kWarps * 32, ForwardShape<kDim>::kBlocks)
    ForwardKernel(const __grid_constant__ trimtab_cuda_attention a) {
  using Block = ForwardBlock<T, kDim>;
  using Shape = ForwardShape<kDim>;
  using Type = typename T::Type;
  constexpr int M = Shape::kRowTiles, N = Block::kKeyTiles;
  extern __shared__ __align__(16) unsigned char memory[];
  const uint32_t q_shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const uint32_t k_shared = q_shared + Shape::kQueryBytes, v_shared = k_shared + 2 * Shape::kTileBytes;
  const int batch = blockIdx.z, head = blockIdx.y;
  const Sequence seq = SequenceOf(a, batch);
  // The longest rows first, so that the short ones fill the end.
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::kRows;
  if (first_row >= seq.queries) return;
  const int last_row = min(first_row + Shape::kRows, seq.queries) - 1;
  const bool packed = a.mask.cu_seqlens_q != nullptr;
  const int kv_head = head / static_cast<int>(a.heads / a.kv_heads);
  const Type* q = static_cast<const Type*>(a.q.data) + Offset(a.q, packed, batch, head, seq.q_begin);
  const Type* k = static_cast<const Type*>(a.k.data) + Offset(a.k, packed, batch, kv_head, seq.k_begin);
  const Type* v = static_cast<const Type*>(a.v.data) + Offset(a.v, packed, batch, kv_head, seq.k_begin);
  const int kind = a.kind != nullptr ? *a.kind : TRIMTAB_ATTENTION_STABILIZED;
  const bool stabilized = kind == TRIMTAB_ATTENTION_STABILIZED, paper = kind == TRIMTAB_ATTENTION_PAPER;
  const float log2_shift = stabilized ? kLog2Shift : 0.0f;
  const bool capped = a.softcap > 0.0f;
  const float scale_log2 = capped ? kLog2E : a.scale * kLog2E;  // of what Mask() leaves in s

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int my_row = first_row + warp * 16 * M + lane / 4;  // + 16 m + 8 half
  const int first_tile = FirstKey(a.mask, seq, first_row) / Shape::kKeys;
  const int end_key = EndKey(a.mask, seq, last_row);
  const int end_tile = (end_key + Shape::kKeys - 1) / Shape::kKeys;
  const int all_first = FirstKey(a.mask, seq, last_row), all_end = EndKey(a.mask, seq, first_row);

  float s[M][N][4];
  const auto mask = [&](int tile) {
    const int begin = tile * Shape::kKeys;
    if (capped) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) s[m][n][i] = a.softcap * tanhf(s[m][n][i] * a.scale / a.softcap);
    }
    if (begin >= all_first && begin + Shape::kKeys <= all_end) return;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = my_row + 16 * m + 8 * half;
        const int first = FirstKey(a.mask, seq, row), end = EndKey(a.mask, seq, row);
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int key = begin + n * 8 + lane % 4 * 2 + i;
            if (key < first || key >= end) s[m][n][half * 2 + i] = -INFINITY;
          }
      }
  };

  float max[M][2], sum_plain[M][2], sum_round[M][2], o[M][kDim / 8][4];
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[m][half] = -INFINITY;
      sum_plain[m][half] = sum_round[m][half] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0.0f;
  }

  Block::template Load<Shape::kRows>(q_shared, q, a.q.stride[2], first_row, seq.queries);
  if (paper) {
    // Final maximum, then the number of scores within 1e-3 of it; the shift that the rule makes of them goes into `max`.
    for (int pass = 0; pass < 2; ++pass) {
      for (int tile = first_tile; tile < end_tile; ++tile) {
        Block::template Load<Shape::kKeys>(k_shared, k, a.k.stride[2], tile * Shape::kKeys, seq.keys);
        CommitCopies();
        WaitCopies<0>();
        __syncthreads();
        Block::Scores(s, q_shared, k_shared);
        mask(tile);
        __syncthreads();
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float tolerance = kPaperTolerance * kLog2E / scale_log2;
              if (pass == 0) {
                max[m][i / 2] = fmaxf(max[m][i / 2], s[m][n][i]);
              } else {
                sum_plain[m][i / 2] += s[m][n][i] >= max[m][i / 2] - tolerance ? 1.0f : 0.0f;
              }
            }
      }
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& r = max[m][half];
          if (pass == 0) {
            r = QuadMax(r);
          } else {
            r = PaperMaximum(r, QuadSum(sum_plain[m][half]), a.beta, kLog2E / scale_log2);
            sum_plain[m][half] = 0.0f;
          }
        }
    }
  }

  if (first_tile < end_tile) {
    Block::template Load<Shape::kKeys>(k_shared, k, a.k.stride[2], first_tile * Shape::kKeys, seq.keys);
    CommitCopies();
    Block::template Load<Shape::kKeys>(v_shared, v, a.v.stride[2], first_tile * Shape::kKeys, seq.keys);
  }
  CommitCopies();
  for (int tile = first_tile; tile < end_tile; ++tile) {
    const int stage = (tile - first_tile) % 2;
    const uint32_t k_tile = k_shared + stage * Shape::kTileBytes, v_tile = v_shared + stage * Shape::kTileBytes;
    WaitCopies<1>();
    __syncthreads();
    // All warps are through with the other stage.
    if (tile + 1 < end_tile) {
      Block::template Load<Shape::kKeys>(k_shared + (1 - stage) * Shape::kTileBytes, k, a.k.stride[2],
                                         (tile + 1) * Shape::kKeys, seq.keys);
    }
    CommitCopies();
    Block::Scores(s, q_shared, k_tile);
    mask(tile);
    uint32_t p[M][N][2];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float next = max[m][half];
        if (!paper) {
#pragma unroll
          for (int n = 0; n < N; ++n) next = fmaxf(next, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
          next = QuadMax(next);
        }
        const float shift = next == -INFINITY ? 0.0f : next * scale_log2;
        if (!paper) {
          const float rescale = Exp2(max[m][half] * scale_log2 - shift);
          max[m][half] = next;
          sum_plain[m][half] *= rescale;
          sum_round[m][half] *= rescale;
#pragma unroll
          for (int n = 0; n < kDim / 8; ++n) {
            o[m][n][half * 2] *= rescale;
            o[m][n][half * 2 + 1] *= rescale;
          }
        }
        const float bias = log2_shift - shift;
        float plain = 0.0f, rounded = 0.0f;
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const float p0 = Exp2(fmaf(s[m][n][half * 2], scale_log2, bias));
          const float p1 = Exp2(fmaf(s[m][n][half * 2 + 1], scale_log2, bias));
          p[m][n][half] = T::Pack(p0, p1);
          plain += p0 + p1;
          rounded += T::Low(p[m][n][half]) + T::High(p[m][n][half]);
        }
        sum_plain[m][half] += plain;
        sum_round[m][half] += rounded;
      }
    WaitCopies<1>();
    __syncthreads();
    if (tile + 1 < end_tile) {
      Block::template Load<Shape::kKeys>(v_shared + (1 - stage) * Shape::kTileBytes, v, a.v.stride[2],
                                         (tile + 1) * Shape::kKeys, seq.keys);
    }
    CommitCopies();
    Block::Values(o, p, v_tile);
  }
  WaitCopies<0>();

  Type* out = static_cast<Type*>(a.out.data) + Offset(a.out, packed, batch, head, seq.q_begin);
  Type* low = a.out_low.data == nullptr
                  ? nullptr
                  : static_cast<Type*>(a.out_low.data) + Offset(a.out_low, packed, batch, head, seq.q_begin);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = my_row + 16 * m + 8 * half;
      const float plain = QuadSum(sum_plain[m][half]), rounded = QuadSum(sum_round[m][half]);
      if (row >= seq.queries) continue;
      const float total = stabilized ? rounded : plain;
      const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
      if (a.lse.data != nullptr && lane % 4 == 0) {
        const float lse = LogSumExp(max[m][half] * scale_log2, plain, log2_shift, a.empty_lse);
        static_cast<float*>(a.lse.data)[Offset(a.lse, packed, batch, head, seq.q_begin + row)] = lse;
      }
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        const float x = total == 0.0f ? 0.0f : o[m][n][half * 2] * inverse;
        const float y = total == 0.0f ? 0.0f : o[m][n][half * 2 + 1] * inverse;
        const uint32_t pair = T::Pack(x, y);
        *reinterpret_cast<uint32_t*>(out + row * a.out.stride[2] + column) = pair;
        if (low != nullptr) {
          *reinterpret_cast<uint32_t*>(low + row * a.out_low.stride[2] + column) =
              T::Pack(x - T::Low(pair), y - T::High(pair));
        }
      }
    }
}

// The choice of the kernel: on a device of compute capability 9.0 most dense calls of head size 64 and 128 have their own.
template <typename T, int kDim>
trimtab_kernel_status LaunchForward(const trimtab_cuda_attention& a, cudaStream_t stream) {
  if constexpr (kDim == 64 || kDim == 128) {
    if (ForwardSm90Job job; PrepareForwardSm90(a, &job)) return LaunchForwardSm90<T, kDim>(job, stream);
  }
  using Shape = ForwardShape<kDim>;
  const auto kernel = ForwardKernel<T, kDim>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes) != cudaSuccess) {
    return Launched();
  }
  const dim3 grid(static_cast<unsigned>((a.queries + Shape::kRows - 1) / Shape::kRows),
                  static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch));
  kernel<<<grid, Shape::kWarps * 32, Shape::kSharedBytes, stream>>>(a);
  return Launched();
}

}  // namespace trimtab::cuda
#endif
