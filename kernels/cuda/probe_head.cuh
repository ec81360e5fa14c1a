// From the figures of a cluster's rows to the statistics of their head.
#ifndef TRIMTAB_KERNELS_CUDA_PROBE_HEAD_CUH_
#define TRIMTAB_KERNELS_CUDA_PROBE_HEAD_CUH_

#include "kernels/cuda/probe_output.cuh"

namespace trimtab::cuda {

// Fields of trimtab_head_stats in their order. A cluster's share of each is kept in FP64, which holds its counts
// exactly.
enum HeadField {
  kFieldRows,
  kFieldTrivial,
  kFieldEmpty,
  kFieldRepeated,
  kFieldOnes,
  kFieldTieRows,
  kFieldScores,
  kFieldNonfinite,
  kFieldEntropy,
  kFieldSink,
  kFieldResidual,
  kFieldDeltaRows,
  kFieldDelta,
  kFieldDeltaSquares,
  kFieldErrorSquares,
  kFieldOutputSquares,
  kFieldMaxLogit,
  kHeadFields
};
static_assert(offsetof(trimtab_head_stats, nonfinite_scores) == 8 * kFieldNonfinite);
static_assert(offsetof(trimtab_head_stats, delta_rows) == 8 * kFieldDeltaRows);
static_assert(offsetof(trimtab_head_stats, max_logit) == 8 * kFieldMaxLogit);

// What row r adds to every field. `sum`: its figures over all keys; `top`: its final maximum; `errors`: NULL or its
// own.
__device__ inline void FieldsOfRow(const ProbeArguments& p, const ProbeRows& rows, int r,
                                   const uint32_t (&sum)[kRowFigures][kProbeRows], float top,
                                   const OutputErrors* errors, double (&field)[kHeadFields][kProbeRows]) {
  const auto count = [&](int figure) { return sum[figure][r]; };
  const auto value = [&](int figure) { return __uint_as_float(sum[figure][r]); };
  const auto finite = [](double x) { return x - x == 0.0; };
  double f[kHeadFields] = {};
  f[kFieldMaxLogit] = -INFINITY;
  if (r < rows.count) {
    const int row = rows.Row(r);
    const int keys = EndKey(p.mask, rows.seq, row) - FirstKey(p.mask, rows.seq, row);
    f[kFieldMaxLogit] = value(kRawMax);
    f[kFieldNonfinite] = count(kNonfinite);
    f[kFieldEmpty] = keys <= 0;
    f[kFieldTrivial] = keys == 1;
    f[kFieldRows] = keys >= 2;
    f[kFieldScores] = keys >= 2 ? keys : 0;
    if (keys >= 2 && finite(top)) {
      f[kFieldOnes] = count(kOnes);
      f[kFieldRepeated] = count(kOnes) >= 2;
      f[kFieldTieRows] = count(kTies) >= 2;
      if (const float total = value(kSum); finite(total)) {
        f[kFieldEntropy] = logf(total) - value(kWeighted) / total;
        f[kFieldSink] = value(kSink) / total;
        f[kFieldResidual] = value(kResidual);
        if (errors != nullptr && finite(errors->error) && finite(errors->norm)) {
          f[kFieldErrorSquares] = errors->error;
          f[kFieldOutputSquares] = errors->norm;
        }
        if (errors != nullptr && p.grad.data != nullptr && finite(errors->residual)) {
          f[kFieldDeltaRows] = 1.0;
          f[kFieldDelta] = errors->residual;
          f[kFieldDeltaSquares] = errors->residual * errors->residual;
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kHeadFields; ++i) field[i][r] = f[i];
}

// The fields of one warp of kWarps, `warp`, `warp` + kWarps …: their sums over the lanes, or for max_logit the largest;
// in an order that depends on nothing.
template <int kWarps>
struct WarpFields {
  static constexpr int kFields = (kHeadFields + kWarps - 1) / kWarps;
  static_assert(kFieldMaxLogit == (kFields - 1) * kWarps, "max_logit is the last field of warp 0");
  double x[kFields] = {};

  __device__ static int Field(int j) { return static_cast<int>(threadIdx.x) / 32 + j * kWarps; }
  __device__ static double Join(int j, double x, double y) {
    return j == kFields - 1 && threadIdx.x / 32 == 0 ? fmax(x, y) : x + y;
  }
  __device__ void OverWarp() {
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
#pragma unroll
      for (int j = 0; j < kFields; ++j) x[j] = Join(j, x[j], __shfl_xor_sync(~0u, x[j], i));
  }
};

// Field of a head's statistics, whose value was `before`, with x added.
__device__ inline void AddTo(trimtab_head_stats* stats, int field, uint64_t before, double x) {
  void* at = reinterpret_cast<char*>(stats) + 8 * field;
  if (field == kFieldMaxLogit) {
    *static_cast<float*>(at) = fmaxf(__uint_as_float(static_cast<uint32_t>(before)), static_cast<float>(x));
  } else if (field <= kFieldNonfinite || field == kFieldDeltaRows) {
    *static_cast<uint64_t*>(at) = before + static_cast<uint64_t>(x);
  } else {
    *static_cast<double*>(at) = __longlong_as_double(static_cast<long long>(before)) + x;
  }
}

// By a whole block: adds the rows' fields to the head's statistics, which were `before`. Where a head has several
// clusters, the one that ends last adds up all of them.
template <int kWarps>
__device__ void SumHead(const double (&field)[kHeadFields][kProbeRows], const uint64_t (&before)[kHeadFields],
                        const ProbeArguments& p, int unit, int head) {
  using Fields = WarpFields<kWarps>;
  const int lane = threadIdx.x % 32;
  double* part = p.part + static_cast<int64_t>(head) * p.units * kHeadFields;
  Fields sum;
#pragma unroll
  for (int j = 0; j < Fields::kFields; ++j) {
    const int f = Fields::Field(j);
    if (f < kHeadFields) sum.x[j] = Fields::Join(j, field[f][lane], field[f][lane + 32]);
  }
  sum.OverWarp();
#pragma unroll
  for (int j = 0; j < Fields::kFields; ++j) {
    const int f = Fields::Field(j);
    if (lane != 0 || f >= kHeadFields) continue;
    if (p.units == 1) {
      AddTo(p.stats + head, f, before[f], sum.x[j]);
    } else {
      part[static_cast<int64_t>(unit) * kHeadFields + f] = sum.x[j];
    }
  }
  if (p.units == 1) return;
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&p.done[head], 1u) + 1 == static_cast<unsigned>(p.units);
  __syncthreads();
  if (!last) return;
  __threadfence();
#pragma unroll
  for (int j = 0; j < Fields::kFields; ++j) {
    const int f = Fields::Field(j);
    sum.x[j] = f == kFieldMaxLogit ? -INFINITY : 0.0;
#pragma unroll 1
    for (int u = lane; f < kHeadFields && u < p.units; u += 32) {
      sum.x[j] = Fields::Join(j, sum.x[j], __ldcg(part + static_cast<int64_t>(u) * kHeadFields + f));
    }
  }
  sum.OverWarp();
#pragma unroll
  for (int j = 0; j < Fields::kFields; ++j) {
    const int f = Fields::Field(j);
    if (lane != 0 || f >= kHeadFields) continue;
    AddTo(p.stats + head, f, __ldcg(reinterpret_cast<const uint64_t*>(p.stats + head) + f), sum.x[j]);
  }
  if (threadIdx.x == 0) p.done[head] = 0;
}

}  // namespace trimtab::cuda
#endif
