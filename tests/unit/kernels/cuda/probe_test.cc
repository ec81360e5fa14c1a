// The CUDA probe against the CPU's: every statistic, counts exactly.
#include "device.h"

namespace trimtab {
namespace {

struct Case {
  trimtab_dtype dtype = TRIMTAB_BF16;
  int64_t batch = 3, heads = 4, kv_heads = 2, queries = 90, keys = 90, dim = 64;
  int causal = 2;
  int64_t row_begin = 0, row_step = 1, batch_begin = 0, batch_step = 1;
  bool output = true, whole = true, poisoned = false;
};

std::vector<uint16_t> Data(const Case& c, int64_t heads, int64_t rows, uint32_t seed) {
  const auto n = static_cast<size_t>(c.batch * heads * rows * c.dim);
  if (!c.whole) return Normal(c.dtype, n, seed, 0, 1.5f);
  // Small whole numbers: every score is exact, whatever the order of its sum, so that counts must agree exactly.
  std::mt19937 random(seed);
  std::vector<uint16_t> x(n);
  for (auto& e : x) e = ToStored(c.dtype, random() % 8 == 0 ? 1.0f : (random() % 8 == 0 ? -1.0f : 0.0f));
  return x;
}

std::vector<trimtab_head_stats> Gpu(const Case& c, trimtab_cuda_probe p, int calls) {
  const Device<char> workspace(trimtab_cuda_probe_workspace(&p));
  std::vector<trimtab_head_stats> start(static_cast<size_t>(c.heads));
  trimtab_head_stats_reset(start.data(), c.heads);
  const Device<trimtab_head_stats> stats(start);
  p.stats = stats.get();
  p.workspace = workspace.get();
  for (int i = 0; i < calls; ++i) {
    EXPECT_EQ(trimtab_cuda_attention_probe(&p, nullptr), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
  }
  Synchronize();
  return stats.Host();
}

void Compare(const Case& c, uint32_t seed) {
  auto q = Data(c, c.heads, c.queries, seed), k = Data(c, c.kv_heads, c.keys, seed + 1);
  const auto v = Normal(c.dtype, k.size(), seed + 2, -2, 0.2f), grad = Normal(c.dtype, q.size(), seed + 3, -1, 0.3f);
  if (c.poisoned) q[static_cast<size_t>(2 * c.dim)] = ToStored(c.dtype, NAN), k[7] = ToStored(c.dtype, INFINITY);
  std::vector<uint16_t> out(q.size());
  trimtab_probe cpu{};
  auto& a = cpu.attention;
  a.struct_size = sizeof a;
  a.dtype = c.dtype;
  a.batch = c.batch, a.heads = c.heads, a.kv_heads = c.kv_heads, a.queries = c.queries, a.keys = c.keys;
  a.head_dim = a.value_dim = c.dim;
  a.causal = c.causal;
  a.scale = c.whole ? 0.5f : 0.0f;
  const int64_t qs[4] = {c.heads * c.queries * c.dim, c.queries * c.dim, c.dim, 1};
  const int64_t ks[4] = {c.kv_heads * c.keys * c.dim, c.keys * c.dim, c.dim, 1};
  for (int i = 0; i < 4; ++i) {
    a.q.stride[i] = a.out.stride[i] = cpu.out.stride[i] = cpu.grad_out.stride[i] = qs[i];
    a.k.stride[i] = a.v.stride[i] = ks[i];
  }
  a.q.data = q.data(), a.k.data = k.data(), a.v.data = v.data(), a.out.data = out.data();
  ASSERT_EQ(trimtab_attention_forward(&a), TRIMTAB_KERNEL_OK);
  std::vector<trimtab_head_stats> expected(static_cast<size_t>(c.heads));
  trimtab_head_stats_reset(expected.data(), c.heads);
  a.stats = expected.data();
  cpu.row_begin = c.row_begin, cpu.row_step = c.row_step, cpu.batch_begin = c.batch_begin, cpu.batch_step = c.batch_step;
  if (c.output) cpu.out.data = out.data(), cpu.grad_out.data = grad.data();
  ASSERT_EQ(trimtab_attention_probe(&cpu), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();

  const Device<uint16_t> dq(q), dk(k), dv(v), d_out(out), d_grad(grad);
  trimtab_cuda_probe p{};
  auto& g = p.attention;
  g.struct_size = sizeof g;
  g.dtype = c.dtype;
  g.batch = c.batch, g.heads = c.heads, g.kv_heads = c.kv_heads, g.queries = c.queries, g.keys = c.keys, g.head_dim = c.dim;
  g.scale = a.scale;
  g.mask = {c.causal == 2, -1, c.causal ? 0 : -1, nullptr, nullptr};
  g.q = a.q, g.k = a.k, g.v = a.v;
  g.q.data = dq.get(), g.k.data = dk.get(), g.v.data = dv.get();
  p.out = cpu.out, p.grad_out = cpu.grad_out;
  p.out.data = c.output ? d_out.get() : nullptr, p.grad_out.data = c.output ? d_grad.get() : nullptr;
  p.row_begin = c.row_begin, p.row_step = c.row_step, p.batch_begin = c.batch_begin, p.batch_step = c.batch_step;
  const auto got = Gpu(c, p, 1), again = Gpu(c, p, 1);
  EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * sizeof got[0]), 0) << "not repeatable";
  for (size_t h = 0; h < got.size(); ++h) {
    SCOPED_TRACE(testing::Message() << "head " << h << " dim " << c.dim << " causal " << c.causal << " whole " << c.whole);
    const auto &x = got[h], &y = expected[h];
    EXPECT_EQ(x.rows, y.rows);
    EXPECT_EQ(x.trivial_rows, y.trivial_rows);
    EXPECT_EQ(x.empty_rows, y.empty_rows);
    EXPECT_EQ(x.scores, y.scores);
    EXPECT_EQ(x.nonfinite_scores, y.nonfinite_scores);
    EXPECT_EQ(x.delta_rows, y.delta_rows);
    if (c.whole) {
      EXPECT_EQ(x.repeated_max_rows, y.repeated_max_rows);
      EXPECT_EQ(x.p_one_count, y.p_one_count);
      EXPECT_EQ(x.tie_rows, y.tie_rows);
      EXPECT_EQ(x.max_logit, y.max_logit);
    } else {
      EXPECT_NEAR(x.max_logit, y.max_logit, 1e-5 * std::fabs(y.max_logit));
    }
    EXPECT_NEAR(x.entropy_sum, y.entropy_sum, 1e-5 * y.entropy_sum + 1e-5);
    EXPECT_NEAR(x.sink_share_sum, y.sink_share_sum, 1e-5 * y.sink_share_sum + 1e-6);
    EXPECT_NEAR(x.residual_mass_sum, y.residual_mass_sum, 1e-5 * y.residual_mass_sum + 1e-5);
    const double n = static_cast<double>(y.delta_rows);
    EXPECT_NEAR(x.delta_residual_sum, y.delta_residual_sum, 1e-4 * n + 1e-3 * std::fabs(y.delta_residual_sum));
    EXPECT_NEAR(x.delta_residual_sum_squares, y.delta_residual_sum_squares, 1e-2 * y.delta_residual_sum_squares);
    EXPECT_NEAR(x.output_error_sum_squares, y.output_error_sum_squares, 1e-2 * y.output_error_sum_squares);
    EXPECT_NEAR(x.output_sum_squares, y.output_sum_squares, 1e-5 * y.output_sum_squares);
  }
}

TEST(CudaProbe, AgreesWithTheCpu) {
  uint32_t seed = 1;
  for (auto dtype : {TRIMTAB_BF16, TRIMTAB_F16}) {
    for (int64_t dim : {64, 96, 128, 192, 256}) {
      for (bool whole : {true, false}) {
        Case c;
        c.dtype = dtype, c.dim = dim, c.whole = whole;
        c.causal = static_cast<int>(seed % 3);
        c.queries = 60 + seed % 50, c.keys = 40 + seed % 70;
        Compare(c, seed += 10);
      }
    }
  }
}

TEST(CudaProbe, SampledRowsAndBatches) {
  Case c;
  c.queries = c.keys = 300;
  c.row_begin = 5, c.row_step = 11, c.batch_begin = 1, c.batch_step = 2;
  Compare(c, 40);
  c.output = false;
  c.causal = 1;
  Compare(c, 41);
}

TEST(CudaProbe, NanAndInf) {
  Case c;
  c.poisoned = true;
  c.output = false;
  Compare(c, 60);
}

TEST(CudaProbe, SleepsBetweenSampledSteps) {
  Case c;
  const auto q = Data(c, c.heads, c.queries, 1);
  const Device<uint16_t> data(q);
  const Device<uint64_t> step(std::vector<uint64_t>{3});
  trimtab_cuda_probe p{};
  auto& g = p.attention;
  g.struct_size = sizeof g;
  g.dtype = c.dtype;
  g.batch = c.batch, g.heads = g.kv_heads = c.heads, g.queries = g.keys = c.queries, g.head_dim = c.dim;
  g.mask = {0, -1, 0, nullptr, nullptr};
  const int64_t stride[4] = {c.heads * c.queries * c.dim, c.queries * c.dim, c.dim, 1};
  for (int i = 0; i < 4; ++i) g.q.stride[i] = g.k.stride[i] = stride[i];
  g.q.data = g.k.data = data.get();
  p.row_step = p.batch_step = 1;
  p.step = step.get();
  p.period = 2;
  EXPECT_EQ(Gpu(c, p, 1)[0].rows, 0u);
  p.period = 3;
  EXPECT_EQ(Gpu(c, p, 2)[0].rows, 2u * 3u * 89u);
}

}  // namespace
}  // namespace trimtab
