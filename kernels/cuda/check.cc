#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "kernels/cpu/validate.h"
#include "kernels/cuda/job.h"

namespace trimtab::cuda {
namespace {

constexpr int64_t kMaxRows = 1 << 30;

bool Aligned(const void* data, const int64_t (&stride)[4], int64_t elements, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0 && stride[0] % elements == 0 && stride[1] % elements == 0 &&
         stride[2] % elements == 0 && stride[3] == 1;
}

bool KnownHeadDim(int64_t d) { return d == 64 || d == 96 || d == 128 || d == 192 || d == 256; }

}  // namespace

trimtab_kernel_status Fail(trimtab_kernel_status code, const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return cpu::Fail(code, "%s", text);
}

trimtab_kernel_status Launched() {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return TRIMTAB_KERNEL_OK;
  return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "CUDA: %s", cudaGetErrorString(error));
}

trimtab_kernel_status Check(const trimtab_cuda_attention* from, bool values, trimtab_cuda_attention* to) {
  if (from == nullptr || from->struct_size != sizeof *from) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "attention is NULL or its struct_size is not %zu", sizeof *from);
  }
  trimtab_cuda_attention& a = *to = *from;
  if (a.dtype != TRIMTAB_BF16 && a.dtype != TRIMTAB_F16) return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "dtype %d", a.dtype);
  if (!KnownHeadDim(a.head_dim)) {
    return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "head_dim %lld", static_cast<long long>(a.head_dim));
  }
  if (a.batch < 0 || a.batch > 65535 || a.heads < 1 || a.heads > 65535 || a.kv_heads < 1 || a.heads % a.kv_heads != 0 ||
      a.queries < 0 || a.queries > kMaxRows || a.keys < 0 || a.keys > kMaxRows) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "batch, heads, kv_heads, queries or keys out of range");
  }
  if ((a.mask.cu_seqlens_q == nullptr) != (a.mask.cu_seqlens_k == nullptr)) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "only one of cu_seqlens_q and cu_seqlens_k is given");
  }
  if (!(a.scale >= 0.0f) || !std::isfinite(a.scale) || !(a.softcap >= 0.0f) || !std::isfinite(a.softcap) ||
      (a.beta != 0.0f && !(a.beta >= 1.0f && std::isfinite(a.beta)))) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "scale, softcap or beta out of range");
  }
  if (a.scale == 0.0f) a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)));
  if (a.beta == 0.0f) a.beta = 2.0f;
  if (a.empty_lse == 0.0f) a.empty_lse = -INFINITY;
  if (a.batch == 0 || a.queries == 0) return TRIMTAB_KERNEL_OK;
  const bool some_keys = a.keys > 0 || a.mask.cu_seqlens_k != nullptr;
  if (a.q.data == nullptr || (some_keys && (a.k.data == nullptr || (values && a.v.data == nullptr)))) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "q, k or v is NULL");
  }
  if (!Aligned(a.q.data, a.q.stride, 8, 16) || (some_keys && !Aligned(a.k.data, a.k.stride, 8, 16)) ||
      (some_keys && a.v.data != nullptr && !Aligned(a.v.data, a.v.stride, 8, 16))) {
    return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "q, k or v: last stride not 1, or not in units of 16 bytes");
  }
  return TRIMTAB_KERNEL_OK;
}

}  // namespace trimtab::cuda

extern "C" trimtab_kernel_status trimtab_cuda_attention_forward(const trimtab_cuda_attention* from, void* stream) {
  using namespace trimtab::cuda;
  trimtab_cuda_attention a;
  if (const auto status = Check(from, true, &a); status != TRIMTAB_KERNEL_OK) return status;
  if (a.batch == 0 || a.queries == 0) return TRIMTAB_KERNEL_OK;
  if (a.out.data == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "out is NULL");
  if (!Aligned(a.out.data, a.out.stride, 2, 4) ||
      (a.out_low.data != nullptr && !Aligned(a.out_low.data, a.out_low.stride, 2, 4))) {
    return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "out or out_low: last stride not 1, or not in units of 4 bytes");
  }
  const auto launch = [&]<typename T>() {
    const auto s = static_cast<cudaStream_t>(stream);
    switch (a.head_dim) {
      case 64:
        return LaunchForward<T, 64>(a, s);
      case 96:
        return LaunchForward<T, 96>(a, s);
      case 128:
        return LaunchForward<T, 128>(a, s);
      case 192:
        return LaunchForward<T, 192>(a, s);
      default:
        return LaunchForward<T, 256>(a, s);
    }
  };
  return a.dtype == TRIMTAB_BF16 ? launch.operator()<Bf16>() : launch.operator()<Fp16>();
}
