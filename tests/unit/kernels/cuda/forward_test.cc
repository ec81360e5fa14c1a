// The CUDA forward against FP64: shapes, layouts, masks, kinds, extremes.
#include <algorithm>

#include "device.h"

namespace trimtab {
namespace {

constexpr uint16_t kPoison = 0x7fc1;

struct Case {
  trimtab_dtype dtype = TRIMTAB_BF16;
  int64_t batch = 2, heads = 4, kv_heads = 2, queries = 70, keys = 70, dim = 64;
  int kind = TRIMTAB_ATTENTION_STABILIZED;
  int bottom_right = 0, left = -1, right = -1;
  float softcap = 0, spread = 1, scale = 0;
  bool bshd = true;
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
    q = Normal(c.dtype, static_cast<size_t>(rows_q * c.heads * c.dim), seed, 0, c.spread);
    k = Normal(c.dtype, static_cast<size_t>(rows_k * c.kv_heads * c.dim), seed + 1, 0, c.spread);
    v = Normal(c.dtype, static_cast<size_t>(rows_k * c.kv_heads * c.dim), seed + 2, -2, 0.5f);
  }

  bool Packed() const { return !starts_q.empty(); }

  void Strides(int64_t (&stride)[4], int64_t heads, int64_t rows) const {
    const bool rows_first = c.bshd || Packed();
    stride[0] = rows * heads * c.dim;
    stride[1] = rows_first ? c.dim : rows * c.dim;
    stride[2] = rows_first ? heads * c.dim : c.dim;
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
    Strides(a.q.stride, c.heads, c.queries);
    Strides(a.out.stride, c.heads, c.queries);
    Strides(a.out_low.stride, c.heads, c.queries);
    Strides(a.k.stride, c.kv_heads, c.keys);
    Strides(a.v.stride, c.kv_heads, c.keys);
    const int64_t lse_rows = Packed() ? rows_q : c.queries;
    a.lse.stride[0] = c.heads * lse_rows;
    a.lse.stride[1] = lse_rows;
    a.lse.stride[2] = 1;
    return a;
  }

  Result Run() const {
    const Device<uint16_t> dq(q), dk(k), dv(v), out(std::vector<uint16_t>(q.size(), kPoison)),
        low(std::vector<uint16_t>(q.size(), kPoison));
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
    int64_t wrong = 0, checked = 0;
    double worst = 0;
    for (int64_t b = 0; b < a.batch; ++b) {
      const int64_t nq = Packed() ? c.lengths_q[static_cast<size_t>(b)] : c.queries;
      const int64_t nk = Packed() ? c.lengths_k[static_cast<size_t>(b)] : c.keys;
      const int64_t q0 = Packed() ? starts_q[static_cast<size_t>(b)] * a.q.stride[2] : b * a.q.stride[0];
      const int64_t k0 = Packed() ? starts_k[static_cast<size_t>(b)] * a.k.stride[2] : b * a.k.stride[0];
      const int64_t offset = c.bottom_right ? nk - nq : 0;
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t qh = q0 + h * a.q.stride[1], kh = k0 + h / (c.heads / c.kv_heads) * a.k.stride[1];
        for (int64_t t = 0; t < nq; ++t) {
          std::vector<double> s(static_cast<size_t>(nk));
          double m = -INFINITY, score_error = 0;
          for (int64_t j = 0; j < nk; ++j) {
            double dot = 0, size = 0;
            for (int64_t i = 0; i < c.dim; ++i) {
              const double x = static_cast<double>(Q(qh + t * a.q.stride[2] + i)) * K(kh + j * a.k.stride[2] + i);
              dot += x, size += std::fabs(x);
            }
            double& score = s[static_cast<size_t>(j)] = dot * scale;
            if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
            const bool seen = (c.left < 0 || j >= t + offset - c.left) && (c.right < 0 || j <= t + offset + c.right);
            if (!seen) score = -INFINITY;
            m = std::max(m, score);
            if (seen) score_error = std::max(score_error, 1e-6 * size * scale);
          }
          double l = 0;
          for (double x : s) l += x == -INFINITY ? 0 : std::exp(x - m);
          const int64_t at_lse = Packed() ? h * rows_q + starts_q[static_cast<size_t>(b)] + t
                                          : (b * c.heads + h) * c.queries + t;
          const float lse = r.lse[static_cast<size_t>(at_lse)];
          ++checked;
          if (l == 0) {
            wrong += lse != -INFINITY;
          } else {
            wrong += !(std::fabs(lse - (m + std::log(l))) <= 2e-5 + 2 * score_error + 3e-7 * std::fabs(m));
          }
          for (int64_t i = 0; i < c.dim; ++i) {
            double exact = 0, size = 0;
            for (int64_t j = 0; j < nk && l > 0; ++j) {
              const double p = s[static_cast<size_t>(j)] == -INFINITY ? 0 : std::exp(s[static_cast<size_t>(j)] - m) / l;
              const double x = V(kh + j * a.v.stride[2] + i);
              exact += p * x, size += p * std::fabs(x);
            }
            const auto at = static_cast<size_t>(qh + t * a.q.stride[2] + i);
            const double got = FromStored(c.dtype, r.out[at]), low = FromStored(c.dtype, r.low[at]);
            const double bound = (1.5 * eps + 3 * score_error) * size + 1e-6;
            wrong += !(std::fabs(got - exact) <= bound);
            wrong += !(std::fabs(got + low - exact) <= bound) || !(std::fabs(low) <= eps * std::fabs(got) + 1e-7);
            if (bound > 0) worst = std::max(worst, std::fabs(got - exact) / bound);
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0) << "of " << checked << " rows; worst error " << worst << " of the bound; dim " << c.dim << " dtype "
                        << c.dtype << " kind " << c.kind << " q " << c.queries << " k " << c.keys << " right " << c.right
                        << " left " << c.left << " bottom_right " << c.bottom_right << " cap " << c.softcap;
    EXPECT_GT(checked, 0);
  }

  Case c;
  int64_t rows_q, rows_k;
  std::vector<int32_t> starts_q, starts_k;
  std::vector<uint16_t> q, k, v;

 private:
  float Q(int64_t i) const { return FromStored(c.dtype, q[static_cast<size_t>(i)]); }
  float K(int64_t i) const { return FromStored(c.dtype, k[static_cast<size_t>(i)]); }
  float V(int64_t i) const { return FromStored(c.dtype, v[static_cast<size_t>(i)]); }
};

void Check(const Case& c, uint32_t seed) {
  const Problem p(c, seed);
  p.CheckAgainstFp64(p.Run());
}

TEST(CudaForward, RandomShapesMasksAndLayoutsOfEveryHeadSize) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  for (int64_t dim : {64, 96, 128, 192, 256}) {
    for (int i = 0; i < 12; ++i) {
      Case c;
      c.dtype = pick(0, 1) ? TRIMTAB_BF16 : TRIMTAB_F16;
      c.dim = dim;
      c.batch = pick(1, 2);
      c.kv_heads = pick(1, 2);
      c.heads = c.kv_heads * pick(1, 3);
      c.queries = pick(1, 200);
      c.keys = pick(0, 3) ? pick(1, 200) : c.queries;
      c.kind = static_cast<int>(pick(0, 2));
      c.bottom_right = static_cast<int>(pick(0, 1));
      c.right = pick(0, 2) ? 0 : static_cast<int>(pick(-1, 40));
      c.left = pick(0, 2) ? -1 : static_cast<int>(pick(0, 90));
      c.softcap = pick(0, 3) ? 0.0f : 5.0f;
      c.bshd = pick(0, 1) != 0;
      Check(c, static_cast<uint32_t>(100 * dim + i));
    }
  }
}

TEST(CudaForward, Varlen) {
  for (int bottom_right : {0, 1}) {
    for (int kind : {0, 1, 2}) {
      Case c;
      c.kind = kind;
      c.lengths_q = {1, 77, 0, 130, 5};
      c.lengths_k = {64, 77, 9, 33, 0};
      c.right = 0;
      c.bottom_right = bottom_right;
      c.dim = 128;
      Check(c, 5);
    }
  }
}

TEST(CudaForward, LargeLogits) {
  for (int kind : {0, 1, 2}) {
    for (float spread : {8.0f, 35.0f}) {  // scores of about 500 and 1e4
      Case c;
      c.kind = kind;
      c.spread = spread;
      c.right = 0;
      Check(c, 11);
    }
  }
}

TEST(CudaForward, OneKeyAndOneQuery) {
  for (int kind : {0, 1, 2}) {
    Case c;
    c.kind = kind;
    c.queries = 1;
    c.keys = 1;
    Check(c, 3);
    c.keys = 300;
    Check(c, 4);
  }
}

TEST(CudaForward, RepeatsBitForBit) {
  Case c;
  c.queries = c.keys = 500;
  c.right = 0;
  const Problem p(c, 9);
  const Result first = p.Run(), second = p.Run();
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.lse, second.lse);
}

TEST(CudaForward, ConstantInputGivesValueExactly) {
  Case c;
  Problem p(c, 1);
  std::fill(p.q.begin(), p.q.end(), ToStored(c.dtype, 1.0f));
  std::fill(p.k.begin(), p.k.end(), ToStored(c.dtype, 1.0f));
  std::fill(p.v.begin(), p.v.end(), ToStored(c.dtype, -2.296875f));
  const Result r = p.Run();
  for (uint16_t x : r.out) EXPECT_EQ(x, ToStored(c.dtype, -2.296875f));
}

TEST(CudaForward, NanAndInfStayInTheirRows) {
  Case c;
  c.batch = 1;
  c.heads = c.kv_heads = 1;
  Problem p(c, 2);
  p.q[3 * 64 + 5] = ToStored(c.dtype, NAN);
  p.q[9 * 64 + 1] = ToStored(c.dtype, INFINITY);
  const Result r = p.Run();
  for (int64_t t = 0; t < c.queries; ++t) {
    for (int64_t i = 0; i < 64; ++i) {
      const float x = FromStored(c.dtype, r.out[static_cast<size_t>(t * 64 + i)]);
      EXPECT_EQ(std::isnan(x), t == 3 || t == 9) << t;
    }
  }
  EXPECT_TRUE(std::isnan(r.lse[3]));
}

TEST(CudaForward, OneCapturedGraphFollowsTheFlag) {
  Case c;
  const Problem p(c, 8);
  const Device<uint16_t> q(p.q), k(p.k), v(p.v), out(p.q.size());
  const Device<int32_t> kind(std::vector<int32_t>{0});
  auto a = p.Arguments();
  a.q.data = q.get(), a.k.data = k.get(), a.v.data = v.get(), a.out.data = out.get();
  a.kind = kind.get();
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(trimtab_cuda_attention_forward(&a, stream), TRIMTAB_KERNEL_OK);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  std::vector<std::vector<uint16_t>> results;
  for (int32_t mode : {0, 2}) {
    ASSERT_EQ(cudaMemcpy(kind.get(), &mode, sizeof mode, cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    Case same = c;
    same.kind = mode;
    EXPECT_EQ(out.Host(), Problem(same, 8).Run().out);
    results.push_back(out.Host());
  }
  EXPECT_NE(results[0], results[1]);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(CudaForward, RefusesWhatItCannotDo) {
  const Problem p(Case{}, 1);
  auto a = p.Arguments();
  EXPECT_EQ(trimtab_cuda_attention_forward(nullptr, nullptr), TRIMTAB_KERNEL_BAD_ARGUMENT);
  EXPECT_EQ(trimtab_cuda_attention_forward(&a, nullptr), TRIMTAB_KERNEL_BAD_ARGUMENT);
  a.head_dim = 80;
  EXPECT_EQ(trimtab_cuda_attention_forward(&a, nullptr), TRIMTAB_KERNEL_UNSUPPORTED);
  EXPECT_STRNE(trimtab_kernel_error(), "");
}

}  // namespace
}  // namespace trimtab
