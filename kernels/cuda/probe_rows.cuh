// The rows that a cluster of the probe looks at, and what is kept of each.
#ifndef TRIMTAB_KERNELS_CUDA_PROBE_ROWS_CUH_
#define TRIMTAB_KERNELS_CUDA_PROBE_ROWS_CUH_

#include <cfloat>

#include "kernels/cuda/job.h"
#include "kernels/cuda/mma.cuh"

namespace trimtab::cuda {

constexpr int kProbeRows = 64;  // sampled rows of a cluster
constexpr int kStripRows = 16;  // of a warp
constexpr int kStrips = kProbeRows / kStripRows;
constexpr int kMaxCluster = 8;  // blocks that share a cluster's keys

// Elements between rows fit in 32 bits.
struct ProbeTensor {
  const void* data;
  int64_t batch_stride, head_stride;
  int row_stride;
};

// What a launch needs, in the order of use and in few lines of the constant cache, whose misses follow one another;
// counts in 32 bits, as 64-bit divisions are long calls.
struct ProbeArguments {
  const uint64_t* step;
  uint64_t period;
  trimtab_cuda_mask mask;
  int queries, keys;
  int row_begin, row_step, batch_begin, batch_step;
  int rows;  // sampled in a dense sequence
  unsigned heads_per_kv;
  float scale, softcap;
  int units, groups;  // clusters of a head; of one (batch, head)
  ProbeTensor k, q, v, out, grad;
  trimtab_head_stats* stats;
  unsigned* done;  // [heads]
  double* part;    // [heads][units][kHeadFields]
};

// Sampled rows of one (batch, head): those of group number `group`.
struct ProbeRows {
  int batch, head, kv_head;
  bool packed;
  Sequence seq;
  int64_t row_begin;  // may lie behind the last row, where `count` is 0
  int row_step, count;

  __device__ ProbeRows(const ProbeArguments& p, int sampled_batch, int query_head, int group)
      : batch(p.batch_begin + sampled_batch * p.batch_step),
        head(query_head),
        kv_head(static_cast<int>(static_cast<unsigned>(query_head) / p.heads_per_kv)),
        packed(p.mask.cu_seqlens_q != nullptr),
        seq{0, 0, p.queries, p.keys, 0},
        row_begin(p.row_begin + static_cast<int64_t>(group) * kProbeRows * p.row_step),
        row_step(p.row_step),
        count(min(p.rows - group * kProbeRows, kProbeRows)) {
    if (packed) {
      seq.q_begin = p.mask.cu_seqlens_q[batch];
      seq.k_begin = p.mask.cu_seqlens_k[batch];
      seq.queries = p.mask.cu_seqlens_q[batch + 1] - static_cast<int>(seq.q_begin);
      seq.keys = p.mask.cu_seqlens_k[batch + 1] - static_cast<int>(seq.k_begin);
      const auto behind = static_cast<unsigned>(seq.queries - 1 - static_cast<int>(row_begin));  // the first row
      const unsigned rows = behind / static_cast<unsigned>(row_step) + 1u;
      count = row_begin >= seq.queries ? 0 : static_cast<int>(min(rows, static_cast<unsigned>(kProbeRows)));
    }
    seq.offset = p.mask.bottom_right ? seq.keys - seq.queries : 0;
  }

  // r < count.
  __device__ int Row(int r) const { return static_cast<int>(row_begin) + r * row_step; }

  // Row `row` of the sequence in a tensor of query or key/value heads.
  template <typename Type>
  __device__ const Type* At(const ProbeTensor& t, int of_head, int64_t begin, int row) const {
    return static_cast<const Type*>(t.data) + (packed ? begin * t.row_stride : batch * t.batch_stride) +
           of_head * t.head_stride + static_cast<int64_t>(row) * t.row_stride;
  }
};

// Figures of a row, each summed over its keys; the first is a maximum, the next three are counts, the others FP32.
enum RowFigure { kRawMax, kNonfinite, kOnes, kTies, kSum, kWeighted, kResidual, kSink, kRowFigures };

__device__ inline uint32_t Combine(int figure, uint32_t a, uint32_t b) {
  if (figure >= kSum) return __float_as_uint(__uint_as_float(a) + __uint_as_float(b));
  return figure == kRawMax ? __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b))) : a + b;
}

// What a lane has seen of one row.
struct RowPart {
  float raw_max = -INFINITY;
  uint32_t nonfinite = 0, ones = 0, ties = 0;
  float sum = 0.0f, weighted = 0.0f, residual = 0.0f, sink = 0.0f;

  __device__ void Words(uint32_t (&word)[kRowFigures]) const {
    word[kRawMax] = __float_as_uint(raw_max);
    word[kNonfinite] = nonfinite, word[kOnes] = ones, word[kTies] = ties;
    word[kSum] = __float_as_uint(sum), word[kWeighted] = __float_as_uint(weighted);
    word[kResidual] = __float_as_uint(residual), word[kSink] = __float_as_uint(sink);
  }
};

// Adds one tile's scores s[8-key half][i], i / 2 telling the row, of which masked ones are -Inf. `max`: the rows' final
// maxima. Leaves exp(s - max) in s.
template <typename T>
__device__ inline void AddWeights(const float (&max)[2], float (&s)[2][4], RowPart (&part)[2]) {
  // Weights from here up round to 1; a tie goes to the even 1.
  constexpr float kRoundsToOne = 1.0f - 1.0f / (4 << T::kMantissaBits);
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      RowPart& r = part[i / 2];
      const float x = s[n][i] - max[i / 2], weight = expf(x);
      const bool one = weight >= kRoundsToOne;
      r.ones += one;
      r.ties += s[n][i] == max[i / 2];
      r.sum += weight;
      r.weighted += weight * fmaxf(x, -FLT_MAX);  // 0 for x = -Inf
      r.residual += one ? 0.0f : weight;
      s[n][i] = weight;
    }
}

// Adds up the four lanes that share two rows, `lane / 4` and 8 behind it; lane % 4 = 0 and 1 hold one row each then.
__device__ inline void SumOverQuad(const RowPart (&part)[2], uint32_t (&sum)[kRowFigures]) {
  uint32_t word[2][kRowFigures];
  part[0].Words(word[0]);
  part[1].Words(word[1]);
  const bool upper = threadIdx.x % 2 == 1;
#pragma unroll
  for (int f = 0; f < kRowFigures; ++f) {
    const uint32_t other = __shfl_xor_sync(~0u, upper ? word[0][f] : word[1][f], 1);
    sum[f] = Combine(f, upper ? word[1][f] : word[0][f], other);
    sum[f] = Combine(f, sum[f], __shfl_xor_sync(~0u, sum[f], 2));
  }
}

}  // namespace trimtab::cuda
#endif
