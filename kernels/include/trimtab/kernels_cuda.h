/* Attention numerics on a CUDA device: stabilized forward, passive probe, delta-preserving step, spectral norm and
 * activation statistics. C ABI over raw device pointers; the names, shapes and statistics of kernels.h. sm_80 and later.
 *
 * Every call enqueues on `stream` (a cudaStream_t) and returns: no allocation, no synchronisation, nothing read back, so
 * all of them can be captured into a CUDA graph. Pointers are device pointers unless said otherwise, and must live until
 * the work is done. Results are bitwise repeatable: nothing is summed by floating-point atomics.
 *
 * Workspaces are the caller's, zeroed once before the first use, and belong to one stream at a time.
 *
 * Errors: a status of kernels.h; trimtab_kernel_error() names the cause. A refused launch is UNSUPPORTED. On an error
 * nothing was enqueued. NaN and Inf are data.
 */
#ifndef TRIMTAB_KERNELS_CUDA_H_
#define TRIMTAB_KERNELS_CUDA_H_

#include "trimtab/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which keys a query row sees, and where its rows lie. With offset = 0 for top-left and keys - queries for bottom-right
 * alignment, row t sees the keys j with t + offset - window_left <= j <= t + offset + window_right. */
typedef struct {
  int32_t bottom_right;  /* 0: top-left alignment of mask and window, 1: bottom-right, per sequence */
  int32_t window_left;   /* -1: no limit */
  int32_t window_right;  /* -1: no limit; 0: causal */
  const int32_t* cu_seqlens_q; /* NULL: dense. Else [batch + 1] row offsets into packed tensors; batch strides unused */
  const int32_t* cu_seqlens_k; /* given exactly when cu_seqlens_q is */
} trimtab_cuda_mask;

/* Forward of one attention call. dtype BF16 or F16; head_dim == value_dim one of 64, 96, 128, 192, 256; any queries,
 * keys >= 0 (varlen: `queries` is the longest sequence, `keys` is unused). q, k, v: last stride 1, other strides
 * multiples of 8 elements, 16-byte aligned. out and out_low: last stride 1, other strides even, 4-byte aligned.
 * A key whose weight is 0 must still have a finite value row where it shares a tile of 64 keys with visible ones (128
 * keys at head size 128 on sm_90). */
typedef struct {
  uint32_t struct_size;
  trimtab_dtype dtype;
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
  float scale;   /* 0: 1/sqrt(head_dim) */
  float softcap; /* 0: none; else scores become softcap * tanh(score / softcap) */
  float beta;    /* PAPER only; 0: 2 */
  float empty_lse; /* 0: -INFINITY */
  const int32_t* kind; /* device flag, a trimtab_attention_kind, read when the kernel runs; NULL: STABILIZED */
  trimtab_cuda_mask mask;
  trimtab_tensor q, k, v;
  trimtab_mutable_tensor out;     /* dtype */
  trimtab_mutable_tensor out_low; /* dtype: what rounding took from `out`, itself rounded once. May be NULL */
  trimtab_mutable_tensor lse;     /* FP32, natural log, strides (batch, head, row, -). May be NULL */
} trimtab_cuda_attention;

/* One launch. Cost: one pass over the visible tiles; PAPER two passes over Q K^T. */
trimtab_kernel_status trimtab_cuda_attention_forward(const trimtab_cuda_attention* a, void* stream);

/* Passive probe of the rows row_begin, row_begin + row_step, … of batches batch_begin, … ; adds to stats[heads].
 * Dense or varlen, alignment and shapes as the forward. v with out gives output_*, with grad_out also delta_*. */
typedef struct {
  trimtab_cuda_attention attention; /* out, out_low, lse, kind unused; v.data may be NULL */
  trimtab_tensor out, grad_out;     /* dtype, last stride 1; data may be NULL */
  int64_t row_begin, row_step, batch_begin, batch_step;
  trimtab_head_stats* stats; /* [heads], reset once by the caller (trimtab_head_stats_reset, copied) */
  const uint64_t* step;      /* device step counter; NULL: probe every call */
  uint64_t period;           /* with `step`: the launch does nothing unless *step % period == 0 */
  void* workspace;           /* trimtab_cuda_probe_workspace() bytes */
} trimtab_cuda_probe;

/* Bytes for a probe of these shapes; 0 for bad ones. */
size_t trimtab_cuda_probe_workspace(const trimtab_cuda_probe* p);
/* One launch. Scores on the tensor cores: once where a cluster of thread blocks keeps a row's scores in registers (sm_90,
 * short rows), else twice. P V with P split into three terms, so that O is exact to FP32. */
trimtab_kernel_status trimtab_cuda_attention_probe(const trimtab_cuda_probe* p, void* stream);

/* The delta-preserving step of kernels.h, with out_low in `dtype` as the forward above writes it. Rows of at most 256
 * columns; last strides 1. Reads out, out_low, grad_out once, writes result once (may alias out). */
typedef struct {
  uint32_t struct_size;
  trimtab_dtype dtype; /* BF16 or F16 */
  int64_t batch, heads, rows, columns;
  trimtab_tensor out, out_low, grad_out;
  trimtab_mutable_tensor result;
  int32_t max_entries; /* 0: all */
} trimtab_cuda_delta_preserve;
trimtab_kernel_status trimtab_cuda_delta_preserving_step(const trimtab_cuda_delta_preserve* d, void* stream);

/* One step of warm power iteration on W [rows, columns], row major with unit column stride, or on `slices` equal row
 * blocks. vector [slices, columns] FP32, zero before first use; sigma, residual [slices]. BF16, F16 or F32. */
typedef struct {
  uint32_t struct_size;
  trimtab_dtype dtype;
  const void* data;
  int64_t rows, columns, row_stride, slices;
  float *vector, *sigma, *residual; /* residual may be NULL */
  void* workspace;                  /* trimtab_cuda_spectral_workspace() bytes; need not be zeroed */
} trimtab_cuda_spectral;
size_t trimtab_cuda_spectral_workspace(int64_t rows, int64_t columns, int64_t slices);
/* Three launches; reads W from memory once. */
trimtab_kernel_status trimtab_cuda_spectral_norm(const trimtab_cuda_spectral* s, void* stream);

/* One read of n contiguous values; adds to *stats (device). workspace: TRIMTAB_CUDA_ACTIVATION_WORKSPACE bytes. */
#define TRIMTAB_CUDA_ACTIVATION_WORKSPACE 65536
trimtab_kernel_status trimtab_cuda_activation(trimtab_dtype dtype, const void* data, int64_t n, float threshold,
                                              trimtab_activation_stats* stats, void* workspace, void* stream);

/* ++*step on the device, in stream order. */
trimtab_kernel_status trimtab_cuda_advance_step(uint64_t* step, void* stream);

/* One asynchronous copy of statistics from the device into `pinned`, page-locked host memory. */
trimtab_kernel_status trimtab_cuda_copy_stats(void* pinned, const void* device, size_t bytes, void* stream);

#ifdef __cplusplus
}
#endif
#endif
