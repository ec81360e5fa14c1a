/* Attention numerics over raw pointers and strides: three forwards, the flash backward, the delta-preserving step,
 * a passive probe, spectral norms and activation statistics. C ABI; no dependency; no allocation after warm-up.
 *
 * Definitions and the sources of every formula: docs/numerics.md.
 *
 * Layout. A tensor is a pointer and four element strides in the order (batch, head, row, column), so BHSD, BSHD and
 * packed QKV are all views. The last stride may be anything, 1 is fast. Query head h reads key/value head
 * h / (heads / kv_heads).
 *
 * Threads. Every function may be called from any thread; calls that write the same buffers must not overlap. Work is
 * split over `parallel_for` when given (the host job's own pool), else done on the calling thread. Results do not
 * depend on the split.
 *
 * Errors. Functions return TRIMTAB_KERNEL_OK or a code and write nothing else; trimtab_kernel_error() names the cause.
 * NaN and Inf are data, never an error.
 */
#ifndef TRIMTAB_KERNELS_H_
#define TRIMTAB_KERNELS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  TRIMTAB_KERNEL_OK = 0,
  TRIMTAB_KERNEL_BAD_ARGUMENT = 1,
  TRIMTAB_KERNEL_UNSUPPORTED = 2,
  TRIMTAB_KERNEL_OUT_OF_MEMORY = 3, /* work space; outputs are undefined then */
} trimtab_kernel_status;

typedef enum { TRIMTAB_F32 = 0, TRIMTAB_BF16 = 1, TRIMTAB_F16 = 2 } trimtab_dtype;

/* Format that P̄, V and O are rounded to (round to nearest even, mantissa only: FP32's exponent range), whatever the
 * dtype of the tensors that carry them. SAME means the tensors' dtype. E4M3 keeps 3 explicit mantissa bits, E5M2 two.
 */
typedef enum {
  TRIMTAB_STORE_SAME = 0,
  TRIMTAB_STORE_FP32 = 1,
  TRIMTAB_STORE_BF16 = 2,
  TRIMTAB_STORE_FP16 = 3,
  TRIMTAB_STORE_E4M3 = 4,
  TRIMTAB_STORE_E5M2 = 5,
} trimtab_storage;

typedef enum {
  TRIMTAB_ATTENTION_STANDARD = 0,   /* P = exp(S - m), one rounding of O / l at the end, l of unrounded P */
  TRIMTAB_ATTENTION_PAPER = 1,      /* published beta rule, guarded so that no row empties */
  TRIMTAB_ATTENTION_STABILIZED = 2, /* c = 25/32 shift, l of the rounded P, low half of O kept */
} trimtab_attention_kind;

typedef enum {
  TRIMTAB_MASK_NONE = 0,
  TRIMTAB_MASK_BOOL = 1,     /* uint8, nonzero = visible */
  TRIMTAB_MASK_ADDITIVE = 2, /* added to the scaled scores, in `mask_dtype` */
} trimtab_mask_kind;

typedef struct {
  const void* data;
  int64_t stride[4]; /* elements: batch, head, row, column; 0 broadcasts */
} trimtab_tensor;

typedef struct {
  void* data; /* NULL: not wanted */
  int64_t stride[4];
} trimtab_mutable_tensor;

/* Runs body(arg, begin, end) over a partition of [0, n), possibly in parallel, and returns when all are done. */
typedef void (*trimtab_parallel_for)(void* context, int64_t n, int64_t grain,
                                     void (*body)(void* arg, int64_t begin, int64_t end), void* arg);

/* Exact statistics of one query head, summed over batch and rows (docs/numerics.md). Zero before first use; calls add.
 * max_logit starts at -INFINITY. All against each row's final maximum, so they do not depend on tiles or backends. */
typedef struct {
  uint64_t rows;              /* rows with two or more visible keys */
  uint64_t trivial_rows;      /* rows with exactly one visible key; not in `rows` */
  uint64_t empty_rows;        /* rows with none */
  uint64_t repeated_max_rows; /* of `rows`: two or more entries with round(P) == 1 */
  uint64_t p_one_count;       /* entries with round(P) == 1, in `rows` only */
  uint64_t tie_rows;          /* of `rows`: maximum reached bit-equally by two or more FP32 scores */
  uint64_t scores;            /* visible entries in `rows` */
  uint64_t nonfinite_scores;  /* NaN or Inf among visible scores before the mask is added; all rows */
  double entropy_sum;         /* nats, over `rows` */
  double sink_share_sum;      /* P of key 0, over `rows` */
  double residual_mass_sum;   /* sum of unnormalised P of entries that do not round to 1, over `rows` */
  uint64_t delta_rows;        /* rows with O and dO read */
  double delta_residual_sum;  /* sum of g = rowsum(dO*(O_stored - O_fp32)) */
  double delta_residual_sum_squares;
  double output_error_sum_squares; /* ||O_stored - O_fp32||^2 */
  double output_sum_squares;       /* ||O_fp32||^2 */
  float max_logit;                 /* largest visible score before the mask is added; all rows; never floored */
  uint32_t reserved;
} trimtab_head_stats;

/* Makes stats[heads] ready for a first use. */
void trimtab_head_stats_reset(trimtab_head_stats* stats, int64_t heads);

typedef struct {
  uint32_t struct_size; /* sizeof(trimtab_attention) of the caller; later fields default to 0 */
  trimtab_attention_kind kind;
  trimtab_storage storage;
  trimtab_dtype dtype; /* of q, k, v, out */
  int64_t batch, heads, kv_heads, queries, keys, head_dim, value_dim;
  float scale;    /* 0: 1/sqrt(head_dim) */
  float beta;     /* PAPER only; 0: 2 */
  int32_t causal; /* 0 full, 1 top-left (torch SDPA), 2 bottom-right (flash) */
  trimtab_mask_kind mask_kind;
  trimtab_dtype mask_dtype;
  trimtab_tensor q, k, v, mask;
  trimtab_mutable_tensor out;     /* dtype; rounded to `storage` */
  trimtab_mutable_tensor out_low; /* FP32: round-off of `out`, O_fp32 - out; STABILIZED uses it in its backward */
  trimtab_mutable_tensor lse;     /* FP32, natural log, strides (batch, head, row, 0); empty row: empty_lse */
  float empty_lse;                /* what the host's backend writes: -INFINITY (default when 0) or +INFINITY */
  trimtab_head_stats* stats;      /* NULL or [heads]; added to */
  trimtab_parallel_for parallel_for;
  void* parallel_context;
} trimtab_attention;

/* O, low half and LSE of one call. Cost: one pass over the scores; with stats about 1.3 times that. */
trimtab_kernel_status trimtab_attention_forward(const trimtab_attention* a);

typedef struct {
  trimtab_attention forward; /* q, k, v, mask, out, lse read as given by the forward; stats, if set, gets delta_* */
  trimtab_tensor grad_out;   /* dtype */
  trimtab_mutable_tensor grad_q, grad_k, grad_v; /* dtype, overwritten */
  trimtab_mutable_tensor grad_mask;              /* unsupported: data must be NULL */
} trimtab_attention_grad;

/* As flash attention does it: P = exp(S - lse), delta = rowsum(grad_out * out) from the given `out`,
 * dS = P * (dP - delta). V is rounded to `storage`; sums in FP32. */
trimtab_kernel_status trimtab_attention_backward(const trimtab_attention_grad* g);

/* Picks each rounding of `out` so that rowsum(grad_out*result) equals rowsum(grad_out*(out + out_low)) as nearly as
 * the format allows (numerics.md section 4). Shapes [batch, heads, rows, columns]; result has `dtype`, may alias out.
 */
typedef struct {
  uint32_t struct_size;
  trimtab_dtype dtype;
  trimtab_storage storage;
  int64_t batch, heads, rows, columns;
  trimtab_tensor out, out_low, grad_out; /* dtype, FP32, dtype */
  trimtab_mutable_tensor result;
  int32_t max_entries; /* entries that may move in a row; 0: all */
  trimtab_parallel_for parallel_for;
  void* parallel_context;
} trimtab_delta_preserve;
trimtab_kernel_status trimtab_delta_preserving_step(const trimtab_delta_preserve* d);

/* Passive probe: fills stats[heads] from q and k for the rows row_begin, row_begin + row_step, … of every
 * (batch_begin + i*batch_step, head); output_* also needs v and out, delta_* also grad_out. Writes nothing else. */
typedef struct {
  trimtab_attention attention; /* kind ignored; out/lse/out_low not written */
  trimtab_tensor out;          /* data may be NULL */
  trimtab_tensor grad_out;     /* data may be NULL */
  int64_t row_begin, row_step, batch_begin, batch_step;
} trimtab_probe;
trimtab_kernel_status trimtab_attention_probe(const trimtab_probe* p);

/* Warm power iteration on W [rows, columns] or on `slices` equal row blocks of it (per-head slices).
 * `vector` is the caller's [slices, columns] FP32 right vector, zero before first use, kept between calls.
 * sigma[slices] is a lower bound of sigma_1; residual[slices] = ||W^T u - sigma v||. */
typedef struct {
  uint32_t struct_size;
  trimtab_dtype dtype;
  const void* data;
  int64_t rows, columns, row_stride, column_stride, slices;
  int32_t iterations; /* 0: 1 */
  float* vector;
  float* sigma;
  float* residual; /* may be NULL */
  trimtab_parallel_for parallel_for;
  void* parallel_context;
} trimtab_spectral;
trimtab_kernel_status trimtab_spectral_norm(const trimtab_spectral* s);

typedef struct {
  uint64_t count, nonfinite, above_threshold; /* |x| > threshold */
  double sum, sum_squares;                    /* of finite values */
  float abs_max;                              /* of finite values */
  uint32_t reserved;
} trimtab_activation_stats;
/* One read of n contiguous values; adds to *stats. */
trimtab_kernel_status trimtab_activation(trimtab_dtype dtype, const void* data, int64_t n, float threshold,
                                         trimtab_activation_stats* stats);

/* Rounds to nearest even to the format's mantissa; NaN and Inf unchanged. */
float trimtab_round(float x, trimtab_storage storage);

/* Cause of the last failed call on this thread; "" if none. Valid until the next call on it. */
const char* trimtab_kernel_error(void);

#ifdef __cplusplus
}
#endif
#endif
