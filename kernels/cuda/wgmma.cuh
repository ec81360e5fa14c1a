// Warpgroup matrix products of sm_90a: D [64, N] += A [64, 16] B [16, N], 16-bit operands, FP32 sums.
//
// Accumulators of a thread: d[4 n + 2 half + i] is row 16 warp + lane / 4 + 8 half, column 8 n + 2 (lane % 4) + i. A
// from registers has the layout of mma.m16n8k16. Operands in shared memory are blocks of 64 columns (128 bytes a row),
// swizzled by 128 bytes, as a bulk tensor copy with that swizzle writes them; blocks start at multiples of 1024 bytes.
#ifndef TRIMTAB_KERNELS_CUDA_WGMMA_CUH_
#define TRIMTAB_KERNELS_CUDA_WGMMA_CUH_

#include <cstdint>

#include "kernels/cuda/mma.cuh"

namespace trimtab::cuda {

// Orders register writes before the products that follow, in all warps of the group.
__device__ __forceinline__ void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void WaitProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps reads and writes of accumulators on their side of a wait.
template <int kCount>
__device__ __forceinline__ void Pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void Pin(uint32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Rows of 64 columns where the sum runs along a row (Q and K in Q K^T): eight-row groups 1024 bytes apart. The k-th
// step of 16 columns starts 32 k bytes further.
__device__ __forceinline__ uint64_t RowDescriptor(uint32_t shared) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (shared & 0x3ffff) >> 4;
}
// Rows of 64 columns where the sum runs down the rows (V in P V): eight-row groups 1024 bytes apart, the next 64
// columns `block_bytes` further. The k-th step of 16 rows starts 2048 k bytes further.
__device__ __forceinline__ uint64_t ColumnDescriptor(uint32_t shared, uint32_t block_bytes) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{block_bytes >> 4} << 16 | (shared & 0x3ffff) >> 4;
}
inline constexpr uint64_t kRowStep = 32 >> 4, kColumnStep = 2048 >> 4;

#define TRIMTAB_R32                                                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define TRIMTAB_R64                                                                                                  \
  TRIMTAB_R32                                                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TRIMTAB_R36 TRIMTAB_R32 ", %32, %33, %34, %35"
#define TRIMTAB_R68 TRIMTAB_R64 ", %64, %65, %66, %67"
#define TRIMTAB_O4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TRIMTAB_O8(i)                                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define TRIMTAB_O32 TRIMTAB_O8(0), TRIMTAB_O8(8), TRIMTAB_O8(16), TRIMTAB_O8(24)
#define TRIMTAB_O36 TRIMTAB_O32, TRIMTAB_O4(32)
#define TRIMTAB_O68 TRIMTAB_O64, TRIMTAB_O4(64)
#define TRIMTAB_O64 TRIMTAB_O32, TRIMTAB_O8(32), TRIMTAB_O8(40), TRIMTAB_O8(48), TRIMTAB_O8(56)

// A and B from shared memory; operands a, b, p are the numbers of the asm's operands behind the accumulators.
#define TRIMTAB_WGMMA_SHARED(n, type, registers, outputs, a, b, p)                                            \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" p                                                     \
               ", 0;\n"                                                                                       \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, %" a ", %" b \
               ", add, 1, 1, 0, 0;\n}\n"                                                                      \
               : outputs                                                                                      \
               : "l"(a_shared), "l"(b_shared), "r"(static_cast<int>(kAdd)))
// A from registers, B summed down its rows.
#define TRIMTAB_WGMMA_REGISTERS(n, type, registers, outputs, a0, a1, a2, a3, b)                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, {%" a0 ", %" a1 \
               ", %" a2 ", %" a3 "}, %" b ", 1, 1, 1, 1;\n"                                                      \
               : outputs                                                                                         \
               : "r"(p0), "r"(p1), "r"(p2), "r"(p3), "l"(b_shared))

// d = A B^T, or d += with kAdd: rows of A and B along the sum.
template <typename T, bool kAdd, int kCount>
__device__ __forceinline__ void ProductOfRows(float (&d)[kCount], uint64_t a_shared, uint64_t b_shared) {
  static_assert(kCount == 32 || kCount == 64, "N = 64 or 128");
  if constexpr (kCount == 32 && T::kMantissaBits == 7) {
    TRIMTAB_WGMMA_SHARED("64", "bf16", TRIMTAB_R32, TRIMTAB_O32, "32", "33", "34");
  } else if constexpr (kCount == 32) {
    TRIMTAB_WGMMA_SHARED("64", "f16", TRIMTAB_R32, TRIMTAB_O32, "32", "33", "34");
  } else if constexpr (T::kMantissaBits == 7) {
    TRIMTAB_WGMMA_SHARED("128", "bf16", TRIMTAB_R64, TRIMTAB_O64, "64", "65", "66");
  } else {
    TRIMTAB_WGMMA_SHARED("128", "f16", TRIMTAB_R64, TRIMTAB_O64, "64", "65", "66");
  }
}

// d += A B: A from registers, B summed down its rows.
template <typename T, int kCount>
__device__ __forceinline__ void ProductOfColumns(float (&d)[kCount], uint32_t p0, uint32_t p1, uint32_t p2, uint32_t p3,
                                                 uint64_t b_shared) {
  static_assert(kCount == 36 || kCount == 68, "N = 72 or 136");
  if constexpr (kCount == 36 && T::kMantissaBits == 7) {
    TRIMTAB_WGMMA_REGISTERS("72", "bf16", TRIMTAB_R36, TRIMTAB_O36, "36", "37", "38", "39", "40");
  } else if constexpr (kCount == 36) {
    TRIMTAB_WGMMA_REGISTERS("72", "f16", TRIMTAB_R36, TRIMTAB_O36, "36", "37", "38", "39", "40");
  } else if constexpr (T::kMantissaBits == 7) {
    TRIMTAB_WGMMA_REGISTERS("136", "bf16", TRIMTAB_R68, TRIMTAB_O68, "68", "69", "70", "71", "72");
  } else {
    TRIMTAB_WGMMA_REGISTERS("136", "f16", TRIMTAB_R68, TRIMTAB_O68, "68", "69", "70", "71", "72");
  }
}

// A warpgroup's share of the registers from here on; all warps of the group call it.
template <int kCount>
__device__ __forceinline__ void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Named barrier `id` (1 to 15) of `threads` threads.
__device__ __forceinline__ void NamedWait(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void NamedArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace trimtab::cuda
#endif
