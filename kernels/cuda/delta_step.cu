// The delta-preserving step: every row by a group of lanes, eight columns a lane, the row in registers throughout.
//
// The visit is that of docs/numerics.md: the largest step |dO| ulp(O) of at most 4/3 of what is left, then of at most
// twice, and among equal steps the first column. The order of visits depends on the row alone.
#include "kernels/cuda/job.h"
#include "kernels/cuda/mma.cuh"

namespace trimtab::cuda {
namespace {

constexpr int kColumns = 8;  // a lane
constexpr int kThreads = 128;

template <typename T>
__device__ float Ulp(float x) {
  const float power = __uint_as_float(__float_as_uint(x) & 0x7f800000u);
  if (!(power > 0.0f && power < INFINITY)) return 0.0f;
  const float ulp = power * __uint_as_float((127u - T::kMantissaBits) << 23);
  return T::kMantissaBits == 10 ? fmaxf(ulp, 0x1p-24f) : ulp;
}

template <typename T, bool kWide>
__device__ void LoadColumns(const void* data, int64_t offset, int column, int columns, float (&x)[kColumns]) {
  const auto* from = static_cast<const typename T::Type*>(data) + offset + column;
  if constexpr (kWide) {
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (column < columns) raw = *reinterpret_cast<const uint4*>(from);
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = T::Low(word[i]);
      x[2 * i + 1] = T::High(word[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) x[i] = column + i < columns ? static_cast<float>(from[i]) : 0.0f;
  }
}

template <typename T, bool kWide>
__device__ void StoreColumns(void* data, int64_t offset, int column, int columns, const float (&x)[kColumns]) {
  auto* to = static_cast<typename T::Type*>(data) + offset + column;
  if constexpr (kWide) {
    if (column < columns) {
      *reinterpret_cast<uint4*>(to) =
          make_uint4(T::Pack(x[0], x[1]), T::Pack(x[2], x[3]), T::Pack(x[4], x[5]), T::Pack(x[6], x[7]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (column + i < columns) to[i] = static_cast<typename T::Type>(x[i]);
    }
  }
}

template <typename T, int kLanes, bool kWide>
__global__ void __launch_bounds__(kThreads) DeltaStepKernel(const __grid_constant__ trimtab_cuda_delta_preserve d) {
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  const int64_t all = d.batch * d.heads * d.rows;
  const bool exists = index < all;
  const int64_t safe = exists ? index : all - 1;
  const int64_t row = safe % d.rows, head = safe / d.rows % d.heads, batch = safe / d.rows / d.heads;
  const int lane = threadIdx.x % kLanes, column = lane * kColumns, columns = static_cast<int>(d.columns);
  float out[kColumns], low[kColumns], grad[kColumns], step[kColumns];
  LoadColumns<T, kWide>(d.out.data, Offset(d.out, false, batch, head, row), column, columns, out);
  LoadColumns<T, kWide>(d.out_low.data, Offset(d.out_low, false, batch, head, row), column, columns, low);
  LoadColumns<T, kWide>(d.grad_out.data, Offset(d.grad_out, false, batch, head, row), column, columns, grad);
  double residual = 0.0;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    residual += static_cast<double>(grad[i]) * low[i];
    const float s = fabsf(grad[i]) * Ulp<T>(out[i]);
    step[i] = s < INFINITY ? s : 0.0f;
  }
#pragma unroll
  for (int i = kLanes / 2; i > 0; i /= 2) residual += __shfl_xor_sync(~0u, residual, i);
  double bound = 4.0 / 3.0;
  int left = d.max_entries > 0 ? d.max_entries : columns;
  bool active = exists && residual - residual == 0.0 && residual != 0.0;
  while (__any_sync(~0u, active)) {
    const float limit = static_cast<float>(bound * fabs(residual));
    float best = 0.0f;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) best = step[i] <= limit ? fmaxf(best, step[i]) : best;
    float largest = best;
#pragma unroll
    for (int i = kLanes / 2; i > 0; i /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, i));
    const uint32_t mine = __ballot_sync(~0u, best == largest) >> (threadIdx.x % 32 / kLanes * kLanes);
    const int owner = __ffs(static_cast<int>(kLanes == 32 ? mine : mine & ((1u << (kLanes % 32)) - 1u))) - 1;
    double change = 0.0;  // of rowsum(dO O)
    if (active && largest > 0.0f && lane == owner) {
      bool found = false;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (found || step[i] != largest) continue;
        found = true;
        step[i] = 0.0f;
        const double reach = 4.0 * Ulp<T>(out[i]);
        const double wanted = fmin(fmax(residual / grad[i], -reach), reach);
        const float target = Round<T>(static_cast<float>(out[i] + wanted));
        const double move = static_cast<double>(target) - out[i];
        if (move == 0.0 || move - move != 0.0) continue;
        out[i] = target;
        change = grad[i] * move;
      }
    }
    change = __shfl_sync(~0u, change, owner, kLanes);
    if (!active) continue;
    if (largest == 0.0f) {
      active = bound < 2.0;
      bound = 2.0;
    } else if (change != 0.0) {
      residual -= change;
      active = --left > 0;
    }
  }
  if (exists) StoreColumns<T, kWide>(d.result.data, Offset(d.result, false, batch, head, row), column, columns, out);
}

template <typename T, int kLanes>
void Launch(const trimtab_cuda_delta_preserve& d, bool wide, cudaStream_t stream) {
  const int64_t threads = d.batch * d.heads * d.rows * kLanes;
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  if (wide) {
    DeltaStepKernel<T, kLanes, true><<<blocks, kThreads, 0, stream>>>(d);
  } else {
    DeltaStepKernel<T, kLanes, false><<<blocks, kThreads, 0, stream>>>(d);
  }
}

bool Wide(const void* data, const int64_t (&stride)[4]) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride[0] % 8 == 0 && stride[1] % 8 == 0 && stride[2] % 8 == 0;
}

}  // namespace
}  // namespace trimtab::cuda

extern "C" trimtab_kernel_status trimtab_cuda_delta_preserving_step(const trimtab_cuda_delta_preserve* d,
                                                                    void* stream_pointer) {
  using namespace trimtab::cuda;
  if (d == nullptr || d->struct_size != sizeof *d) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "delta_preserve is NULL or its struct_size is not %zu", sizeof *d);
  }
  if (d->dtype != TRIMTAB_BF16 && d->dtype != TRIMTAB_F16) return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "dtype %d", d->dtype);
  if (d->batch < 0 || d->heads < 1 || d->rows < 0 || d->columns < 1 || d->columns > 256 || d->max_entries < 0) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "batch, heads, rows, columns or max_entries out of range");
  }
  if (d->batch == 0 || d->rows == 0) return TRIMTAB_KERNEL_OK;
  if (d->out.data == nullptr || d->out_low.data == nullptr || d->grad_out.data == nullptr || d->result.data == nullptr) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "out, out_low, grad_out or result is NULL");
  }
  if (d->out.stride[3] != 1 || d->out_low.stride[3] != 1 || d->grad_out.stride[3] != 1 || d->result.stride[3] != 1) {
    return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "a last stride is not 1");
  }
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  const bool wide = d->columns % 8 == 0 && Wide(d->out.data, d->out.stride) && Wide(d->out_low.data, d->out_low.stride) &&
                    Wide(d->grad_out.data, d->grad_out.stride) && Wide(d->result.data, d->result.stride);
  const auto launch = [&]<typename T>() {
    if (d->columns <= 64) {
      Launch<T, 8>(*d, wide, stream);
    } else if (d->columns <= 128) {
      Launch<T, 16>(*d, wide, stream);
    } else {
      Launch<T, 32>(*d, wide, stream);
    }
  };
  d->dtype == TRIMTAB_BF16 ? launch.operator()<Bf16>() : launch.operator()<Fp16>();
  return Launched();
}
