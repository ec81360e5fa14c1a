// Passive probe: a block takes sixteen sampled rows of one (batch, head), its warps share the keys. First the rows' final
// maxima, then all figures against them; the block that ends last of a head adds the head's parts in a fixed order.
#include "kernels/cuda/job.h"
#include "kernels/cuda/read.cuh"

namespace trimtab::cuda {
namespace {

constexpr int kWarps = 8, kRows = 16;
constexpr int kFields = 16;  // 8-byte fields of trimtab_head_stats, before max_logit
static_assert(offsetof(trimtab_head_stats, max_logit) == 8 * kFields);
static_assert(offsetof(trimtab_head_stats, entropy_sum) == 8 * 8 && offsetof(trimtab_head_stats, delta_rows) == 8 * 11);

struct Work {
  int64_t rows_upper;  // sampled rows of the longest sequence
  int groups;          // of kRows, a sequence
  int units;           // groups times sampled batches: parts of a head
  unsigned* done;      // [heads]
  trimtab_head_stats* part;  // [heads, units]
};

struct RowPart {
  float max, raw_max;
  unsigned nonfinite, ones, ties;
  float sum, weighted, residual, sink;
};

// Words of one row, so that a lane's 16 bytes are its share of two steps of 16; which columns meet does not matter.
template <typename T, int kDim>
__device__ void LoadWords(const typename T::Type* row, bool valid, uint4 (&w)[kDim / 32]) {
#pragma unroll
  for (int d = 0; d < kDim / 32; ++d) {
    w[d] = valid ? *reinterpret_cast<const uint4*>(row + d * 32 + threadIdx.x % 4 * 8) : make_uint4(0, 0, 0, 0);
  }
}

template <typename T, int kDim, bool kOutput>
__global__ void __launch_bounds__(kWarps * 32) ProbeKernel(const __grid_constant__ trimtab_cuda_probe p, const Work work) {
  using Type = typename T::Type;
  const trimtab_cuda_attention& a = p.attention;
  if (p.step != nullptr && *p.step % p.period != 0) return;
  __shared__ RowPart rows[kWarps][kRows];
  __shared__ float row_max[kRows];
  __shared__ double errors[kRows][3];
  __shared__ trimtab_head_stats part;
  __shared__ bool last;
  extern __shared__ float exact[];  // [kRows][kDim]
  const int head = blockIdx.y, batch = static_cast<int>(p.batch_begin + blockIdx.z * p.batch_step);
  const int kv_head = head / static_cast<int>(a.heads / a.kv_heads);
  const Sequence seq = SequenceOf(a, batch);
  const bool packed = a.mask.cu_seqlens_q != nullptr;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto row_of = [&](int r) { return p.row_begin + (static_cast<int64_t>(blockIdx.x) * kRows + r) * p.row_step; };
  const Type* q = static_cast<const Type*>(a.q.data) + Offset(a.q, packed, batch, head, seq.q_begin);
  const Type* k = static_cast<const Type*>(a.k.data) + Offset(a.k, packed, batch, kv_head, seq.k_begin);

  uint4 qw[2][kDim / 32];
  int first[2], end[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = row_of(lane / 4 + 8 * half);
    const bool valid = row < seq.queries;
    LoadWords<T, kDim>(q + (valid ? row : 0) * a.q.stride[2], valid, qw[half]);
    first[half] = valid ? FirstKey(a.mask, seq, static_cast<int>(row)) : 0;
    end[half] = valid ? EndKey(a.mask, seq, static_cast<int>(row)) : 0;
  }
  // Scores of sixteen keys from `begin`; x of the softmax and, before the cap, raw.
  const auto scores = [&](int begin, float (&raw)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int key = begin + n * 8 + lane / 4;
      uint4 kw[kDim / 32];
      LoadWords<T, kDim>(k + (key < seq.keys ? key : 0) * a.k.stride[2], key < seq.keys, kw);
      raw[n][0] = raw[n][1] = raw[n][2] = raw[n][3] = 0.0f;
#pragma unroll
      for (int d = 0; d < kDim / 32; ++d) {
        Mma<T>(raw[n], {qw[0][d].x, qw[1][d].x, qw[0][d].y, qw[1][d].y}, kw[d].x, kw[d].y);
        Mma<T>(raw[n], {qw[0][d].z, qw[1][d].z, qw[0][d].w, qw[1][d].w}, kw[d].z, kw[d].w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) raw[n][i] *= a.scale;
    }
  };
  const auto key_of = [&](int begin, int n, int i) { return begin + n * 8 + lane % 4 * 2 + i % 2; };
  const auto visible = [&](int key, int half) { return key >= first[half] && key < end[half]; };
  const auto capped = [&](float x) { return a.softcap > 0.0f ? a.softcap * tanhf(x / a.softcap) : x; };
  const int block_rows = static_cast<int>(min(static_cast<int64_t>(kRows), (seq.queries - row_of(0) + p.row_step - 1) / p.row_step));
  const int all_first = block_rows > 0 ? FirstKey(a.mask, seq, static_cast<int>(row_of(0))) / 16 * 16 : 0;
  const int all_end = block_rows > 0 ? EndKey(a.mask, seq, static_cast<int>(row_of(block_rows - 1))) : 0;

  float max[2] = {-INFINITY, -INFINITY}, raw_max[2] = {-INFINITY, -INFINITY};
  unsigned nonfinite[2] = {0, 0};
#pragma unroll 2
  for (int begin = all_first + warp * 16; begin < all_end; begin += kWarps * 16) {
    float raw[2][4];
    scores(begin, raw);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!visible(key_of(begin, n, i), i / 2)) continue;
        const float x = raw[n][i];
        nonfinite[i / 2] += !(x - x == 0.0f);
        raw_max[i / 2] = fmaxf(raw_max[i / 2], x);
        max[i / 2] = fmaxf(max[i / 2], capped(x));
      }
  }
  RowPart mine[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    for (int i = 1; i < 4; i *= 2) {
      max[half] = fmaxf(max[half], __shfl_xor_sync(~0u, max[half], i));
      raw_max[half] = fmaxf(raw_max[half], __shfl_xor_sync(~0u, raw_max[half], i));
      nonfinite[half] += __shfl_xor_sync(~0u, nonfinite[half], i);
    }
    if (lane % 4 == 0) rows[warp][lane / 4 + 8 * half].max = max[half];
    mine[half].raw_max = raw_max[half];
    mine[half].nonfinite = nonfinite[half];
  }
  __syncthreads();
  if (threadIdx.x < kRows) {
    float m = -INFINITY;
    for (int w = 0; w < kWarps; ++w) m = fmaxf(m, rows[w][threadIdx.x].max);
    row_max[threadIdx.x] = m;
  }
  __syncthreads();
  const float m[2] = {row_max[lane / 4], row_max[lane / 4 + 8]};

  float o[kOutput ? kDim / 8 : 1][4] = {};
  const Type* v = kOutput ? static_cast<const Type*>(a.v.data) + Offset(a.v, packed, batch, kv_head, seq.k_begin) : nullptr;
  for (int begin = all_first + warp * 16; begin < all_end; begin += kWarps * 16) {
    float raw[2][4];
    scores(begin, raw);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key_of(begin, n, i);
        RowPart& r = mine[i / 2];
        if (!visible(key, i / 2)) {
          raw[n][i] = 0.0f;
          continue;
        }
        const float s = capped(raw[n][i]), x = s - m[i / 2], weight = expf(x);
        const bool one = Round<T>(weight) == 1.0f;
        r.ones += one;
        r.ties += s == m[i / 2];
        r.sum += weight;
        r.weighted += weight == 0.0f ? 0.0f : weight * x;
        r.residual += one ? 0.0f : weight;
        r.sink += key == 0 ? weight : 0.0f;
        raw[n][i] = weight;
      }
    if constexpr (kOutput) {
      // P in three terms of the 16-bit type, so that the products keep FP32's precision.
      uint32_t term[3][4];
#pragma unroll
      for (int t = 0; t < 3; ++t)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& x = raw[j / 2][j % 2 * 2];
          float& y = raw[j / 2][j % 2 * 2 + 1];
          term[t][j] = T::Pack(x, y);
          x -= T::Low(term[t][j]);
          y -= T::High(term[t][j]);
        }
      const int key = begin + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const auto value = [&](int j) -> uint32_t {
          if (j >= seq.keys) return 0;
          return reinterpret_cast<const unsigned short*>(v)[j * a.v.stride[2] + n * 8 + lane / 4];
        };
        const uint32_t b0 = value(key) | value(key + 1) << 16, b1 = value(key + 8) | value(key + 9) << 16;
#pragma unroll
        for (int t = 2; t >= 0; --t) Mma<T>(o[n], term[t], b0, b1);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    RowPart& r = mine[half];
    for (int i = 1; i < 4; i *= 2) {
      r.ones += __shfl_xor_sync(~0u, r.ones, i);
      r.ties += __shfl_xor_sync(~0u, r.ties, i);
      r.sum += __shfl_xor_sync(~0u, r.sum, i);
      r.weighted += __shfl_xor_sync(~0u, r.weighted, i);
      r.residual += __shfl_xor_sync(~0u, r.residual, i);
      r.sink += __shfl_xor_sync(~0u, r.sink, i);
    }
    if (lane % 4 == 0) rows[warp][lane / 4 + 8 * half] = r;
  }
  if constexpr (kOutput) {
    for (int w = 0; w < kWarps; ++w) {
      __syncthreads();
      if (warp != w) continue;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = exact[(lane / 4 + i / 2 * 8) * kDim + n * 8 + lane % 4 * 2 + i % 2];
          x = w == 0 ? o[n][i] : x + o[n][i];
        }
    }
  }
  __syncthreads();
  if constexpr (kOutput) {
    for (int r = warp; r < kRows; r += kWarps) {
      double error = 0.0, norm = 0.0, residual = 0.0;
      float sum = 0.0f;
      for (int w = 0; w < kWarps; ++w) sum += rows[w][r].sum;
      if (const int64_t row = row_of(r); row < seq.queries) {
        const auto* out = static_cast<const Type*>(p.out.data) + Offset(p.out, packed, batch, head, seq.q_begin + row);
        const auto* grad = p.grad_out.data == nullptr ? nullptr
                                                      : static_cast<const Type*>(p.grad_out.data) +
                                                            Offset(p.grad_out, packed, batch, head, seq.q_begin + row);
        for (int i = lane; i < kDim; i += 32) {
          const double x = static_cast<double>(exact[r * kDim + i]) / sum;
          const double e = static_cast<double>(static_cast<float>(out[i])) - x;
          error += e * e;
          norm += x * x;
          if (grad != nullptr) residual += static_cast<double>(static_cast<float>(grad[i])) * e;
        }
      }
      error = WarpSum(error);
      norm = WarpSum(norm);
      residual = WarpSum(residual);
      if (lane == 0) errors[r][0] = error, errors[r][1] = norm, errors[r][2] = residual;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    trimtab_head_stats t{};
    t.max_logit = -INFINITY;
    for (int r = 0; r < block_rows; ++r) {
      const int row = static_cast<int>(row_of(r));
      const int keys = EndKey(a.mask, seq, row) - FirstKey(a.mask, seq, row);
      RowPart x{};
      for (int w = 0; w < kWarps; ++w) {
        const RowPart& y = rows[w][r];
        t.max_logit = fmaxf(t.max_logit, y.raw_max);
        x.nonfinite += y.nonfinite;
        x.ones += y.ones;
        x.ties += y.ties;
        x.sum += y.sum;
        x.weighted += y.weighted;
        x.residual += y.residual;
        x.sink += y.sink;
      }
      t.nonfinite_scores += x.nonfinite;
      if (keys <= 0) {
        ++t.empty_rows;
        continue;
      }
      if (keys == 1) {
        ++t.trivial_rows;
        continue;
      }
      ++t.rows;
      t.scores += static_cast<uint64_t>(keys);
      const float top = row_max[r];
      if (!(top - top == 0.0f)) continue;
      t.p_one_count += x.ones;
      t.repeated_max_rows += x.ones >= 2;
      t.tie_rows += x.ties >= 2;
      if (!(x.sum - x.sum == 0.0f)) continue;
      t.entropy_sum += logf(x.sum) - x.weighted / x.sum;
      t.sink_share_sum += x.sink / x.sum;
      t.residual_mass_sum += x.residual;
      if (!kOutput) continue;
      if (errors[r][0] - errors[r][0] == 0.0 && errors[r][1] - errors[r][1] == 0.0) {
        t.output_error_sum_squares += errors[r][0];
        t.output_sum_squares += errors[r][1];
      }
      if (p.grad_out.data == nullptr || errors[r][2] - errors[r][2] != 0.0) continue;
      ++t.delta_rows;
      t.delta_residual_sum += errors[r][2];
      t.delta_residual_sum_squares += errors[r][2] * errors[r][2];
    }
    part = t;
    work.part[static_cast<int64_t>(head) * work.units + blockIdx.z * gridDim.x + blockIdx.x] = t;
    __threadfence();
    last = atomicAdd(&work.done[head], 1u) + 1 == static_cast<unsigned>(work.units);
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  const trimtab_head_stats* parts = work.part + static_cast<int64_t>(head) * work.units;
  const int field = threadIdx.x;
  if (field < kFields) {
    const bool counts = field < 8 || field == 11;
    uint64_t count = 0;
    double sum = 0.0;
    for (int u = 0; u < work.units; ++u) {
      const void* at = reinterpret_cast<const char*>(parts + u) + field * 8;
      counts ? void(count += *static_cast<const uint64_t*>(at)) : void(sum += *static_cast<const double*>(at));
    }
    void* to = reinterpret_cast<char*>(p.stats + head) + field * 8;
    counts ? void(*static_cast<uint64_t*>(to) += count) : void(*static_cast<double*>(to) += sum);
  } else if (field == 32) {
    float top = p.stats[head].max_logit;
    for (int u = 0; u < work.units; ++u) top = fmaxf(top, parts[u].max_logit);
    p.stats[head].max_logit = top;
    work.done[head] = 0;
  }
}

bool Plan(const trimtab_cuda_probe& p, Work* work) {
  const auto& a = p.attention;
  if (p.row_begin < 0 || p.row_step < 1 || p.batch_begin < 0 || p.batch_step < 1 || a.heads < 1) return false;
  const int64_t rows = a.queries > p.row_begin ? (a.queries - p.row_begin + p.row_step - 1) / p.row_step : 0;
  const int64_t batches = a.batch > p.batch_begin ? (a.batch - p.batch_begin + p.batch_step - 1) / p.batch_step : 0;
  const int64_t groups = (rows + kRows - 1) / kRows;
  if (groups * batches > (1 << 24)) return false;
  *work = {rows, static_cast<int>(groups), static_cast<int>(groups * batches), nullptr, nullptr};
  return true;
}

size_t DoneBytes(int64_t heads) { return static_cast<size_t>((heads * 4 + 255) / 256 * 256); }

template <typename T, int kDim>
trimtab_kernel_status Launch(const trimtab_cuda_probe& p, const Work& work, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(work.groups), static_cast<unsigned>(p.attention.heads),
                  static_cast<unsigned>(work.units / work.groups));
  if (p.out.data != nullptr && p.attention.v.data != nullptr) {
    ProbeKernel<T, kDim, true><<<grid, kWarps * 32, kRows * kDim * sizeof(float), stream>>>(p, work);
  } else {
    ProbeKernel<T, kDim, false><<<grid, kWarps * 32, 0, stream>>>(p, work);
  }
  return Launched();
}

}  // namespace
}  // namespace trimtab::cuda

extern "C" {

size_t trimtab_cuda_probe_workspace(const trimtab_cuda_probe* p) {
  using namespace trimtab::cuda;
  Work work;
  if (p == nullptr || !Plan(*p, &work)) return 0;
  return DoneBytes(p->attention.heads) + sizeof(trimtab_head_stats) * static_cast<size_t>(p->attention.heads) *
                                             static_cast<size_t>(work.units > 0 ? work.units : 1);
}

trimtab_kernel_status trimtab_cuda_attention_probe(const trimtab_cuda_probe* from, void* stream) {
  using namespace trimtab::cuda;
  if (from == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "probe is NULL");
  trimtab_cuda_probe p = *from;
  if (const auto status = Check(&from->attention, false, &p.attention); status != TRIMTAB_KERNEL_OK) return status;
  Work work;
  if (!Plan(p, &work)) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "row or batch sampling out of range");
  if (p.stats == nullptr || p.workspace == nullptr || (p.step != nullptr && p.period == 0)) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "stats or workspace is NULL, or period is 0");
  }
  if ((p.out.data != nullptr && p.out.stride[3] != 1) || (p.grad_out.data != nullptr && p.grad_out.stride[3] != 1)) {
    return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "out or grad_out: last stride not 1");
  }
  if (work.units == 0) return TRIMTAB_KERNEL_OK;
  work.done = static_cast<unsigned*>(p.workspace);
  work.part = reinterpret_cast<trimtab_head_stats*>(static_cast<char*>(p.workspace) + DoneBytes(p.attention.heads));
  const auto launch = [&]<typename T>() {
    const auto s = static_cast<cudaStream_t>(stream);
    switch (p.attention.head_dim) {
      case 64:
        return Launch<T, 64>(p, work, s);
      case 96:
        return Launch<T, 96>(p, work, s);
      case 128:
        return Launch<T, 128>(p, work, s);
      case 192:
        return Launch<T, 192>(p, work, s);
      default:
        return Launch<T, 256>(p, work, s);
    }
  };
  return p.attention.dtype == TRIMTAB_BF16 ? launch.operator()<Bf16>() : launch.operator()<Fp16>();
}

}  // extern "C"
