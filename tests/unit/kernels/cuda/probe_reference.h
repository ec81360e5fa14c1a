// The probe's statistics in double precision, straight from their definition: masks, varlen and softcap included.
#ifndef TRIMTAB_TESTS_UNIT_KERNELS_CUDA_PROBE_REFERENCE_H_
#define TRIMTAB_TESTS_UNIT_KERNELS_CUDA_PROBE_REFERENCE_H_

#include <algorithm>

#include "device.h"

namespace trimtab {

// A call over host memory: rows of [token][head][dim]. Sequence b owns the tokens cu[b] … cu[b + 1] - 1.
struct HostProbe {
  trimtab_dtype dtype = TRIMTAB_BF16;
  int64_t heads = 4, kv_heads = 2, dim = 64;
  std::vector<int32_t> cu_q, cu_k;
  int bottom_right = 1, left = -1, right = 0;
  float scale = 0.5f, softcap = 0.0f;
  int64_t row_begin = 0, row_step = 1;
  std::vector<uint16_t> q, k, v, out, grad;

  float At(const std::vector<uint16_t>& x, int64_t token, int64_t all_heads, int64_t head, int64_t i) const {
    return FromStored(dtype, x[static_cast<size_t>((token * all_heads + head) * dim + i)]);
  }
};

inline void AddReferenceRow(const HostProbe& p, size_t b, int64_t head, int64_t row, trimtab_head_stats* t) {
  const int64_t queries = p.cu_q[b + 1] - p.cu_q[b], keys = p.cu_k[b + 1] - p.cu_k[b];
  const int64_t diagonal = row + (p.bottom_right ? keys - queries : 0), kv_head = head / (p.heads / p.kv_heads);
  const int64_t first = p.left < 0 ? 0 : std::max<int64_t>(0, diagonal - p.left);
  const int64_t end = p.right < 0 ? keys : std::min(keys, diagonal + p.right + 1);
  std::vector<float> s;
  float top = -INFINITY;
  for (int64_t j = first; j < end; ++j) {
    double dot = 0.0;
    for (int64_t i = 0; i < p.dim; ++i) {
      dot += static_cast<double>(p.At(p.q, p.cu_q[b] + row, p.heads, head, i)) *
             p.At(p.k, p.cu_k[b] + j, p.kv_heads, kv_head, i);
    }
    const auto raw = static_cast<float>(dot * p.scale);
    t->nonfinite_scores += !std::isfinite(raw);
    t->max_logit = std::fmax(t->max_logit, raw);
    s.push_back(p.softcap > 0.0f ? static_cast<float>(p.softcap * std::tanh(static_cast<double>(raw) / p.softcap))
                                 : raw);
    top = std::fmax(top, s.back());
  }
  t->empty_rows += s.empty();
  t->trivial_rows += s.size() == 1;
  if (s.size() < 2) return;
  ++t->rows;
  t->scores += s.size();
  if (!std::isfinite(top)) return;
  double sum = 0.0, weighted = 0.0, residual = 0.0;
  uint64_t ones = 0, ties = 0;
  std::vector<double> exact(static_cast<size_t>(p.dim));
  for (size_t j = 0; j < s.size(); ++j) {
    const double x = static_cast<double>(s[j]) - top, weight = std::exp(x);
    const bool one = FromStored(p.dtype, ToStored(p.dtype, static_cast<float>(weight))) == 1.0f;
    ones += one;
    ties += s[j] == top;
    sum += weight;
    weighted += weight == 0.0 ? 0.0 : weight * x;
    residual += one ? 0.0 : weight;
    for (int64_t i = 0; i < p.dim; ++i) {
      exact[static_cast<size_t>(i)] +=
          weight * p.At(p.v, p.cu_k[b] + first + static_cast<int64_t>(j), p.kv_heads, kv_head, i);
    }
  }
  t->p_one_count += ones;
  t->repeated_max_rows += ones >= 2;
  t->tie_rows += ties >= 2;
  if (!std::isfinite(sum)) return;
  t->entropy_sum += std::log(sum) - weighted / sum;
  t->sink_share_sum += first == 0 ? std::exp(static_cast<double>(s[0]) - top) / sum : 0.0;
  t->residual_mass_sum += residual;
  double error = 0.0, norm = 0.0, g = 0.0;
  for (int64_t i = 0; i < p.dim; ++i) {
    const double x = exact[static_cast<size_t>(i)] / sum, e = p.At(p.out, p.cu_q[b] + row, p.heads, head, i) - x;
    error += e * e;
    norm += x * x;
    g += p.At(p.grad, p.cu_q[b] + row, p.heads, head, i) * e;
  }
  t->output_error_sum_squares += error;
  t->output_sum_squares += norm;
  ++t->delta_rows;
  t->delta_residual_sum += g;
  t->delta_residual_sum_squares += g * g;
}

inline std::vector<trimtab_head_stats> Reference(const HostProbe& p) {
  std::vector<trimtab_head_stats> stats(static_cast<size_t>(p.heads));
  trimtab_head_stats_reset(stats.data(), p.heads);
  for (size_t b = 0; b + 1 < p.cu_q.size(); ++b) {
    for (int64_t head = 0; head < p.heads; ++head) {
      for (int64_t row = p.row_begin; row < p.cu_q[b + 1] - p.cu_q[b]; row += p.row_step) {
        AddReferenceRow(p, b, head, row, &stats[static_cast<size_t>(head)]);
      }
    }
  }
  return stats;
}

}  // namespace trimtab
#endif
