// The FP64 restatement of attention, its gradients and its statistics.
#include <cmath>

#include "tests/unit/kernels/problem.h"

namespace trimtab::testing {
namespace {

struct Row {
  std::vector<double> score, p;  // p normalised
  double max = -INFINITY, lse = -INFINITY;
  int64_t visible = 0;
};

Row ComputeRow(const Problem& problem, int64_t b, int64_t h, int64_t r) {
  const int64_t keys = problem.call.keys;
  Row row{std::vector<double>(keys), std::vector<double>(keys)};
  for (int64_t j = 0; j < keys; ++j) {
    row.score[j] = problem.Score(b, h, r, j);
    row.visible += problem.Visible(b, h, r, j);
    row.max = std::max(row.max, row.score[j]);
  }
  if (row.max == -INFINITY) return row;
  double sum = 0.0;
  for (int64_t j = 0; j < keys; ++j) sum += row.p[j] = std::exp(row.score[j] - row.max);
  for (auto& p : row.p) p /= sum;
  row.lse = row.max + std::log(sum);
  return row;
}

double Value(const Problem& problem, bool rounded, int64_t b, int64_t kv, int64_t key, int64_t i) {
  const double v = problem.v.Get(b, kv, key, i);
  return rounded ? trimtab_round(static_cast<float>(v), problem.storage()) : v;
}

}  // namespace

Reference ComputeReference(const Problem& problem, bool with_grads, bool rounded_values) {
  const auto& c = problem.call;
  const int64_t group = c.heads / c.kv_heads;
  const double scale = c.scale != 0.0f ? static_cast<double>(c.scale) : 1.0 / std::sqrt(c.head_dim);
  Reference result;
  result.out.resize(c.batch * c.heads * c.queries * c.value_dim);
  result.lse.resize(c.batch * c.heads * c.queries);
  result.grad_q.resize(c.batch * c.heads * c.queries * c.head_dim);
  result.grad_k.resize(c.batch * c.kv_heads * c.keys * c.head_dim);
  result.grad_v.resize(c.batch * c.kv_heads * c.keys * c.value_dim);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t kv = h / group;
      for (int64_t r = 0; r < c.queries; ++r) {
        const Row row = ComputeRow(problem, b, h, r);
        const int64_t index = (b * c.heads + h) * c.queries + r;
        result.lse[index] = row.lse;
        double delta = 0.0;
        std::vector<double> grad_p(c.keys);
        for (int64_t i = 0; i < c.value_dim; ++i) {
          double o = 0.0;
          for (int64_t j = 0; j < c.keys; ++j) {
            if (row.p[j] != 0.0) o += row.p[j] * Value(problem, rounded_values, b, kv, j, i);
          }
          result.out[index * c.value_dim + i] = o;
          if (!with_grads) continue;
          const double grad = problem.grad_out.Get(b, h, r, i);
          delta += grad * o;
          for (int64_t j = 0; j < c.keys; ++j) {
            grad_p[j] += grad * Value(problem, rounded_values, b, kv, j, i);
            result.grad_v[((b * c.kv_heads + kv) * c.keys + j) * c.value_dim + i] += row.p[j] * grad;
          }
        }
        if (!with_grads) continue;
        for (int64_t j = 0; j < c.keys; ++j) {
          if (row.p[j] == 0.0) continue;
          const double ds = row.p[j] * (grad_p[j] - delta) * scale;
          for (int64_t i = 0; i < c.head_dim; ++i) {
            result.grad_q[index * c.head_dim + i] += ds * problem.k.Get(b, kv, j, i);
            result.grad_k[((b * c.kv_heads + kv) * c.keys + j) * c.head_dim + i] += ds * problem.q.Get(b, h, r, i);
          }
        }
      }
    }
  }
  return result;
}

double MaxError(const StridedTensor& a, const std::vector<double>& b) {
  double error = 0.0;
  size_t index = 0;
  const auto& n = a.sizes();
  for (int64_t i0 = 0; i0 < n[0]; ++i0) {
    for (int64_t i1 = 0; i1 < n[1]; ++i1) {
      for (int64_t i2 = 0; i2 < n[2]; ++i2) {
        for (int64_t i3 = 0; i3 < n[3]; ++i3, ++index) {
          const double x = a.Get(i0, i1, i2, i3), y = b[index];
          if (x == y || (std::isnan(x) && std::isnan(y))) continue;
          const double e = std::fabs(x - y) / (1.0 + std::fabs(y));
          error = std::isfinite(e) ? std::max(error, e) : INFINITY;
        }
      }
    }
  }
  return error;
}

double NormError(const StridedTensor& a, const std::vector<double>& b) {
  double error = 0.0, norm = 0.0;
  size_t index = 0;
  const auto& n = a.sizes();
  for (int64_t i0 = 0; i0 < n[0]; ++i0) {
    for (int64_t i1 = 0; i1 < n[1]; ++i1) {
      for (int64_t i2 = 0; i2 < n[2]; ++i2) {
        for (int64_t i3 = 0; i3 < n[3]; ++i3, ++index) {
          error += std::pow(a.Get(i0, i1, i2, i3) - b[index], 2);
          norm += b[index] * b[index];
        }
      }
    }
  }
  return std::sqrt(error / norm);
}

std::vector<trimtab_head_stats> ReferenceStats(const Problem& problem, int64_t begin, int64_t step) {
  const auto& c = problem.call;
  std::vector<trimtab_head_stats> stats(c.heads);
  trimtab_head_stats_reset(stats.data(), c.heads);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      auto& s = stats[h];
      for (int64_t r = begin; r < c.queries; r += step) {
        const Row row = ComputeRow(problem, b, h, r);
        for (int64_t j = 0; j < c.keys; ++j) {
          if (!problem.Visible(b, h, r, j)) continue;
          const double bias = c.mask_kind == TRIMTAB_MASK_ADDITIVE ? problem.additive_mask.Get(b, h, r, j) : 0.0;
          s.max_logit = std::max(s.max_logit, static_cast<float>(row.score[j] - bias));
        }
        s.empty_rows += row.visible == 0;
        s.trivial_rows += row.visible == 1;
        if (row.visible < 2) continue;
        ++s.rows;
        s.scores += row.visible;
        uint64_t ones = 0;
        for (int64_t j = 0; j < c.keys; ++j) {
          const double p = std::exp(row.score[j] - row.max);
          if (trimtab_round(static_cast<float>(p), problem.storage()) == 1.0f) {
            ++ones;
          } else {
            s.residual_mass_sum += p;
          }
          if (row.p[j] > 0.0) s.entropy_sum -= row.p[j] * std::log(row.p[j]);
        }
        s.p_one_count += ones;
        s.repeated_max_rows += ones >= 2;
        s.sink_share_sum += row.p[0];
      }
    }
  }
  return stats;
}

}  // namespace trimtab::testing
