// Scores of the probe: sixteen sampled rows of a warp against tiles of sixteen keys, on the tensor cores.
#ifndef TRIMTAB_KERNELS_CUDA_PROBE_SCORES_CUH_
#define TRIMTAB_KERNELS_CUDA_PROBE_SCORES_CUH_

#include "kernels/cuda/probe_rows.cuh"

namespace trimtab::cuda {

constexpr int kTileKeys = 16;
// Of a warp's own share of a row: 16 bytes a lane serve two steps of 16; which columns meet does not matter.
template <typename T>
__device__ inline uint4 LoadWords(const typename T::Type* row, int step) {
  return *reinterpret_cast<const uint4*>(row + step * 32);
}

// Lane l holds the rows l / 4 and l / 4 + 8 of the strip, and of a tile the keys 2 (l % 4), 2 (l % 4) + 1 and 8 behind.
// Rows and keys behind the last are read as the last one, and not looked at.
template <typename T, int kDim, int kTiles>
struct Strip {
  using Type = typename T::Type;
  const ProbeArguments& p;
  const Type *q[2], *k;  // of the lane's share of a row
  int keys;
  int first[2], end[2];                // visible keys of the lane's rows
  int begin_all = 0, end_all = 0;      // keys of whole tiles that some row sees
  int begin_whole = 0, end_whole = 0;  // keys that all rows see

  __device__ Strip(const ProbeArguments& arguments, const ProbeRows& rows, int strip)
      : p(arguments), keys(rows.seq.keys) {
    const int lane = threadIdx.x % 32, share = lane % 4 * 8;
    const int top = strip * kStripRows, bottom = min(rows.count, top + kStripRows) - 1;
    k = rows.At<Type>(p.k, rows.kv_head, rows.seq.k_begin, 0) + share;
    if (bottom < top) return;
    const Type* queries = rows.At<Type>(p.q, rows.head, rows.seq.q_begin, 0) + share;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.Row(min(top + lane / 4 + 8 * half, bottom));
      q[half] = queries + static_cast<int64_t>(row) * p.q.row_stride;
      first[half] = FirstKey(p.mask, rows.seq, row);
      end[half] = EndKey(p.mask, rows.seq, row);
    }
    begin_whole = FirstKey(p.mask, rows.seq, rows.Row(bottom));
    end_whole = EndKey(p.mask, rows.seq, rows.Row(top));
    begin_all = FirstKey(p.mask, rows.seq, rows.Row(top)) / kTileKeys * kTileKeys;
    end_all = EndKey(p.mask, rows.seq, rows.Row(bottom));
  }

  // Scaled products of the tiles that begin at `begin` and every `stride` keys behind it.
  __device__ void Score(int begin, int stride, float (&s)[kTiles][2][4]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int n = 0; n < 2; ++n) s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0.0f;
    constexpr int kAtOnce = 2;  // steps of 32 columns whose loads are all under way before their products
    const Type* row[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int key = begin + t * stride + n * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
        row[t][n] = k + static_cast<int64_t>(min(key, keys - 1)) * p.k.row_stride;
      }
#pragma unroll
    for (int d = 0; d < kDim / 32; d += kAtOnce) {
      uint4 qw[kAtOnce][2], kw[kAtOnce][kTiles][2];
#pragma unroll
      for (int e = 0; e < kAtOnce && d + e < kDim / 32; ++e) {
        qw[e][0] = LoadWords<T>(q[0], d + e);
        qw[e][1] = LoadWords<T>(q[1], d + e);
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
#pragma unroll
          for (int n = 0; n < 2; ++n) kw[e][t][n] = LoadWords<T>(row[t][n], d + e);
      }
      __syncwarp();  // the assembler moves no load behind it
#pragma unroll
      for (int e = 0; e < kAtOnce && d + e < kDim / 32; ++e) {
        const uint4 q0 = qw[e][0], q1 = qw[e][1];
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            Mma<T>(s[t][n], {q0.x, q1.x, q0.y, q1.y}, kw[e][t][n].x, kw[e][t][n].y);
            Mma<T>(s[t][n], {q0.z, q1.z, q0.w, q1.w}, kw[e][t][n].z, kw[e][t][n].w);
          }
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[t][n][i] *= p.scale;
  }

  // Looks at the scores of the tile at `begin`, then caps and masks them: -Inf where a row does not see the key. A
  // second look changes nothing but s.
  __device__ void Look(bool second, int begin, float (&s)[2][4], float (&max)[2], RowPart (&part)[2]) const {
    float zero = 0.0f;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) zero = fmaf(s[n][i], 0.0f, zero);
    if (zero != 0.0f && !second) {  // NaN: some score is not finite
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) part[i / 2].nonfinite += Sees(begin, n, i) && !(s[n][i] - s[n][i] == 0.0f);
    }
    const bool whole = begin >= begin_whole && begin + kTileKeys <= end_whole;
    if (p.softcap > 0.0f) {  // one branch around all of tanhf's code
      Mask<false, true>(begin, s, part);
    } else if (whole) {
      Mask<true, false>(begin, s, part);
    } else {
      Mask<false, false>(begin, s, part);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) max[i / 2] = fmaxf(max[i / 2], s[n][i]);
  }

 private:
  // kWhole: every row sees every key of the tile.
  template <bool kWhole, bool kCap>
  __device__ void Mask(int begin, float (&s)[2][4], RowPart (&part)[2]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool sees = kWhole || Sees(begin, n, i);
        if (sees) part[i / 2].raw_max = fmaxf(part[i / 2].raw_max, s[n][i]);
        if (kCap) s[n][i] = p.softcap * tanhf(s[n][i] / p.softcap);
        if (!sees) s[n][i] = -INFINITY;
      }
  }

  __device__ bool Sees(int begin, int n, int i) const {
    const int key = begin + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
    return key >= first[i / 2] && key < end[i / 2];
  }
};

}  // namespace trimtab::cuda
#endif
