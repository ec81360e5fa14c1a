// Running a call: forward with the low half kept, delta-preserving step, backward, probe, shadow comparison.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "agent/torch/attention_call.h"

namespace trimtab::agent {
namespace {

constexpr int64_t kAlign = 64;

// Behind the output: padding to kAlign, the FP32 low half, this.
struct Footer {
  uint64_t magic;
  int64_t sizes[4];
};
constexpr uint64_t kMagic = 0x74726D746C6F7731;  // "trmtlow1"

int64_t RoundUp(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }
int64_t LowOffset(const at::Tensor& query) { return RoundUp(query.numel() * query.element_size()); }
int64_t FooterOffset(const at::Tensor& query) {
  return LowOffset(query) + RoundUp(query.numel() * static_cast<int64_t>(sizeof(float)));
}

void Check(trimtab_kernel_status status) {
  if (status != TRIMTAB_KERNEL_OK) throw std::runtime_error(trimtab_kernel_error());
}

trimtab_tensor View(const at::Tensor& t) {
  return {t.const_data_ptr(), {t.stride(0), t.stride(1), t.stride(2), t.stride(3)}};
}
trimtab_mutable_tensor MutableView(const at::Tensor& t) {
  return {t.data_ptr(), {t.stride(0), t.stride(1), t.stride(2), t.dim() == 4 ? t.stride(3) : 0}};
}
std::array<int64_t, 4> ContiguousStrides(at::IntArrayRef s) { return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; }

template <size_t N>
std::array<int64_t, N> StridesInOrder(at::IntArrayRef sizes, const std::array<int, N>& order) {
  std::array<int64_t, N> strides{};
  int64_t next = 1;
  for (size_t i = N; i-- > 0;) {
    strides[order[i]] = next;
    next *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return strides;
}

trimtab_attention Describe(const AttentionArguments& a, const HookRow& row, trimtab_storage storage) {
  const CallSignature s = SignatureOf(a);
  trimtab_attention c = {};
  c.struct_size = sizeof c;
  c.kind = TRIMTAB_ATTENTION_STANDARD;
  c.storage = storage;
  c.dtype = s.dtype;
  c.batch = a.query.size(0);
  c.heads = s.heads;
  c.kv_heads = s.kv_heads;
  c.queries = a.query.size(2);
  c.keys = a.key.size(2);
  c.head_dim = s.head_dim;
  c.value_dim = s.value_dim;
  c.scale = static_cast<float>(a.scale);
  c.causal = a.causal ? row.causal_alignment : 0;
  c.empty_lse = row.empty_lse;
  c.q = View(a.query);
  c.k = View(a.key);
  c.v = View(a.value);
  if (a.mask.defined()) {
    const bool boolean = a.mask.scalar_type() == at::kBool;
    c.mask_kind = boolean ? TRIMTAB_MASK_BOOL : TRIMTAB_MASK_ADDITIVE;
    c.mask_dtype = a.mask.scalar_type() == at::kBFloat16 ? TRIMTAB_BF16
                   : a.mask.scalar_type() == at::kHalf   ? TRIMTAB_F16
                                                         : TRIMTAB_F32;
    c.mask.data = a.mask.const_data_ptr();
    for (int64_t d = 0; d < a.mask.dim(); ++d) {  // a dimension of size 1 is broadcast, a missing one too
      const int64_t from = a.mask.dim() - 1 - d;
      c.mask.stride[3 - d] = a.mask.size(from) == 1 ? 0 : a.mask.stride(from);
    }
  }
  c.parallel_for = &HostParallelFor;
  return c;
}

std::vector<int64_t> OutStrides(const at::Tensor& query, const ResultLayout& layout) {
  const auto s = query.sizes();
  if (!layout.out_like_query) return {s[1] * s[2] * s[3], s[3], s[1] * s[3], 1};
  if (query.is_non_overlapping_and_dense()) return query.strides().vec();
  return at::infer_dense_strides(s, query.strides());
}

// The output with room behind it for the low half.
at::Tensor OutWithLowHalf(const at::Tensor& query, at::IntArrayRef strides) {
  const int64_t bytes = FooterOffset(query) + static_cast<int64_t>(sizeof(Footer));
  const int64_t elements = (bytes + query.element_size() - 1) / query.element_size();
  at::Tensor flat = at::detail::empty_strided_cpu({elements}, {1}, query.scalar_type());
  Footer footer = {kMagic, {query.size(0), query.size(1), query.size(2), query.size(3)}};
  std::memcpy(static_cast<char*>(flat.data_ptr()) + FooterOffset(query), &footer, sizeof footer);
  return flat.as_strided(query.sizes(), strides);
}

trimtab_mutable_tensor LowView(const at::Tensor& out, const at::Tensor& query) {
  trimtab_mutable_tensor low = {static_cast<char*>(out.data_ptr()) + LowOffset(query), {}};
  std::ranges::copy(ContiguousStrides(query.sizes()), low.stride);
  return low;
}

}  // namespace

ForwardResult RunForward(const AttentionArguments& a, const HookRow& row, const ResultLayout& layout,
                         trimtab_attention_kind kind, trimtab_storage storage, trimtab_head_stats* stats) {
  at::AutoDispatchBelowADInplaceOrView below;
  ForwardResult result;
  trimtab_attention c = Describe(a, row, storage);
  c.kind = kind;
  c.stats = stats;
  const std::vector<int64_t> strides = OutStrides(a.query, layout);
  if (kind == TRIMTAB_ATTENTION_STABILIZED) {
    result.out = OutWithLowHalf(a.query, strides);
    c.out_low = LowView(result.out, a.query);
  } else {
    result.out = at::detail::empty_strided_cpu(a.query.sizes(), strides, a.query.scalar_type());
  }
  const std::array<int64_t, 3> lse_sizes = {a.query.size(0), a.query.size(1), a.query.size(2)};
  result.lse = at::detail::empty_strided_cpu(lse_sizes, StridesInOrder(lse_sizes, layout.lse_order), at::kFloat);
  c.out = MutableView(result.out);
  c.lse = MutableView(result.lse);
  Check(trimtab_attention_forward(&c));
  return result;
}

const float* LowHalf(const at::Tensor& out) {
  if (out.dim() != 4 || out.storage_offset() != 0 || out.numel() == 0) return nullptr;
  const int64_t footer_at = FooterOffset(out);
  const auto bytes = static_cast<int64_t>(out.storage().nbytes());
  if (bytes < footer_at + static_cast<int64_t>(sizeof(Footer)) ||
      bytes > footer_at + static_cast<int64_t>(sizeof(Footer)) + out.element_size()) {
    return nullptr;
  }
  const auto* base = static_cast<const char*>(out.const_data_ptr());
  Footer footer;
  std::memcpy(&footer, base + footer_at, sizeof footer);
  if (footer.magic != kMagic || at::IntArrayRef(footer.sizes) != out.sizes()) return nullptr;
  return reinterpret_cast<const float*>(base + LowOffset(out));
}

at::Tensor PreserveDelta(const AttentionArguments& a, const float* low, trimtab_storage storage) {
  at::AutoDispatchBelowADInplaceOrView below;
  // Reused from call to call. The original backward runs to its end within the call, so that one buffer is enough.
  thread_local at::Tensor buffer;
  if (!buffer.defined() || buffer.scalar_type() != a.out.scalar_type() || buffer.numel() < a.out.numel()) {
    buffer = at::detail::empty_strided_cpu({a.out.numel()}, {1}, a.out.scalar_type());
  }
  at::Tensor result = buffer.as_strided(a.out.sizes(), a.out.strides());
  const CallSignature s = SignatureOf(a);
  trimtab_delta_preserve d = {};
  d.struct_size = sizeof d;
  d.dtype = s.dtype;
  d.storage = storage;
  d.batch = a.out.size(0);
  d.heads = a.out.size(1);
  d.rows = a.out.size(2);
  d.columns = a.out.size(3);
  d.out = View(a.out);
  d.out_low.data = low;
  std::ranges::copy(ContiguousStrides(a.out.sizes()), d.out_low.stride);
  d.grad_out = View(a.grad_out);
  d.result = MutableView(result);
  d.parallel_for = &HostParallelFor;
  Check(trimtab_delta_preserving_step(&d));
  return result;
}

std::array<at::Tensor, 3> RunBackward(const AttentionArguments& a, const HookRow& row, const ResultLayout& layout,
                                      const at::Tensor& out, trimtab_storage storage) {
  at::AutoDispatchBelowADInplaceOrView below;
  std::array<at::Tensor, 3> grads;
  const at::Tensor* inputs[] = {&a.query, &a.key, &a.value};
  for (int i = 0; i < 3; ++i) {
    grads[i] = at::detail::empty_strided_cpu(inputs[i]->sizes(), StridesInOrder(inputs[i]->sizes(), layout.grad_order),
                                             inputs[i]->scalar_type());
  }
  trimtab_attention_grad g = {};
  g.forward = Describe(a, row, storage);
  g.forward.out = MutableView(out);
  g.forward.lse = MutableView(a.lse);
  g.grad_out = View(a.grad_out);
  g.grad_q = MutableView(grads[0]);
  g.grad_k = MutableView(grads[1]);
  g.grad_v = MutableView(grads[2]);
  Check(trimtab_attention_backward(&g));
  return grads;
}

void RunProbe(const AttentionArguments& a, const HookRow& row, const at::Tensor& out, trimtab_storage storage,
              uint32_t rows, uint64_t offset, std::span<trimtab_head_stats> stats) {
  trimtab_probe p = {};
  p.attention = Describe(a, row, storage);
  p.attention.stats = stats.data();
  p.out = View(out);
  p.grad_out = View(a.grad_out);
  // Few batch entries with many rows each: neighbours in one batch entry share its keys in the cache.
  const int64_t batch = a.query.size(0), queries = a.query.size(2);
  const int64_t entries = std::clamp<int64_t>(rows / 16, 1, batch);
  const int64_t per_entry = std::clamp<int64_t>(rows / entries, 1, queries);
  p.batch_step = batch / entries;
  p.row_step = queries / per_entry;
  p.batch_begin = static_cast<int64_t>(offset % static_cast<uint64_t>(p.batch_step));
  p.row_begin = static_cast<int64_t>(offset / 7 % static_cast<uint64_t>(p.row_step));
  Check(trimtab_attention_probe(&p));
}

// --- shadow comparison ---------------------------------------------------------------------------------------------

namespace {

struct Limits {
  double output, lse;  // relative error of O in norm; difference of the log-sum-exp over 1 + |it|
};

Limits LimitsFor(trimtab_storage storage, at::ScalarType type) {
  const int bits = storage == TRIMTAB_STORE_E5M2   ? 2
                   : storage == TRIMTAB_STORE_E4M3 ? 3
                   : storage == TRIMTAB_STORE_BF16 ? 7
                   : storage == TRIMTAB_STORE_FP16 ? 10
                   : storage == TRIMTAB_STORE_FP32 ? 23
                   : type == at::kBFloat16         ? 7
                   : type == at::kHalf             ? 10
                                                   : 23;
  // Three roundings (P, V, O), each at most 2^-(bits+1), with a margin; 1e-3 where only the order of sums differs.
  return {std::max(1e-3, 2.5 * std::ldexp(1.0, -bits - 1)), 1e-2};
}

}  // namespace

bool ShadowCompare(const AttentionArguments& a, const HookRow& row, const ResultLayout& layout,
                   const ForwardResult& actual, trimtab_attention_kind kind, trimtab_storage storage, double tolerance,
                   std::string* detail) {
  const ForwardResult ours = RunForward(a, row, layout, kind, storage, nullptr);
  const bool emulated = storage != TRIMTAB_STORE_SAME;
  const ForwardResult reference =
      emulated ? RunForward(a, row, layout, TRIMTAB_ATTENTION_STANDARD, TRIMTAB_STORE_FP32, nullptr) : actual;
  at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor x = ours.out.to(at::kFloat).contiguous(), y = reference.out.to(at::kFloat).contiguous();
  const at::Tensor l = ours.lse.contiguous(), m = reference.lse.contiguous();
  double error = 0, size = 0, lse = 0;
  int64_t apart = 0;  // finite on one side only: both kernels must agree on what is not a number
  const auto *xs = x.const_data_ptr<float>(), *ys = y.const_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (std::isfinite(xs[i]) != std::isfinite(ys[i])) ++apart;
    if (!std::isfinite(xs[i]) || !std::isfinite(ys[i])) continue;
    error += (double{xs[i]} - ys[i]) * (double{xs[i]} - ys[i]);
    size += double{ys[i]} * ys[i];
  }
  const auto *ls = l.const_data_ptr<float>(), *ms = m.const_data_ptr<float>();
  for (int64_t i = 0; i < l.numel(); ++i) {
    if (std::isfinite(ls[i]) && std::isfinite(ms[i])) {
      lse = std::max(lse, std::abs(double{ls[i]} - ms[i]) / (1 + std::abs(double{ms[i]})));
    }
  }
  const double relative = std::sqrt(error / std::max(size, 1e-30));
  const Limits limits = LimitsFor(storage, a.query.scalar_type());
  char text[200];
  std::snprintf(text, sizeof text, "output error %.2e (limit %.2e), log-sum-exp error %.2e (limit %.2e), %lld apart",
                relative, limits.output * tolerance, lse, limits.lse * tolerance, static_cast<long long>(apart));
  *detail = text;
  return relative <= limits.output * tolerance && lse <= limits.lse * tolerance && apart == 0;
}

}  // namespace trimtab::agent
