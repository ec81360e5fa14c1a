// One step of warm power iteration: y = W v and each block's share of W^T y while its rows are still in the caches, the
// shares added in block order, then norms and the next vector.
#include "kernels/cuda/job.h"
#include "kernels/cuda/read.cuh"

namespace trimtab::cuda {
namespace {

constexpr int kThreads = 512, kRows = 32, kFinishThreads = 1024;
static_assert(kRows == 2 * kThreads / 32);  // a warp multiplies two rows
constexpr int kSumColumns = 64, kSumParts = kThreads / kSumColumns;

struct Plan {
  int64_t slice_rows, chunks;  // of kRows rows, a slice
  float *share, *w, *squares;  // [slices, chunks, columns], [slices, columns], [slices, chunks]
};

Plan PlanOf(int64_t rows, int64_t columns, int64_t slices, void* workspace) {
  Plan p{rows / slices, (rows / slices + kRows - 1) / kRows, static_cast<float*>(workspace), nullptr, nullptr};
  p.w = p.share + slices * p.chunks * columns;
  p.squares = p.w + slices * columns;
  return p;
}

// A start without structure, so that it is not orthogonal to the vector that is sought.
__device__ float Start(int64_t i) {
  auto x = static_cast<uint32_t>(i) * 0x9e3779b9u + 0x7f4a7c15u;
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return static_cast<float>(static_cast<int32_t>(x ^ (x >> 16))) * 0x1p-31f;
}

// Sum over the block in every thread.
__device__ float BlockSum(float x) {
  __shared__ float part[32];
  __syncthreads();
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += part[i];
  return sum;
}

// The kept vector, normalised; the start vector where there is none yet.
struct Direction {
  const float* kept;  // NULL: start
  float inverse;

  __device__ float operator()(int64_t j) const { return (kept != nullptr ? kept[j] : Start(j)) * inverse; }
};

__device__ Direction DirectionOf(const float* vector, int64_t columns) {
  float squares = 0.0f;
  for (int64_t j = threadIdx.x; j < columns; j += blockDim.x) squares += vector[j] * vector[j];
  squares = BlockSum(squares);
  if (squares > 0.0f && squares < INFINITY) return {vector, rsqrtf(squares)};
  squares = 0.0f;
  for (int64_t j = threadIdx.x; j < columns; j += blockDim.x) squares += Start(j) * Start(j);
  return {nullptr, rsqrtf(BlockSum(squares))};
}

template <typename T, bool kWide>
__device__ void ReadRow(const typename T::Type* row, int64_t column, int64_t columns, float (&x)[8]) {
  if constexpr (kWide) {
    ReadEight<T>(row + column, x);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = column + i < columns ? static_cast<float>(row[column + i]) : 0.0f;
  }
}

template <typename T, bool kWide>
__global__ void __launch_bounds__(kThreads) MultiplyKernel(const trimtab_cuda_spectral s, const Plan plan) {
  __shared__ float y[kRows];
  const int64_t slice = blockIdx.y, chunk = blockIdx.x, first = chunk * kRows;
  const auto* matrix = static_cast<const typename T::Type*>(s.data) + (slice * plan.slice_rows + first) * s.row_stride;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), plan.slice_rows - first));
  const Direction v = DirectionOf(s.vector + slice * s.columns, s.columns);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int r0 = warp * 2, r1 = r0 + 1;
  float y0 = 0.0f, y1 = 0.0f;
#pragma unroll 4
  for (int64_t j = lane * 8; j < s.columns; j += 256) {
    float a[8] = {}, b[8] = {};
    if (r0 < rows) ReadRow<T, kWide>(matrix + r0 * s.row_stride, j, s.columns, a);
    if (r1 < rows) ReadRow<T, kWide>(matrix + r1 * s.row_stride, j, s.columns, b);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = j + i < s.columns ? v(j + i) : 0.0f;
      y0 = fmaf(a[i], x, y0);
      y1 = fmaf(b[i], x, y1);
    }
  }
  y0 = WarpSum(y0);
  y1 = WarpSum(y1);
  if (lane == 0) y[r0] = y0, y[r1] = y1;
  __syncthreads();
  const int64_t block = slice * plan.chunks + chunk;
  if (warp == 0) {
    const float squares = WarpSum(y[lane] * y[lane]);
    if (lane == 0) plan.squares[block] = squares;
  }
  for (int64_t j = threadIdx.x * 8; j < s.columns; j += kThreads * 8) {
    float w[8] = {};
#pragma unroll 8
    for (int r = 0; r < rows; ++r) {
      float a[8];
      ReadRow<T, kWide>(matrix + r * s.row_stride, j, s.columns, a);
#pragma unroll
      for (int i = 0; i < 8; ++i) w[i] = fmaf(a[i], y[r], w[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (j + i < s.columns) plan.share[block * s.columns + j + i] = w[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads) SumKernel(int64_t columns, const Plan plan) {
  __shared__ float part[kSumParts][kSumColumns];
  const int column_in_block = threadIdx.x % kSumColumns, group = threadIdx.x / kSumColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + column_in_block, slice = blockIdx.y;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 8
    for (int64_t c = group; c < plan.chunks; c += kSumParts) {
      sum += plan.share[(slice * plan.chunks + c) * columns + column];
    }
  }
  part[group][column_in_block] = sum;
  __syncthreads();
  if (group != 0 || column >= columns) return;
  for (int i = 1; i < kSumParts; ++i) sum += part[i][column_in_block];
  plan.w[slice * columns + column] = sum;
}

__global__ void __launch_bounds__(kFinishThreads) FinishKernel(const trimtab_cuda_spectral s, const Plan plan) {
  const int64_t slice = blockIdx.x;
  float* vector = s.vector + slice * s.columns;
  const float* w = plan.w + slice * s.columns;
  const Direction v = DirectionOf(vector, s.columns);
  float squares = 0.0f;
  for (int64_t c = threadIdx.x; c < plan.chunks; c += kFinishThreads) squares += plan.squares[slice * plan.chunks + c];
  const float sigma = sqrtf(BlockSum(squares));
  float miss_squares = 0.0f, next_squares = 0.0f;
  if (sigma != 0.0f) {
    for (int64_t j = threadIdx.x; j < s.columns; j += kFinishThreads) {
      const float x = w[j] / sigma, miss = x - sigma * v(j);
      miss_squares += miss * miss;
      next_squares += x * x;
    }
  }
  const float residual = sqrtf(BlockSum(miss_squares)), next = sqrtf(BlockSum(next_squares));
  if (threadIdx.x == 0) {
    s.sigma[slice] = sigma;
    if (s.residual != nullptr) s.residual[slice] = residual;
  }
  // A matrix with NaN or Inf gives NaN, and leaves the vector for the next, healthy visit.
  if (!(next > 0.0f && next < INFINITY)) return;
  for (int64_t j = threadIdx.x; j < s.columns; j += kFinishThreads) vector[j] = w[j] / sigma / next;
}

template <typename T>
void Launch(const trimtab_cuda_spectral& s, const Plan& plan, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.chunks), static_cast<unsigned>(s.slices));
  const int64_t unit = 16 / static_cast<int64_t>(sizeof(typename T::Type));
  const bool wide =
      s.columns % 8 == 0 && s.row_stride % unit == 0 && reinterpret_cast<uintptr_t>(s.data) % 16 == 0;
  if (wide) {
    MultiplyKernel<T, true><<<grid, kThreads, 0, stream>>>(s, plan);
  } else {
    MultiplyKernel<T, false><<<grid, kThreads, 0, stream>>>(s, plan);
  }
}

}  // namespace
}  // namespace trimtab::cuda

extern "C" {

size_t trimtab_cuda_spectral_workspace(int64_t rows, int64_t columns, int64_t slices) {
  if (rows < 1 || columns < 1 || slices < 1 || rows % slices != 0) return 0;
  const int64_t chunks = (rows / slices + trimtab::cuda::kRows - 1) / trimtab::cuda::kRows;
  return sizeof(float) * static_cast<size_t>(slices * (chunks * columns + columns + chunks));
}

trimtab_kernel_status trimtab_cuda_spectral_norm(const trimtab_cuda_spectral* s, void* stream_pointer) {
  using namespace trimtab::cuda;
  if (s == nullptr || s->struct_size != sizeof *s) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "spectral is NULL or its struct_size is not %zu", sizeof *s);
  }
  if (s->rows < 1 || s->columns < 1 || s->slices < 1 || s->slices > 65535 || s->rows % s->slices != 0) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "rows, columns or slices out of range, or rows not a multiple of slices");
  }
  if (s->data == nullptr || s->vector == nullptr || s->sigma == nullptr || s->workspace == nullptr) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "data, vector, sigma or workspace is NULL");
  }
  const Plan plan = PlanOf(s->rows, s->columns, s->slices, s->workspace);
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  switch (s->dtype) {
    case TRIMTAB_F32:
      Launch<Fp32>(*s, plan, stream);
      break;
    case TRIMTAB_BF16:
      Launch<Bf16>(*s, plan, stream);
      break;
    case TRIMTAB_F16:
      Launch<Fp16>(*s, plan, stream);
      break;
    default:
      return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "dtype %d", s->dtype);
  }
  const dim3 grid(static_cast<unsigned>((s->columns + kSumColumns - 1) / kSumColumns), static_cast<unsigned>(s->slices));
  SumKernel<<<grid, kThreads, 0, stream>>>(s->columns, plan);
  FinishKernel<<<static_cast<unsigned>(s->slices), kFinishThreads, 0, stream>>>(*s, plan);
  return Launched();
}

}  // extern "C"
