// Forward kernels of head size 256.
#include "kernels/cuda/forward.cuh"

namespace trimtab::cuda {
template trimtab_kernel_status LaunchForward<Bf16, 256>(const trimtab_cuda_attention&, cudaStream_t);
template trimtab_kernel_status LaunchForward<Fp16, 256>(const trimtab_cuda_attention&, cudaStream_t);
}  // namespace trimtab::cuda
