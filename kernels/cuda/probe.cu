// Passive probe: its arguments, its workspace and its launch.
#include <algorithm>

#include "kernels/cuda/probe_kernel.cuh"

namespace trimtab::cuda {
namespace {

// Fills in the sampling. False: out of range.
bool Sample(const trimtab_cuda_probe& p, ProbeArguments* to) {
  const auto& a = p.attention;
  if (p.row_begin < 0 || p.row_step < 1 || p.batch_begin < 0 || p.batch_step < 1 || a.heads < 1) return false;
  const int64_t rows = a.queries > p.row_begin ? (a.queries - p.row_begin + p.row_step - 1) / p.row_step : 0;
  const int64_t batches = a.batch > p.batch_begin ? (a.batch - p.batch_begin + p.batch_step - 1) / p.batch_step : 0;
  const int64_t groups = (rows + kProbeRows - 1) / kProbeRows;
  if (groups * batches > 1 << 24) return false;
  *to = {};
  to->groups = static_cast<int>(groups);
  to->units = static_cast<int>(groups * batches);
  if (to->units == 0) return true;
  to->rows = static_cast<int>(rows);
  // A step wider than the call samples one row or batch.
  to->row_begin = static_cast<int>(p.row_begin);
  to->row_step = static_cast<int>(std::min(p.row_step, a.queries));
  to->batch_begin = static_cast<int>(p.batch_begin);
  to->batch_step = static_cast<int>(std::min(p.batch_step, a.batch));
  return true;
}

bool Copy(const trimtab_tensor& from, ProbeTensor* to) {
  *to = {from.data, from.stride[0], from.stride[1], static_cast<int>(from.stride[2])};
  return from.data == nullptr || to->row_stride == from.stride[2];
}

size_t DoneBytes(int64_t heads) { return static_cast<size_t>((heads * 4 + 255) / 256 * 256); }

// Blocks that share the keys of a cluster's rows: more while that gives idle multiprocessors work, and every block
// keys; two at least, as a launch of single blocks may not count as one of clusters. 0 where `kernel` is code without
// clusters.
int ClusterBlocks(const void* kernel, const ProbeArguments& p, int64_t heads, int key_lanes) {
  cudaFuncAttributes code{};
  int device = 0, processors = 0;
  if (cudaFuncGetAttributes(&code, kernel) != cudaSuccess || code.ptxVersion < 90 ||
      cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 0;
  }
  const int64_t keys = p.mask.cu_seqlens_k != nullptr ? p.queries : p.keys, clusters = p.units * heads;
  int blocks = 2;
  while (blocks < kMaxCluster && 2 * blocks * clusters <= 4 * processors && blocks * key_lanes * kTileKeys < keys) {
    blocks *= 2;
  }
  return blocks;
}

template <typename T, int kDim, bool kOutput>
trimtab_kernel_status Launch(const ProbeArguments& p, int64_t heads, cudaStream_t stream) {
  using Shape = ProbeShape<kDim, kOutput>;
  const auto kernel = ProbeKernel<T, kDim, kOutput>;
  const int blocks = ClusterBlocks(reinterpret_cast<const void*>(kernel), p, heads, Shape::kKeyLanes);
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(p.groups * std::max(blocks, 1)), static_cast<unsigned>(heads),
                        static_cast<unsigned>(p.units / p.groups));
  launch.blockDim = dim3(Shape::kThreads);
  launch.dynamicSmemBytes = kOutput ? ProductBytes<T, kDim>() : 0;
  launch.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  launch.attrs = &cluster;
  launch.numAttrs = blocks > 0 ? 1 : 0;
  if (kOutput) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(launch.dynamicSmemBytes));
  }
  cudaLaunchKernelEx(&launch, kernel, p);
  return Launched();
}

}  // namespace
}  // namespace trimtab::cuda

extern "C" {

size_t trimtab_cuda_probe_workspace(const trimtab_cuda_probe* p) {
  using namespace trimtab::cuda;
  ProbeArguments plan;
  if (p == nullptr || !Sample(*p, &plan)) return 0;
  const auto parts = static_cast<size_t>(p->attention.heads) * static_cast<size_t>(std::max(plan.units, 1));
  return DoneBytes(p->attention.heads) + parts * kHeadFields * sizeof(double);
}

trimtab_kernel_status trimtab_cuda_attention_probe(const trimtab_cuda_probe* from, void* stream) {
  using namespace trimtab::cuda;
  if (from == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "probe is NULL");
  trimtab_cuda_attention a;
  if (const auto status = Check(&from->attention, false, &a); status != TRIMTAB_KERNEL_OK) return status;
  ProbeArguments p;
  if (!Sample(*from, &p)) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "row or batch sampling out of range");
  if (from->stats == nullptr || from->workspace == nullptr || (from->step != nullptr && from->period == 0)) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "stats or workspace is NULL, or period is 0");
  }
  if ((from->out.data != nullptr && from->out.stride[3] != 1) ||
      (from->grad_out.data != nullptr && from->grad_out.stride[3] != 1)) {
    return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "out or grad_out: last stride not 1");
  }
  if (p.units == 0) return TRIMTAB_KERNEL_OK;
  if (!Copy(a.q, &p.q) || !Copy(a.k, &p.k) || !Copy(a.v, &p.v) || !Copy(from->out, &p.out) ||
      !Copy(from->grad_out, &p.grad)) {
    return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "a row stride of 2^31 elements or more");
  }
  p.step = from->step, p.period = from->period;
  p.mask = a.mask;
  p.queries = static_cast<int>(a.queries), p.keys = static_cast<int>(a.keys);
  p.heads_per_kv = static_cast<unsigned>(a.heads / a.kv_heads);
  p.scale = a.scale, p.softcap = a.softcap;
  p.stats = from->stats;
  p.done = static_cast<unsigned*>(from->workspace);
  p.part = reinterpret_cast<double*>(static_cast<char*>(from->workspace) + DoneBytes(a.heads));
  const bool output = p.out.data != nullptr && p.v.data != nullptr;
  const auto launch = [&]<typename T>() {
    const auto with = [&]<int kDim>() {
      const auto s = static_cast<cudaStream_t>(stream);
      return output ? Launch<T, kDim, true>(p, a.heads, s) : Launch<T, kDim, false>(p, a.heads, s);
    };
    switch (a.head_dim) {
      case 64:
        return with.template operator()<64>();
      case 96:
        return with.template operator()<96>();
      case 128:
        return with.template operator()<128>();
      case 192:
        return with.template operator()<192>();
      default:
        return with.template operator()<256>();
    }
  };
  return a.dtype == TRIMTAB_BF16 ? launch.operator()<Bf16>() : launch.operator()<Fp16>();
}

}  // extern "C"
