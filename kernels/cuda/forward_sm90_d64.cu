// Forward kernels for sm_90a of head size 64.
#include "kernels/cuda/forward_sm90.cuh"

namespace trimtab::cuda {
template trimtab_kernel_status LaunchForwardSm90<Bf16, 64>(const ForwardSm90Job&, cudaStream_t);
template trimtab_kernel_status LaunchForwardSm90<Fp16, 64>(const ForwardSm90Job&, cudaStream_t);
}  // namespace trimtab::cuda
