// The CUDA probe against the CPU's, and against the definition for what the CPU's does not know: every statistic,
// counts exactly.
#include "probe_reference.h"

namespace trimtab {
namespace {

struct Case {
  trimtab_dtype dtype = TRIMTAB_BF16;
  int64_t batch = 3, heads = 4, kv_heads = 2, queries = 90, keys = 90, dim = 64;
  int causal = 2;
  int64_t row_begin = 0, row_step = 1, batch_begin = 0, batch_step = 1;
  bool output = true, whole = true, poisoned = false;
};

// Small whole numbers: every score is exact, whatever the order of its sum, so that counts must agree exactly.
std::vector<uint16_t> Whole(trimtab_dtype dtype, int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> x(static_cast<size_t>(n));
  for (auto& e : x) e = ToStored(dtype, random() % 8 == 0 ? 1.0f : (random() % 8 == 0 ? -1.0f : 0.0f));
  return x;
}

std::vector<uint16_t> Data(const Case& c, int64_t heads, int64_t rows, uint32_t seed) {
  const int64_t n = c.batch * heads * rows * c.dim;
  return c.whole ? Whole(c.dtype, n, seed) : Normal(c.dtype, static_cast<size_t>(n), seed, 0, 1.5f);
}

std::vector<trimtab_head_stats> Gpu(trimtab_cuda_probe p, int calls) {
  const Device<char> workspace(trimtab_cuda_probe_workspace(&p));
  std::vector<trimtab_head_stats> start(static_cast<size_t>(p.attention.heads));
  trimtab_head_stats_reset(start.data(), p.attention.heads);
  const Device<trimtab_head_stats> stats(start);
  p.stats = stats.get();
  p.workspace = workspace.get();
  for (int i = 0; i < calls; ++i) {
    EXPECT_EQ(trimtab_cuda_attention_probe(&p, nullptr), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
  }
  Synchronize();
  return stats.Host();
}

// `exact`: counts that depend on the last bit of a score must agree as well.
void ExpectStats(const trimtab_cuda_probe& p, const std::vector<trimtab_head_stats>& expected, bool exact) {
  const auto got = Gpu(p, 1), again = Gpu(p, 1);
  EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * sizeof got[0]), 0) << "not repeatable";
  for (size_t h = 0; h < got.size(); ++h) {
    SCOPED_TRACE(testing::Message() << "head " << h);
    const auto &x = got[h], &y = expected[h];
    EXPECT_EQ(x.rows, y.rows);
    EXPECT_EQ(x.trivial_rows, y.trivial_rows);
    EXPECT_EQ(x.empty_rows, y.empty_rows);
    EXPECT_EQ(x.scores, y.scores);
    EXPECT_EQ(x.nonfinite_scores, y.nonfinite_scores);
    EXPECT_EQ(x.delta_rows, y.delta_rows);
    if (exact) {
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
    // rowsum(dO O) is about 2 head_dim here, known to a few FP32 ulps.
    const double residuals = 2e-6 * static_cast<double>(p.attention.head_dim) * static_cast<double>(y.delta_rows);
    EXPECT_NEAR(x.delta_residual_sum, y.delta_residual_sum, residuals + 1e-3 * std::fabs(y.delta_residual_sum));
    EXPECT_NEAR(x.delta_residual_sum_squares, y.delta_residual_sum_squares, 1e-2 * y.delta_residual_sum_squares);
    EXPECT_NEAR(x.output_error_sum_squares, y.output_error_sum_squares, 1e-2 * y.output_error_sum_squares);
    EXPECT_NEAR(x.output_sum_squares, y.output_sum_squares, 1e-5 * y.output_sum_squares);
  }
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
  cpu.row_begin = c.row_begin, cpu.row_step = c.row_step, cpu.batch_begin = c.batch_begin,
  cpu.batch_step = c.batch_step;
  if (c.output) cpu.out.data = out.data(), cpu.grad_out.data = grad.data();
  ASSERT_EQ(trimtab_attention_probe(&cpu), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();

  const Device<uint16_t> dq(q), dk(k), dv(v), d_out(out), d_grad(grad);
  trimtab_cuda_probe p{};
  auto& g = p.attention;
  g.struct_size = sizeof g;
  g.dtype = c.dtype;
  g.batch = c.batch, g.heads = c.heads, g.kv_heads = c.kv_heads, g.queries = c.queries, g.keys = c.keys,
  g.head_dim = c.dim;
  g.scale = a.scale;
  g.mask = {c.causal == 2, -1, c.causal ? 0 : -1, nullptr, nullptr};
  g.q = a.q, g.k = a.k, g.v = a.v;
  g.q.data = dq.get(), g.k.data = dk.get(), g.v.data = dv.get();
  p.out = cpu.out, p.grad_out = cpu.grad_out;
  p.out.data = c.output ? d_out.get() : nullptr, p.grad_out.data = c.output ? d_grad.get() : nullptr;
  p.row_begin = c.row_begin, p.row_step = c.row_step, p.batch_begin = c.batch_begin, p.batch_step = c.batch_step;
  SCOPED_TRACE(testing::Message() << "dim " << c.dim << " causal " << c.causal << " whole " << c.whole);
  ExpectStats(p, expected, c.whole);
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

// Against the definition: rows of [token][head][dim], sequences one behind the other.
void CompareWithDefinition(HostProbe c, uint32_t seed, bool packed, bool poisoned) {
  const int64_t batch = static_cast<int64_t>(c.cu_q.size()) - 1;
  int64_t queries = 0;
  for (int64_t b = 0; b < batch; ++b)
    queries = std::max<int64_t>(queries, c.cu_q[static_cast<size_t>(b) + 1] - c.cu_q[static_cast<size_t>(b)]);
  const int64_t nq = c.cu_q.back() * c.heads * c.dim, nk = c.cu_k.back() * c.kv_heads * c.dim;
  c.q = Whole(c.dtype, nq, seed), c.k = Whole(c.dtype, nk, seed + 1);
  c.v = Normal(c.dtype, static_cast<size_t>(nk), seed + 2, -2, 0.2f);
  c.out = Normal(c.dtype, static_cast<size_t>(nq), seed + 3, -2, 0.2f);
  c.grad = Normal(c.dtype, static_cast<size_t>(nq), seed + 4, -1, 0.3f);
  if (poisoned) {
    c.q[static_cast<size_t>(9 * c.heads * c.dim)] = ToStored(c.dtype, NAN);
    c.q[static_cast<size_t>(11 * c.heads * c.dim + 3)] = ToStored(c.dtype, -INFINITY);
    c.k[static_cast<size_t>(5 * c.kv_heads * c.dim + 7)] = ToStored(c.dtype, INFINITY);
    c.k[static_cast<size_t>(30 * c.kv_heads * c.dim + 1)] = ToStored(c.dtype, NAN);
  }
  const Device<uint16_t> q(c.q), k(c.k), v(c.v), out(c.out), grad(c.grad);
  const Device<int32_t> cu_q(c.cu_q), cu_k(c.cu_k);
  trimtab_cuda_probe p{};
  auto& a = p.attention;
  a.struct_size = sizeof a;
  a.dtype = c.dtype;
  a.batch = batch, a.heads = c.heads, a.kv_heads = c.kv_heads, a.head_dim = c.dim;
  a.queries = queries, a.keys = packed ? 0 : c.cu_k[1];
  a.scale = c.scale, a.softcap = c.softcap;
  a.mask = {c.bottom_right, c.left, c.right, packed ? cu_q.get() : nullptr, packed ? cu_k.get() : nullptr};
  const int64_t q_stride[4] = {queries * c.heads * c.dim, c.dim, c.heads * c.dim, 1};
  const int64_t k_stride[4] = {c.cu_k[1] * c.kv_heads * c.dim, c.dim, c.kv_heads * c.dim, 1};
  for (int i = 0; i < 4; ++i) {
    a.q.stride[i] = p.out.stride[i] = p.grad_out.stride[i] = q_stride[i];
    a.k.stride[i] = a.v.stride[i] = k_stride[i];
  }
  a.q.data = q.get(), a.k.data = k.get(), a.v.data = v.get(), p.out.data = out.get(), p.grad_out.data = grad.get();
  p.row_begin = c.row_begin, p.row_step = c.row_step, p.batch_step = 1;
  SCOPED_TRACE(testing::Message() << "dim " << c.dim << " packed " << packed << " window " << c.left << ' ' << c.right
                                  << " softcap " << c.softcap << " bottom right " << c.bottom_right);
  ExpectStats(p, Reference(c), true);
}

TEST(CudaProbe, VarlenWindowAndSoftcapByDefinition) {
  uint32_t seed = 100;
  for (const auto dtype : {TRIMTAB_BF16, TRIMTAB_F16}) {
    for (const bool poisoned : {false, true}) {
      for (const float softcap : {0.0f, 5.0f}) {
        for (const auto& [left, right] : {std::pair{-1, 0}, {-1, -1}, {20, 0}, {7, 9}, {0, 0}}) {
          HostProbe c;
          c.dtype = dtype, c.softcap = softcap, c.left = left, c.right = right;
          c.bottom_right = static_cast<int>(seed % 2);
          c.dim = seed % 3 == 0 ? 128 : 64;
          c.cu_q = {0, 40, 80}, c.cu_k = {0, 90, 180};
          CompareWithDefinition(c, seed += 7, false, poisoned);
          c.cu_q = {0, 33, 34, 34, 150}, c.cu_k = {0, 70, 130, 140, 200};  // one row; none; more rows than keys
          c.row_begin = 1, c.row_step = 3;
          CompareWithDefinition(c, seed += 7, true, poisoned);
        }
      }
    }
  }
}

// Sixty-four rows a head: one cluster, many blocks wide; then more keys than a warp holds, and many clusters of a head.
// (The CPU's chains of FP32 sums over so many keys are further from the definition than the tolerance.)
TEST(CudaProbe, ManyKeysAndManyRowsByDefinition) {
  HostProbe c;
  c.cu_q = c.cu_k = {0, 1024};
  c.row_begin = 15, c.row_step = 16;
  CompareWithDefinition(c, 50, false, false);
  c.cu_q = {0, 700}, c.cu_k = {0, 1500};
  c.row_begin = 2, c.row_step = 11;
  for (int64_t dim : {64, 128, 256}) {
    c.dim = dim;
    CompareWithDefinition(c, 51, false, false);
  }
  c.heads = c.kv_heads = 64, c.cu_q = c.cu_k = {0, 300}, c.dim = 64, c.row_step = 3;
  CompareWithDefinition(c, 52, false, false);
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
  EXPECT_EQ(Gpu(p, 1)[0].rows, 0u);
  p.period = 3;
  EXPECT_EQ(Gpu(p, 2)[0].rows, 2u * 3u * 89u);
}

}  // namespace
}  // namespace trimtab
