#include "kernels/cuda/forward_sm90.h"

#include <cudaTypedefs.h>

#include <algorithm>
#include <climits>

namespace trimtab::cuda {
namespace {

// Bytes of keys and values that a section of heads may fill of the L2 cache.
constexpr int64_t kSectionBytes = int64_t{24} << 20;

PFN_cuTensorMapEncodeTiled_v12000 FindEncoder() {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    cudaGetLastError();  // not that of a launch to come
    return nullptr;
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(address);
}

// A map that copies boxes of 64 columns and `box_rows` rows, swizzled by 128 bytes.
bool Encode(const trimtab_cuda_attention& a, const trimtab_tensor& t, int64_t heads, int64_t rows, int box_rows,
            CUtensorMap* map) {
  static const auto encode = FindEncoder();
  if (encode == nullptr) return false;
  const cuuint64_t size[4] = {static_cast<cuuint64_t>(a.head_dim), static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(a.batch)};
  const int64_t stride[3] = {t.stride[2], t.stride[1], t.stride[0]};
  cuuint64_t bytes[3];
  for (int i = 0; i < 3; ++i) {
    if (size[i + 1] > 1 && (stride[i] <= 0 || stride[i] >= int64_t{1} << 38)) return false;
    bytes[i] =
        size[i + 1] > 1 ? static_cast<cuuint64_t>(stride[i]) * 2 : 16;  // an extent of 1 may come with any stride
  }
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows), 1, 1}, step[4] = {1, 1, 1, 1};
  return encode(map, a.dtype == TRIMTAB_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
                const_cast<void*>(t.data), size, bytes, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool Wide(const trimtab_mutable_tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride[0] % 8 == 0 && t.stride[1] % 8 == 0 &&
         t.stride[2] % 8 == 0;
}

template <int kDim>
bool Prepare(const trimtab_cuda_attention& a, int processors, ForwardSm90Job* job) {
  using Shape = ForwardSm90Shape<kDim>;
  const int64_t blocks = (a.queries + Shape::kRows - 1) / Shape::kRows, heads = a.batch * a.heads;
  const int64_t all = blocks * heads;
  if (all > INT_MAX / 2) return false;
  if (!Encode(a, a.q, a.heads, a.queries, 64, &job->q) || !Encode(a, a.k, a.kv_heads, a.keys, Shape::kKeys, &job->k) ||
      !Encode(a, a.v, a.kv_heads, a.keys, Shape::kKeys, &job->v)) {
    return false;
  }
  job->a = a;
  job->wide_out = Wide(a.out);
  job->wide_low = Wide(a.out_low);
  // Where costs are known to be even, thread blocks stay and take several blocks of rows in turn, so that loads for the
  // next overlap the end of the last: equal costs in sections, evenly rising ones in pairs. Else the hardware deals
  // them out.
  const bool equal = a.mask.window_right < 0, rising = !equal && a.keys >= a.queries;
  const bool stay = all > processors && (equal || rising);
  const int64_t group = a.heads / a.kv_heads, head_bytes = 4 * a.keys * kDim;
  const int64_t section = std::max<int64_t>(1, kSectionBytes / head_bytes) * group;
  job->order = {static_cast<int>(blocks), static_cast<int>(heads), static_cast<int>(std::min(section, heads)),
                stay && rising};
  job->grid = static_cast<int>(stay ? processors : all);
  return true;
}

}  // namespace

bool PrepareForwardSm90(const trimtab_cuda_attention& a, ForwardSm90Job* job) {
  if ((a.head_dim != 64 && a.head_dim != 128) || a.mask.cu_seqlens_q != nullptr || a.mask.window_left >= 0 ||
      a.softcap > 0.0f || a.keys < 1) {
    return false;
  }
  int device, major, minor, processors;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess || major != 9 ||
      minor != 0) {
    return false;
  }
  return a.head_dim == 64 ? Prepare<64>(a, processors, job) : Prepare<128>(a, processors, job);
}

}  // namespace trimtab::cuda
