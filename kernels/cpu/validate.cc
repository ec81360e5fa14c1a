#include "kernels/cpu/validate.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace trimtab::cpu {
namespace {

thread_local char last_error[256] = "";

// What a C caller put into an enum, which may be no value of it.
template <typename Enum>
int Raw(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int raw;
  std::memcpy(&raw, &value, sizeof raw);
  return raw;
}

trimtab_kernel_status CheckChoice(const char* name, int value, int last) {
  if (value >= 0 && value <= last) return TRIMTAB_KERNEL_OK;
  return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "%s %d is unknown", name, value);
}

trimtab_kernel_status CheckSize(const char* name, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return TRIMTAB_KERNEL_OK;
  return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "%s is %lld, must be %lld to %lld", name, static_cast<long long>(value),
              static_cast<long long>(min), static_cast<long long>(max));
}

trimtab_kernel_status CheckData(const char* name, const void* data) {
  return data != nullptr ? TRIMTAB_KERNEL_OK : Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "%s.data is NULL", name);
}

// Copies the part of *from that the caller's version has; the rest stays 0. Returns false for a newer caller.
template <typename T>
bool CopyVersioned(const T* from, T* to) {
  *to = T{};
  if (from->struct_size < sizeof(uint32_t) || from->struct_size > sizeof(T)) return false;
  std::memcpy(static_cast<void*>(to), from, from->struct_size);
  return true;
}

trimtab_kernel_status BadStructSize(const char* name, uint32_t got, size_t known) {
  return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "%s.struct_size is %u, this library knows %zu", name, got, known);
}

#define TRIMTAB_RETURN_IF_ERROR(call)                                                            \
  do {                                                                                           \
    if (const trimtab_kernel_status status = (call); status != TRIMTAB_KERNEL_OK) return status; \
  } while (false)

trimtab_kernel_status CheckShape(const trimtab_attention& a) {
  TRIMTAB_RETURN_IF_ERROR(CheckSize("batch", a.batch, 0, kMaxBatch));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("heads", a.heads, 1, kMaxHeads));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("kv_heads", a.kv_heads, 1, a.heads));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("queries", a.queries, 0, kMaxSequence));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("keys", a.keys, 0, kMaxSequence));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("head_dim", a.head_dim, 1, kMaxHeadDim));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("value_dim", a.value_dim, 1, kMaxHeadDim));
  if (a.heads % a.kv_heads != 0) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "heads (%lld) is not a multiple of kv_heads (%lld)",
                static_cast<long long>(a.heads), static_cast<long long>(a.kv_heads));
  }
  return TRIMTAB_KERNEL_OK;
}

trimtab_kernel_status CheckChoices(const trimtab_attention& a) {
  TRIMTAB_RETURN_IF_ERROR(CheckChoice("attention kind", Raw(a.kind), TRIMTAB_ATTENTION_STABILIZED));
  TRIMTAB_RETURN_IF_ERROR(CheckChoice("storage", Raw(a.storage), TRIMTAB_STORE_E5M2));
  TRIMTAB_RETURN_IF_ERROR(CheckChoice("dtype", Raw(a.dtype), TRIMTAB_F16));
  TRIMTAB_RETURN_IF_ERROR(CheckChoice("causal", a.causal, 2));
  TRIMTAB_RETURN_IF_ERROR(CheckChoice("mask kind", Raw(a.mask_kind), TRIMTAB_MASK_ADDITIVE));
  if (a.mask_kind == TRIMTAB_MASK_ADDITIVE) {
    TRIMTAB_RETURN_IF_ERROR(CheckChoice("mask dtype", Raw(a.mask_dtype), TRIMTAB_F16));
  }
  if (!std::isfinite(a.scale)) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "scale is not finite");
  if (a.kind == TRIMTAB_ATTENTION_PAPER && a.beta != 0.0f && !(a.beta >= 1.0f && std::isfinite(a.beta))) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "beta is %g, must be finite and at least 1", static_cast<double>(a.beta));
  }
  return TRIMTAB_KERNEL_OK;
}

trimtab_kernel_status CheckTensors(const trimtab_attention& a, Use use) {
  if (a.batch == 0 || a.queries == 0) return TRIMTAB_KERNEL_OK;
  TRIMTAB_RETURN_IF_ERROR(CheckData("q", a.q.data));
  if (a.keys > 0) {
    TRIMTAB_RETURN_IF_ERROR(CheckData("k", a.k.data));
    if (use != Use::kProbe) TRIMTAB_RETURN_IF_ERROR(CheckData("v", a.v.data));
    if (a.mask_kind != TRIMTAB_MASK_NONE) TRIMTAB_RETURN_IF_ERROR(CheckData("mask", a.mask.data));
  }
  if (use == Use::kForward) {
    if (a.out.data == nullptr && a.lse.data == nullptr && a.stats == nullptr) {
      return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "nothing is asked for: out, lse and stats are NULL");
    }
    if (a.out_low.data != nullptr) TRIMTAB_RETURN_IF_ERROR(CheckData("out (beside out_low)", a.out.data));
  }
  if (use == Use::kBackward) {
    TRIMTAB_RETURN_IF_ERROR(CheckData("out", a.out.data));
    TRIMTAB_RETURN_IF_ERROR(CheckData("lse", a.lse.data));
  }
  return TRIMTAB_KERNEL_OK;
}

}  // namespace

int MantissaBits(trimtab_storage storage, trimtab_dtype dtype) {
  switch (storage) {
    case TRIMTAB_STORE_FP32:
      return kFp32MantissaBits;
    case TRIMTAB_STORE_BF16:
      return 7;
    case TRIMTAB_STORE_FP16:
      return 10;
    case TRIMTAB_STORE_E4M3:
      return 3;
    case TRIMTAB_STORE_E5M2:
      return 2;
    case TRIMTAB_STORE_SAME:
      break;
  }
  if (dtype == TRIMTAB_BF16) return 7;
  return dtype == TRIMTAB_F16 ? 10 : kFp32MantissaBits;
}

trimtab_kernel_status Fail(trimtab_kernel_status code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::vsnprintf(last_error, sizeof last_error, format, args);
  va_end(args);
  return code;
}

trimtab_kernel_status Resolve(const trimtab_attention* from, Use use, AttentionJob* job) {
  last_error[0] = '\0';
  if (from == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "attention is NULL");
  trimtab_attention& a = job->a;
  if (!CopyVersioned(from, &a)) return BadStructSize("attention", from->struct_size, sizeof a);
  TRIMTAB_RETURN_IF_ERROR(CheckShape(a));
  TRIMTAB_RETURN_IF_ERROR(CheckChoices(a));
  TRIMTAB_RETURN_IF_ERROR(CheckTensors(a, use));
  if (a.scale == 0.0f) a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)));
  if (a.beta == 0.0f) a.beta = 2.0f;
  if (a.empty_lse == 0.0f) a.empty_lse = -INFINITY;
  job->mantissa_bits = MantissaBits(a.storage, a.dtype);
  job->group = a.heads / a.kv_heads;
  job->causal_offset = a.causal == 2 ? a.keys - a.queries : 0;
  return TRIMTAB_KERNEL_OK;
}

trimtab_kernel_status Resolve(const trimtab_attention_grad* g, GradJob* job) {
  if (g == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "attention_grad is NULL");
  if (g->forward.struct_size != sizeof(trimtab_attention)) {
    return BadStructSize("forward", g->forward.struct_size, sizeof(trimtab_attention));
  }
  TRIMTAB_RETURN_IF_ERROR(Resolve(&g->forward, Use::kBackward, &job->attention));
  const trimtab_attention& a = job->attention.a;
  if (g->grad_mask.data != nullptr) return Fail(TRIMTAB_KERNEL_UNSUPPORTED, "gradients of the mask are not computed");
  if (a.batch > 0 && a.queries > 0) TRIMTAB_RETURN_IF_ERROR(CheckData("grad_out", g->grad_out.data));
  job->grad_out = g->grad_out;
  job->grad_q = g->grad_q;
  job->grad_k = g->grad_k;
  job->grad_v = g->grad_v;
  return TRIMTAB_KERNEL_OK;
}

trimtab_kernel_status Resolve(const trimtab_probe* p, ProbeJob* job) {
  if (p == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "probe is NULL");
  if (p->attention.struct_size != sizeof(trimtab_attention)) {
    return BadStructSize("attention", p->attention.struct_size, sizeof(trimtab_attention));
  }
  TRIMTAB_RETURN_IF_ERROR(Resolve(&p->attention, Use::kProbe, &job->attention));
  const trimtab_attention& a = job->attention.a;
  if (a.stats == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "stats is NULL");
  TRIMTAB_RETURN_IF_ERROR(CheckSize("row_begin", p->row_begin, 0, kMaxSequence));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("row_step", p->row_step, 1, kMaxSequence));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("batch_begin", p->batch_begin, 0, kMaxBatch));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("batch_step", p->batch_step, 1, kMaxBatch));
  job->out = p->out;
  job->grad_out = p->grad_out;
  job->row_begin = p->row_begin;
  job->row_step = p->row_step;
  job->rows = std::max<int64_t>(0, (a.queries - p->row_begin + p->row_step - 1) / p->row_step);
  job->batch_begin = p->batch_begin;
  job->batch_step = p->batch_step;
  return TRIMTAB_KERNEL_OK;
}

trimtab_kernel_status Resolve(const trimtab_delta_preserve* from, DeltaJob* job) {
  last_error[0] = '\0';
  if (from == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "delta_preserve is NULL");
  trimtab_delta_preserve& d = job->d;
  if (!CopyVersioned(from, &d)) return BadStructSize("delta_preserve", from->struct_size, sizeof d);
  TRIMTAB_RETURN_IF_ERROR(CheckChoice("dtype", Raw(d.dtype), TRIMTAB_F16));
  TRIMTAB_RETURN_IF_ERROR(CheckChoice("storage", Raw(d.storage), TRIMTAB_STORE_E5M2));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("batch", d.batch, 0, kMaxBatch));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("heads", d.heads, 1, kMaxHeads));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("rows", d.rows, 0, kMaxSequence));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("columns", d.columns, 1, kMaxHeadDim));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("max_entries", d.max_entries, 0, kMaxHeadDim));
  if (d.batch > 0 && d.rows > 0) {
    TRIMTAB_RETURN_IF_ERROR(CheckData("out", d.out.data));
    TRIMTAB_RETURN_IF_ERROR(CheckData("out_low", d.out_low.data));
    TRIMTAB_RETURN_IF_ERROR(CheckData("grad_out", d.grad_out.data));
    TRIMTAB_RETURN_IF_ERROR(CheckData("result", d.result.data));
  }
  job->mantissa_bits = MantissaBits(d.storage, d.dtype);
  return TRIMTAB_KERNEL_OK;
}

trimtab_kernel_status Resolve(const trimtab_spectral* from, trimtab_spectral* s) {
  last_error[0] = '\0';
  if (from == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "spectral is NULL");
  if (!CopyVersioned(from, s)) return BadStructSize("spectral", from->struct_size, sizeof *s);
  TRIMTAB_RETURN_IF_ERROR(CheckChoice("dtype", Raw(s->dtype), TRIMTAB_F16));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("rows", s->rows, 1, kMaxWeightDim));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("columns", s->columns, 1, kMaxWeightDim));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("slices", s->slices, 1, s->rows));
  TRIMTAB_RETURN_IF_ERROR(CheckSize("iterations", s->iterations, 0, kMaxPowerIterations));
  if (s->rows % s->slices != 0) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "rows (%lld) is not a multiple of slices (%lld)",
                static_cast<long long>(s->rows), static_cast<long long>(s->slices));
  }
  if (s->data == nullptr || s->vector == nullptr || s->sigma == nullptr) {
    return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "data, vector or sigma is NULL");
  }
  if (s->iterations == 0) s->iterations = 1;
  return TRIMTAB_KERNEL_OK;
}

trimtab_kernel_status CheckActivation(trimtab_dtype dtype, const void* data, int64_t n, float threshold,
                                      const trimtab_activation_stats* stats) {
  last_error[0] = '\0';
  TRIMTAB_RETURN_IF_ERROR(CheckChoice("dtype", Raw(dtype), TRIMTAB_F16));
  if (stats == nullptr) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "stats is NULL");
  if (n < 0 || (n > 0 && data == nullptr)) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "n is negative or data is NULL");
  if (!(threshold >= 0.0f)) return Fail(TRIMTAB_KERNEL_BAD_ARGUMENT, "threshold is negative or NaN");
  return TRIMTAB_KERNEL_OK;
}

}  // namespace trimtab::cpu

extern "C" const char* trimtab_kernel_error(void) { return trimtab::cpu::last_error; }
