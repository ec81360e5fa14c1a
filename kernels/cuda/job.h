// Checked arguments of attention kernels, as they are passed to the device.
#ifndef TRIMTAB_KERNELS_CUDA_JOB_H_
#define TRIMTAB_KERNELS_CUDA_JOB_H_

#include <cuda_runtime.h>

#include "trimtab/kernels_cuda.h"

#ifdef __CUDACC__
#define TRIMTAB_HOST_DEVICE __host__ __device__
#else
#define TRIMTAB_HOST_DEVICE
#endif

namespace trimtab::cuda {

inline constexpr float kShift = 25.0f / 32.0f;
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;

// Rows of one sequence of the batch.
struct Sequence {
  int64_t q_begin, k_begin;
  int queries, keys;
  int offset;  // key on the mask's diagonal of row 0
};

TRIMTAB_HOST_DEVICE inline Sequence SequenceOf(const trimtab_cuda_attention& a, int batch) {
  Sequence s{0, 0, static_cast<int>(a.queries), static_cast<int>(a.keys), 0};
  if (a.mask.cu_seqlens_q != nullptr) {
    s.q_begin = a.mask.cu_seqlens_q[batch];
    s.k_begin = a.mask.cu_seqlens_k[batch];
    s.queries = static_cast<int>(a.mask.cu_seqlens_q[batch + 1] - s.q_begin);
    s.keys = static_cast<int>(a.mask.cu_seqlens_k[batch + 1] - s.k_begin);
  }
  s.offset = a.mask.bottom_right ? s.keys - s.queries : 0;
  return s;
}

// First visible key of a row, and the one behind its last; first >= last: none.
TRIMTAB_HOST_DEVICE inline int FirstKey(const trimtab_cuda_mask& m, const Sequence& s, int row) {
  const int first = m.window_left < 0 ? 0 : row + s.offset - m.window_left;
  return first > 0 ? first : 0;
}
TRIMTAB_HOST_DEVICE inline int EndKey(const trimtab_cuda_mask& m, const Sequence& s, int row) {
  const int end = m.window_right < 0 ? s.keys : row + s.offset + m.window_right + 1;
  return end < s.keys ? (end > 0 ? end : 0) : s.keys;
}

template <typename Tensor>
TRIMTAB_HOST_DEVICE inline int64_t Offset(const Tensor& t, bool packed, int64_t batch, int64_t head, int64_t row) {
  return (packed ? 0 : batch * t.stride[0]) + head * t.stride[1] + row * t.stride[2];
}

// Copies *from and fills in defaults. `values`: v is needed.
trimtab_kernel_status Check(const trimtab_cuda_attention* from, bool values, trimtab_cuda_attention* a);
trimtab_kernel_status Fail(trimtab_kernel_status code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Status of the launch just made.
trimtab_kernel_status Launched();

struct Bf16;
struct Fp16;

template <typename T, int kDim>
trimtab_kernel_status LaunchForward(const trimtab_cuda_attention& a, cudaStream_t stream);

}  // namespace trimtab::cuda
#endif
