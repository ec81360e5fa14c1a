// The delta-preserving step: a row by a few lanes, which scan its candidates in registers and move an entry together.
//
// The visit is that of docs/numerics.md: the largest step |dO| ulp(O) of at most 4/3 of what is left, then of at most
// twice, and among equal steps the first column. All arithmetic on what is left is FP32, as in kernels/cpu, so that
// both move the same entries. The order of visits depends on the row alone.
#include "kernels/cuda/delta_row.cuh"
#include "kernels/cuda/job.h"

namespace trimtab::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kFirstBound = 4.0f / 3.0f, kLastBound = 2.0f;
constexpr float kReach = 4.0f;  // steps of one entry's move

constexpr int kChunks = 4;         // of eight columns, a lane
constexpr int kMaxUnitsY = 32768;  // (batch, head) units along the grid's y

// kLanes lanes take a row's chunks in turn; a warp has 32 / kLanes rows of one head.
template <typename T, int kLanes, bool kWide>
__global__ void __launch_bounds__(kThreads, 7) DeltaStepKernel(const __grid_constant__ trimtab_cuda_delta_preserve d) {
  using Type = typename T::Type;
  constexpr int kMine = 8 * kChunks, kColumns = kMine * kLanes, kRows = 32 / kLanes;  // kRows: of a warp
  constexpr int kPitch = kColumns + 8 * kLanes;  // lanes of a quarter warp read different banks
  enum { kOut, kGrad, kLow, kTensors };
  __shared__ __align__(16) uint16_t shared[kThreads / 32][kTensors][kRows][kPitch];
  const unsigned unit = blockIdx.z * kMaxUnitsY + blockIdx.y;
  if (unit >= static_cast<unsigned>(d.batch * d.heads)) return;
  const unsigned batch = unit / static_cast<unsigned>(d.heads), head = unit % static_cast<unsigned>(d.heads);
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x % 32 / kLanes, columns = static_cast<int>(d.columns);
  const int64_t first_row = (static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32) * kRows;
  const bool exists = first_row + mine < d.rows;
  auto& tile = shared[threadIdx.x / 32];
  // Neighbouring lanes move neighbouring chunks between the tile and memory, wherever they belong.
  const auto each_chunk = [&](const auto& body) {
    constexpr int kRowChunks = kLanes * kChunks;
#pragma unroll
    for (int i = 0; i < kRows * kRowChunks / 32; ++i) {
      const int chunk = i * 32 + static_cast<int>(threadIdx.x) % 32, row = chunk / kRowChunks;
      if (first_row + row < d.rows) body(row, chunk % kRowChunks * 8);
    }
  };
  const auto fetch = [&](const trimtab_tensor& t, int tensor) {
    const auto* from = static_cast<const uint16_t*>(t.data) + Offset(t, false, batch, head, first_row);
    each_chunk([&](int row, int column) {
      FetchChunk<kWide>(&tile[tensor][row][column], from + row * t.stride[2], column, columns);
    });
  };
  fetch(d.grad_out, kGrad);
  fetch(d.out_low, kLow);
  fetch(d.out, kOut);
  CommitCopies();
  WaitCopies<0>();
  __syncwarp();

  Type* const row_out = reinterpret_cast<Type*>(tile[kOut][mine]);
  const Type* const row_grad = reinterpret_cast<const Type*>(tile[kGrad][mine]);
  // Keys of this lane's columns but for the lane's own bits of the column, which the limit is lowered by instead.
  uint32_t complement[kMine];
  uint32_t most = 0;  // of kSmallestKey less the keys: the row's smallest key
  const uint32_t lane_bits = static_cast<uint32_t>(kLanes - 1 - lane) * 8;
  double sum = 0.0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const auto words = [&](int tensor) {
      return *reinterpret_cast<const uint4*>(&tile[tensor][mine][(c * kLanes + lane) * 8]);
    };
    const uint4 out = words(kOut), low = words(kLow), grad = words(kGrad);
    const uint32_t o[4] = {out.x, out.y, out.z, out.w}, l[4] = {low.x, low.y, low.z, low.w};
    const uint32_t g[4] = {grad.x, grad.y, grad.z, grad.w};
    double part = 0.0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto value = [&](uint32_t word) { return i % 2 == 0 ? T::Low(word) : T::High(word); };
      const float gradient = value(g[i / 2]);
      part += static_cast<double>(gradient * value(l[i / 2]));
      const float step = fabsf(gradient) * Ulp<T>(value(o[i / 2]));
      complement[8 * c + i] = KeyComplement(step, (c * kLanes + kLanes - 1) * 8 + i);
      most = __viaddmax_u32(complement[8 * c + i], kSmallestKey, most);
    }
    sum += part;
  }
#pragma unroll
  for (int i = 1; i < kLanes; i *= 2) {
    sum += __shfl_xor_sync(~0u, sum, i);
    most = max(most, __shfl_xor_sync(~0u, most, i));
  }
  auto residual = static_cast<float>(sum);
  // No key is below `least`. A key k of a step gave kSmallestKey + ~k, which wrapped around for the others.
  const uint32_t least = most >= kSmallestKey + ~kLargestKey ? kSmallestKey + ~most : ~0u;

  uint32_t last = kLargestKey + 1;  // keys from here on need no look: visited, or too large
  uint32_t visited = 0;             // this lane's columns, a bit each
  int left = d.max_entries > 0 ? d.max_entries : columns;
  bool active = exists && residual - residual == 0.0f && residual != 0.0f;
  bool second = false, none = false;  // second: steps up to kLastBound count
  while (true) {
    uint32_t limit = KeyLimit(second ? kLastBound : kFirstBound, residual);
    if (active && !second && (none || limit < least)) {
      second = true;
      limit = KeyLimit(kLastBound, residual);
      none = false;
      if (last <= limit) {  // rare: what was visited is within the wider bound
#pragma unroll
        for (int j = 0; j < kMine; ++j) complement[j] = visited >> j & 1 ? ~0u : complement[j];
        last = kLargestKey + 1;
      }
    }
    active = active && !none && limit >= least;
    if (!__any_sync(~0u, active)) break;
    limit = min(limit, last - 1);
    const uint32_t from = limit + 1 - lane_bits;
    // limit - key of a key too large wraps around, so the least difference is that of the largest key within the limit.
    uint32_t distance[4] = {limit, limit, limit, limit};
#pragma unroll
    for (int j = 0; j < kMine; ++j) distance[j % 4] = __viaddmin_u32(from, complement[j], distance[j % 4]);
    uint32_t nearest = min(min(distance[0], distance[1]), min(distance[2], distance[3]));
#pragma unroll
    for (int i = 1; i < kLanes; i *= 2) nearest = min(nearest, __shfl_xor_sync(~0u, nearest, i));
    const uint32_t key = limit - nearest;
    none = key < kSmallestKey;
    const int column = static_cast<int>(~key & (kColumns - 1u));
    const float out = static_cast<float>(row_out[column]), grad = static_cast<float>(row_grad[column]);
    const float reach = kReach * StepOf(key);
    const float wanted = __fdiv_rn(fminf(fmaxf(residual, -reach), reach), grad);
    const Type target = static_cast<Type>(out + wanted);
    const float move = static_cast<float>(target) - out;
    __syncwarp();
    if (!active || none) continue;
    last = key;
    const bool own = column / 8 % kLanes == lane;
    if (own) visited |= 1u << (column / (8 * kLanes) * 8 + column % 8);
    if (move == 0.0f || move - move != 0.0f) continue;
    residual = __fmaf_rn(-grad, move, residual);
    if (own) row_out[column] = target;
    active = --left > 0;
  }
  __syncwarp();
  auto* to = static_cast<uint16_t*>(d.result.data) + Offset(d.result, false, batch, head, first_row);
  each_chunk([&](int row, int column) {
    StoreChunk<kWide>(to + row * d.result.stride[2], column, columns,
                      *reinterpret_cast<const uint4*>(&tile[kOut][row][column]));
  });
}

template <typename T, int kLanes>
void Launch(const trimtab_cuda_delta_preserve& d, bool wide, cudaStream_t stream) {
  constexpr int64_t kBlockRows = kThreads / kLanes;
  const int64_t units = d.batch * d.heads;
  const dim3 blocks(static_cast<unsigned>((d.rows + kBlockRows - 1) / kBlockRows),
                    static_cast<unsigned>(units < kMaxUnitsY ? units : kMaxUnitsY),
                    static_cast<unsigned>((units + kMaxUnitsY - 1) / kMaxUnitsY));
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
  if (d->dtype != TRIMTAB_BF16 && d->dtype != TRIMTAB_F16)
    return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "dtype %d", d->dtype);
  if (d->batch < 0 || d->heads < 1 || d->rows < 0 || d->batch * d->heads > 1 << 30 || d->rows > 1 << 30 ||
      d->columns < 1 || d->columns > 256 || d->max_entries < 0) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "batch, heads, rows, columns or max_entries out of range");
  }
  if (d->batch == 0 || d->rows == 0) return TRIMTAB_KERNEL_OK;
  if (d->out.data == nullptr || d->out_low.data == nullptr || d->grad_out.data == nullptr ||
      d->result.data == nullptr) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "out, out_low, grad_out or result is NULL");
  }
  if (d->out.stride[3] != 1 || d->out_low.stride[3] != 1 || d->grad_out.stride[3] != 1 || d->result.stride[3] != 1) {
    return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "a last stride is not 1");
  }
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  const bool wide = d->columns % 8 == 0 && Wide(d->out.data, d->out.stride) &&
                    Wide(d->out_low.data, d->out_low.stride) && Wide(d->grad_out.data, d->grad_out.stride) &&
                    Wide(d->result.data, d->result.stride);
  const auto launch = [&]<typename T>() {
    if (d->columns <= 64) {
      Launch<T, 2>(*d, wide, stream);
    } else if (d->columns <= 128) {
      Launch<T, 4>(*d, wide, stream);
    } else {
      Launch<T, 8>(*d, wide, stream);
    }
  };
  d->dtype == TRIMTAB_BF16 ? launch.operator()<Bf16>() : launch.operator()<Fp16>();
  return Launched();
}
