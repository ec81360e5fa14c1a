// Tensor core and copy primitives of sm_80, and the two 16-bit types behind one interface.
#ifndef TRIMTAB_KERNELS_CUDA_MMA_CUH_
#define TRIMTAB_KERNELS_CUDA_MMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace trimtab::cuda {

struct Bf16 {
  using Type = __nv_bfloat16;
  static constexpr int kMantissaBits = 7;
  __device__ static uint32_t Pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
  __device__ static float Low(uint32_t pair) { return __uint_as_float(pair << 16); }
  __device__ static float High(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
};

struct Fp16 {
  using Type = __half;
  static constexpr int kMantissaBits = 10;
  __device__ static uint32_t Pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
  __device__ static float Low(uint32_t pair) { return __low2float(reinterpret_cast<const __half2&>(pair)); }
  __device__ static float High(uint32_t pair) { return __high2float(reinterpret_cast<const __half2&>(pair)); }
};

template <typename T>
__device__ inline float Round(float x) {
  return T::Low(T::Pack(x, 0.0f));
}

// d += a b with a 16x16 row major, b 16x8 column major.
template <typename T>
__device__ inline void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (T::kMantissaBits == 7) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ inline void LoadMatrix(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void LoadMatrixTransposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// 16 bytes from global to shared memory; zeros when `valid` is false, and then nothing is read.
__device__ inline void CopyAsync(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0) : "memory");
}
// 8 bytes, likewise.
__device__ inline void CopyAsync8(uint64_t* shared, const uint64_t* global) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],8;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace trimtab::cuda
#endif
