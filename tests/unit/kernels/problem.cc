#include "tests/unit/kernels/problem.h"

#include <cmath>

namespace trimtab::testing {

Problem::Problem(const Shape& s, trimtab_dtype dtype, std::mt19937* layouts) {
  const auto layout = [&] { return layouts == nullptr ? kContiguous : RandomLayout(*layouts); };
  call.struct_size = sizeof call;
  call.dtype = dtype;
  call.batch = s.batch;
  call.heads = s.heads;
  call.kv_heads = s.kv_heads;
  call.queries = s.queries;
  call.keys = s.keys;
  call.head_dim = s.head_dim;
  call.value_dim = s.value_dim;
  q = StridedTensor(dtype, {s.batch, s.heads, s.queries, s.head_dim}, layout());
  k = StridedTensor(dtype, {s.batch, s.kv_heads, s.keys, s.head_dim}, layout());
  v = StridedTensor(dtype, {s.batch, s.kv_heads, s.keys, s.value_dim}, layout());
  out = StridedTensor(dtype, {s.batch, s.heads, s.queries, s.value_dim}, layout());
  grad_out = StridedTensor(dtype, out.sizes(), layout());
  low = StridedTensor(TRIMTAB_F32, out.sizes(), layout());
  lse = StridedTensor(TRIMTAB_F32, {s.batch, s.heads, s.queries, 1}, layout());
  grad_q = StridedTensor(dtype, q.sizes(), layout());
  grad_k = StridedTensor(dtype, k.sizes(), layout());
  grad_v = StridedTensor(dtype, v.sizes(), layout());
  stats.resize(static_cast<size_t>(s.heads));
  trimtab_head_stats_reset(stats.data(), s.heads);
}

void Problem::Fill(std::mt19937& random, double qk_deviation, double v_mean, double v_deviation, double grad_mean,
                   double grad_deviation) {
  q.FillNormal(random, 0.0, qk_deviation);
  k.FillNormal(random, 0.0, qk_deviation);
  v.FillNormal(random, v_mean, v_deviation);
  grad_out.FillNormal(random, grad_mean, grad_deviation);
}

void Problem::SetBoolMask(std::mt19937& random, double visible_share) {
  call.mask_kind = TRIMTAB_MASK_BOOL;
  bool_mask.resize(static_cast<size_t>(call.batch * call.heads * call.queries * call.keys));
  std::bernoulli_distribution visible(visible_share);
  for (auto& m : bool_mask) m = visible(random) ? 1 : 0;
}

void Problem::SetAdditiveMask(std::mt19937& random, trimtab_dtype dtype, double masked_share) {
  call.mask_kind = TRIMTAB_MASK_ADDITIVE;
  call.mask_dtype = dtype;
  additive_mask = StridedTensor(dtype, {call.batch, call.heads, call.queries, call.keys}, RandomLayout(random));
  additive_mask.FillNormal(random, 0.0, 1.0);
  std::bernoulli_distribution masked(masked_share);
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t h = 0; h < call.heads; ++h) {
      for (int64_t r = 0; r < call.queries; ++r) {
        for (int64_t j = 0; j < call.keys; ++j) {
          if (masked(random)) additive_mask.Set(b, h, r, j, -INFINITY);
        }
      }
    }
  }
}

trimtab_attention Problem::Filled(bool with_stats) {
  trimtab_attention a = call;
  a.q = q.view();
  a.k = k.view();
  a.v = v.view();
  a.out = out.mutable_view();
  a.out_low = low.mutable_view();
  a.lse = lse.mutable_view();
  a.stats = with_stats ? stats.data() : nullptr;
  if (call.mask_kind == TRIMTAB_MASK_BOOL) {
    a.mask = {bool_mask.data(), {call.heads * call.queries * call.keys, call.queries * call.keys, call.keys, 1}};
  }
  if (call.mask_kind == TRIMTAB_MASK_ADDITIVE) a.mask = additive_mask.view();
  return a;
}

trimtab_kernel_status Problem::Forward(bool with_stats) {
  const trimtab_attention a = Filled(with_stats);
  return trimtab_attention_forward(&a);
}

trimtab_kernel_status Problem::Backward(bool with_stats) {
  trimtab_attention_grad g{};
  g.forward = Filled(with_stats);
  g.grad_out = grad_out.view();
  g.grad_q = grad_q.mutable_view();
  g.grad_k = grad_k.mutable_view();
  g.grad_v = grad_v.mutable_view();
  return trimtab_attention_backward(&g);
}

trimtab_kernel_status Problem::Probe(int64_t row_begin, int64_t row_step, bool with_output) {
  trimtab_probe p{};
  p.attention = Filled(true);
  if (with_output) {
    p.out = out.view();
    p.grad_out = grad_out.view();
  }
  p.row_begin = row_begin;
  p.row_step = row_step;
  p.batch_step = 1;
  return trimtab_attention_probe(&p);
}

trimtab_kernel_status Problem::DeltaStep() {
  trimtab_delta_preserve d{};
  d.struct_size = sizeof d;
  d.dtype = call.dtype;
  d.storage = call.storage;
  d.batch = call.batch;
  d.heads = call.heads;
  d.rows = call.queries;
  d.columns = call.value_dim;
  d.out = out.view();
  d.out_low = low.view();
  d.grad_out = grad_out.view();
  d.result = out.mutable_view();
  return trimtab_delta_preserving_step(&d);
}

trimtab_storage Problem::storage() const {
  if (call.storage != TRIMTAB_STORE_SAME) return call.storage;
  if (call.dtype == TRIMTAB_F32) return TRIMTAB_STORE_FP32;
  return call.dtype == TRIMTAB_BF16 ? TRIMTAB_STORE_BF16 : TRIMTAB_STORE_FP16;
}

bool Problem::Visible(int64_t b, int64_t h, int64_t row, int64_t key) const {
  if (call.causal == 1 && key > row) return false;
  if (call.causal == 2 && key > row + call.keys - call.queries) return false;
  if (call.mask_kind == TRIMTAB_MASK_BOOL) {
    return bool_mask[static_cast<size_t>(((b * call.heads + h) * call.queries + row) * call.keys + key)] != 0;
  }
  return call.mask_kind != TRIMTAB_MASK_ADDITIVE || additive_mask.Get(b, h, row, key) != -INFINITY;
}

double Problem::Score(int64_t b, int64_t h, int64_t row, int64_t key) const {
  if (!Visible(b, h, row, key)) return -INFINITY;
  const int64_t kv = h / (call.heads / call.kv_heads);
  double dot = 0.0;
  for (int64_t i = 0; i < call.head_dim; ++i) dot += q.Get(b, h, row, i) * k.Get(b, kv, key, i);
  const double scale = call.scale != 0.0f ? static_cast<double>(call.scale) : 1.0 / std::sqrt(call.head_dim);
  return scale * dot + (call.mask_kind == TRIMTAB_MASK_ADDITIVE ? additive_mask.Get(b, h, row, key) : 0.0);
}

}  // namespace trimtab::testing
