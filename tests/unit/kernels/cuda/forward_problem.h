// A call of the CUDA forward with random data, run on the device and compared with FP64 from the definition.
#ifndef TRIMTAB_TESTS_UNIT_KERNELS_CUDA_FORWARD_PROBLEM_H_
#define TRIMTAB_TESTS_UNIT_KERNELS_CUDA_FORWARD_PROBLEM_H_

#include <algorithm>

#include "device.h"

namespace trimtab {

inline constexpr uint16_t kPoison = 0x7fc1;

struct Case {
  trimtab_dtype dtype = TRIMTAB_BF16;
  int64_t batch = 2, heads = 4, kv_heads = 2, queries = 70, keys = 70, dim = 64;
  int kind = TRIMTAB_ATTENTION_STABILIZED;
  int bottom_right = 0, left = -1, right = -1;
  float softcap = 0, spread = 1, scale = 0;
  bool bshd = true;
  int64_t pad = 0;                            // elements between rows of q, k, v
  int64_t out_pad = 0;                        // ... of out and out_low
  int64_t row_step = 1;                       // which rows are compared
  std::vector<int32_t> lengths_q, lengths_k;  // varlen when not empty
};

struct Result {
  std::vector<uint16_t> out, low;
  std::vector<float> lse;
};

class Problem {
 public:
  explicit Problem(const Case& c, uint32_t seed) : c(c) {
    rows_q = c.batch * c.queries;
    rows_k = c.batch * c.keys;
    if (!c.lengths_q.empty()) {
      rows_q = rows_k = 0;
      for (int32_t n : c.lengths_q) starts_q.push_back(static_cast<int32_t>(rows_q)), rows_q += n;
      for (int32_t n : c.lengths_k) starts_k.push_back(static_cast<int32_t>(rows_k)), rows_k += n;
      starts_q.push_back(static_cast<int32_t>(rows_q));
      starts_k.push_back(static_cast<int32_t>(rows_k));
    }
    q = Rows(rows_q * c.heads, seed, 0, c.spread);
    k = Rows(rows_k * c.kv_heads, seed + 1, 0, c.spread);
    v = Rows(rows_k * c.kv_heads, seed + 2, -2, 0.5f);
  }

  // Random rows with NaN between them.
  std::vector<uint16_t> Rows(int64_t rows, uint32_t seed, float mean, float sd) const {
    auto x = Normal(c.dtype, static_cast<size_t>(rows * (c.dim + c.pad)), seed, mean, sd);
    for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
      if (i % (c.dim + c.pad) >= c.dim) x[static_cast<size_t>(i)] = kPoison;
    }
    return x;
  }

  bool Packed() const { return !starts_q.empty(); }

  void Strides(int64_t (&stride)[4], int64_t heads, int64_t rows, int64_t pad) const {
    const bool rows_first = c.bshd || Packed();
    const int64_t width = c.dim + pad;
    stride[0] = rows * heads * width;
    stride[1] = rows_first ? width : rows * width;
    stride[2] = rows_first ? heads * width : width;
    stride[3] = 1;
  }

  trimtab_cuda_attention Arguments() const {
    trimtab_cuda_attention a{};
    a.struct_size = sizeof a;
    a.dtype = c.dtype;
    a.batch = Packed() ? static_cast<int64_t>(c.lengths_q.size()) : c.batch;
    a.heads = c.heads;
    a.kv_heads = c.kv_heads;
    a.queries = Packed() ? *std::max_element(c.lengths_q.begin(), c.lengths_q.end()) : c.queries;
    a.keys = c.keys;
    a.head_dim = c.dim;
    a.scale = c.scale;
    a.softcap = c.softcap;
    a.mask = {c.bottom_right, c.left, c.right, nullptr, nullptr};
    Strides(a.q.stride, c.heads, c.queries, c.pad);
    Strides(a.out.stride, c.heads, c.queries, c.out_pad);
    Strides(a.out_low.stride, c.heads, c.queries, c.out_pad);
    Strides(a.k.stride, c.kv_heads, c.keys, c.pad);
    Strides(a.v.stride, c.kv_heads, c.keys, c.pad);
    const int64_t lse_rows = Packed() ? rows_q : c.queries;
    a.lse.stride[0] = c.heads * lse_rows;
    a.lse.stride[1] = lse_rows;
    a.lse.stride[2] = 1;
    return a;
  }

  Result Run() const {
    const std::vector<uint16_t> poison(static_cast<size_t>(rows_q * c.heads * (c.dim + c.out_pad)), kPoison);
    const Device<uint16_t> dq(q), dk(k), dv(v), out(poison), low(poison);
    const Device<float> lse(std::vector<float>(static_cast<size_t>(rows_q * c.heads), 12345.0f));
    const Device<int32_t> kind(std::vector<int32_t>{c.kind}), begin_q(Packed() ? starts_q : std::vector<int32_t>{0}),
        begin_k(Packed() ? starts_k : std::vector<int32_t>{0});
    auto a = Arguments();
    a.q.data = dq.get(), a.k.data = dk.get(), a.v.data = dv.get();
    a.out.data = out.get(), a.out_low.data = low.get(), a.lse.data = lse.get();
    a.kind = kind.get();
    if (Packed()) a.mask.cu_seqlens_q = begin_q.get(), a.mask.cu_seqlens_k = begin_k.get();
    EXPECT_EQ(trimtab_cuda_attention_forward(&a, nullptr), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return {out.Host(), low.Host(), lse.Host()};
  }

  void CheckAgainstFp64(const Result& r) const {
    const auto a = Arguments();
    const double scale = c.scale != 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.dim));
    const double eps = c.dtype == TRIMTAB_BF16 ? 0x1p-8 : 0x1p-11;
    // O and the weights are rounded. Tied weights share one error, of which the published rule's normaliser knows
    // nothing.
    const double roundings = c.kind == TRIMTAB_ATTENTION_PAPER ? 2.1 : 1.5;
    const std::vector<float> qf = Decoded(q), kf = Decoded(k), vf = Decoded(v);
    int64_t wrong = 0, checked = 0;
    double worst = 0;
    for (int64_t b = 0; b < a.batch; ++b) {
      const int64_t nq = Packed() ? c.lengths_q[static_cast<size_t>(b)] : c.queries;
      const int64_t nk = Packed() ? c.lengths_k[static_cast<size_t>(b)] : c.keys;
      const int64_t q_row = Packed() ? starts_q[static_cast<size_t>(b)] : 0;
      const int64_t k_row = Packed() ? starts_k[static_cast<size_t>(b)] : 0;
      const auto begin = [&](const int64_t(&stride)[4], int64_t h, int64_t row) {
        return (Packed() ? 0 : b * stride[0]) + h * stride[1] + row * stride[2];
      };
      const int64_t offset = c.bottom_right ? nk - nq : 0;
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t kv = h / (c.heads / c.kv_heads);
        for (int64_t t = (b + h) % c.row_step; t < nq; t += c.row_step) {
          const float* q_t = &qf[static_cast<size_t>(begin(a.q.stride, h, q_row + t))];
          const float* k_0 = kf.data() + begin(a.k.stride, kv, k_row);
          const float* v_0 = vf.data() + begin(a.v.stride, kv, k_row);
          const int64_t first = c.left < 0 ? 0 : std::max<int64_t>(0, t + offset - c.left);
          const int64_t end = c.right < 0 ? nk : std::min(nk, t + offset + c.right + 1);
          std::vector<double> s;
          double m = -INFINITY, score_error = 0;
          for (int64_t j = first; j < end; ++j) {
            double dot = 0, size = 0;
            for (int64_t i = 0; i < c.dim; ++i) {
              const double x = static_cast<double>(q_t[i]) * k_0[j * a.k.stride[2] + i];
              dot += x, size += std::fabs(x);
            }
            s.push_back(c.softcap > 0 ? c.softcap * std::tanh(dot * scale / c.softcap) : dot * scale);
            m = std::max(m, s.back());
            score_error = std::max(score_error, 1e-6 * size * scale);
          }
          double l = 0;
          for (double& x : s) l += x = std::exp(x - m);
          std::vector<double> exact(static_cast<size_t>(c.dim)), size(static_cast<size_t>(c.dim));
          for (int64_t j = first; j < end; ++j) {
            const double weight = s[static_cast<size_t>(j - first)] / l;
            for (size_t i = 0; i < exact.size(); ++i) {
              const double x = weight * v_0[j * a.v.stride[2] + static_cast<int64_t>(i)];
              exact[i] += x, size[i] += std::fabs(x);
            }
          }
          const int64_t at_lse = Packed() ? h * rows_q + q_row + t : (b * c.heads + h) * c.queries + t;
          const float lse = r.lse[static_cast<size_t>(at_lse)];
          ++checked;
          if (l == 0) {
            wrong += lse != -INFINITY;
          } else {
            wrong += !(std::fabs(lse - (m + std::log(l))) <= 2e-5 + 2 * score_error + 3e-7 * std::fabs(m));
          }
          for (size_t i = 0; i < exact.size(); ++i) {
            const auto at = static_cast<size_t>(begin(a.out.stride, h, q_row + t)) + i;
            const double got = FromStored(c.dtype, r.out[at]), low = FromStored(c.dtype, r.low[at]);
            const double bound = (roundings * eps + 3 * score_error) * size[i] + 1e-6;
            wrong += !(std::fabs(got - exact[i]) <= bound);
            wrong += !(std::fabs(got + low - exact[i]) <= bound) || !(std::fabs(low) <= eps * std::fabs(got) + 1e-7);
            worst = std::max(worst, std::fabs(got - exact[i]) / bound);
          }
        }
      }
    }
    for (size_t i = 0; i < r.out.size(); ++i) {  // nothing between the rows was written
      const bool gap = static_cast<int64_t>(i) % (c.dim + c.out_pad) >= c.dim;
      wrong += gap && (r.out[i] != kPoison || r.low[i] != kPoison);
    }
    EXPECT_EQ(wrong, 0) << "of " << checked << " rows; worst error " << worst << " of the bound; dim " << c.dim
                        << " dtype " << c.dtype << " kind " << c.kind << " q " << c.queries << " k " << c.keys
                        << " right " << c.right << " left " << c.left << " bottom_right " << c.bottom_right << " cap "
                        << c.softcap << " bshd " << c.bshd << " pad " << c.pad << " out_pad " << c.out_pad << " heads "
                        << c.heads << "/" << c.kv_heads << " batch " << c.batch;
    EXPECT_GT(checked, 0);
  }

  Case c;
  int64_t rows_q, rows_k;
  std::vector<int32_t> starts_q, starts_k;
  std::vector<uint16_t> q, k, v;

 private:
  std::vector<float> Decoded(const std::vector<uint16_t>& stored) const {
    std::vector<float> x(stored.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = FromStored(c.dtype, stored[i]);
    return x;
  }
};

inline void Check(const Case& c, uint32_t seed) {
  const Problem p(c, seed);
  p.CheckAgainstFp64(p.Run());
}

}  // namespace trimtab
#endif  // TRIMTAB_TESTS_UNIT_KERNELS_CUDA_FORWARD_PROBLEM_H_
