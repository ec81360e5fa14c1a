// The CUDA forward against FP64: shapes, layouts, masks, kinds, extremes.
#include <algorithm>

#include "device.h"
#include "kernels/cuda/forward_sm90.h"

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

void Check(const Case& c, uint32_t seed) {
  const Problem p(c, seed);
  p.CheckAgainstFp64(p.Run());
}

TEST(CudaForward, RandomShapesMasksAndLayoutsOfEveryHeadSize) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
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

// What the sm_90a kernel takes: dense, no softcap, no left limit.
TEST(CudaForward, CommonCallsOfRandomShapesAndStrides) {
  std::mt19937 random(17);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int64_t dim : {64, 128}) {
    for (int i = 0; i < 36; ++i) {
      Case c;
      c.dtype = pick(0, 1) ? TRIMTAB_BF16 : TRIMTAB_F16;
      c.dim = dim;
      c.batch = pick(1, 2);
      c.kv_heads = pick(1, 2);
      c.heads = c.kv_heads * pick(1, 3);
      c.queries = pick(1, i % 4 == 0 ? 600 : 300);
      c.keys = pick(0, 2) ? pick(1, i % 4 == 0 ? 600 : 300) : c.queries;
      c.kind = i % 3;
      c.bottom_right = static_cast<int>(pick(0, 1));
      c.right = pick(0, 3) == 0 ? -1 : (pick(0, 3) == 0 ? static_cast<int>(pick(1, 40)) : 0);
      c.bshd = pick(0, 1) != 0;
      c.pad = pick(0, 2) ? 0 : 8 * pick(1, 9);
      c.out_pad = pick(0, 2) ? 0 : 2 * pick(1, 9);
      c.row_step = 3;
      Check(c, static_cast<uint32_t>(1000 * dim + i));
    }
  }
}

// More blocks of rows than the device has multiprocessors, so that thread blocks take several in turn.
TEST(CudaForward, BlocksOfRowsInTurn) {
  for (int64_t dim : {64, 128}) {
    for (int right : {-1, 0}) {
      for (int kind : {0, 1, 2}) {
        Case c;
        c.dim = dim;
        c.right = right;
        c.kind = kind;
        c.batch = 1;
        c.heads = 150;
        c.kv_heads = 50;
        c.queries = c.keys = 70;
        c.row_step = 31;
        Check(c, static_cast<uint32_t>(dim + right));
      }
    }
  }
}

TEST(CudaForward, ManyBlocksOfRowsAndLongSequences) {
  for (int64_t dim : {64, 128}) {
    for (int right : {-1, 0}) {
      Case c;
      c.dim = dim;
      c.right = right;
      c.batch = 3;
      c.heads = 42;
      c.kv_heads = 14;
      c.queries = c.keys = 640;  // an odd number of blocks
      c.row_step = 331;
      Check(c, static_cast<uint32_t>(dim));
      c.keys = 300;  // blocks whose cost does not rise evenly
      Check(c, static_cast<uint32_t>(dim + 1));
      c.queries = 900;
      c.keys = 1000;  // an even number at head size 64
      c.bottom_right = 1;
      Check(c, static_cast<uint32_t>(dim + 2));
      c.batch = 1;  // several sections
      c.heads = c.kv_heads = 60;
      c.queries = 600;
      c.keys = 2300;
      Check(c, static_cast<uint32_t>(dim + 3));
      c.heads = c.kv_heads = 2;  // fewer blocks than multiprocessors
      c.queries = 2500;
      Check(c, static_cast<uint32_t>(dim + 4));
      c.queries = 1;
      c.keys = 5001;
      Check(c, static_cast<uint32_t>(dim + 5));
    }
  }
}

TEST(CudaForward, RowsWithoutKeys) {
  for (int64_t dim : {64, 128}) {
    for (int kind : {0, 1, 2}) {
      Case c;
      c.dim = dim;
      c.kind = kind;
      c.queries = 400;
      c.keys = 70;  // the first 330 rows see nothing, the next one key
      c.right = 0;
      c.bottom_right = 1;
      Check(c, 21);
    }
  }
}

// Whether the sm_90a kernel would run.
bool Sm90(trimtab_cuda_attention a, const void* memory) {
  a.q.data = a.k.data = a.v.data = memory;
  cuda::ForwardSm90Job job;
  return cuda::PrepareForwardSm90(a, &job);
}

TEST(CudaForward, KernelIsChosenByDeviceAndCall) {
  cudaDeviceProp device;
  ASSERT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  const bool hopper = device.major == 9 && device.minor == 0;
  const Device<uint16_t> memory(1 << 20);
  for (int64_t dim : {64, 96, 128, 192, 256}) {
    Case c;
    c.dim = dim;
    c.right = 0;
    EXPECT_EQ(Sm90(Problem(c, 1).Arguments(), memory.get()), hopper && (dim == 64 || dim == 128)) << dim;
  }
  const auto plain = Problem(Case{}, 1).Arguments();
  EXPECT_EQ(Sm90(plain, memory.get()), hopper);
  auto a = plain;
  a.softcap = 5;
  EXPECT_FALSE(Sm90(a, memory.get()));
  a = plain;
  a.mask.window_left = 3;
  EXPECT_FALSE(Sm90(a, memory.get()));
  a = plain;
  a.mask.cu_seqlens_q = a.mask.cu_seqlens_k = reinterpret_cast<const int32_t*>(memory.get());
  EXPECT_FALSE(Sm90(a, memory.get()));
  a = plain;
  a.keys = 0;
  EXPECT_FALSE(Sm90(a, memory.get()));
  a = plain;
  a.k.stride[0] = 0;  // one set of keys for the whole batch
  EXPECT_FALSE(Sm90(a, memory.get()));
}

TEST(CudaForward, OneKeySetForTheWholeBatch) {
  Case c;
  const Problem p(c, 31);
  const Device<uint16_t> q(p.q), k(p.k), v(p.v), out(p.q.size()), same(p.q.size());
  auto a = p.Arguments();
  a.q.data = q.get(), a.k.data = k.get(), a.v.data = v.get(), a.out.data = out.get();
  a.k.stride[0] = a.v.stride[0] = 0;
  ASSERT_EQ(trimtab_cuda_attention_forward(&a, nullptr), TRIMTAB_KERNEL_OK);
  Problem twice = p;
  std::copy_n(p.k.begin(), p.k.size() / 2, twice.k.begin() + static_cast<std::ptrdiff_t>(p.k.size() / 2));
  std::copy_n(p.v.begin(), p.v.size() / 2, twice.v.begin() + static_cast<std::ptrdiff_t>(p.v.size() / 2));
  Result r = twice.Run();
  twice.CheckAgainstFp64(r);
  const auto got = out.Host();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(FromStored(c.dtype, got[i]), FromStored(c.dtype, r.out[i]), 0.02f) << i;
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
  for (int64_t dim : {64, 128}) {
    for (int kind : {0, 1, 2}) {
      for (float spread : {8.0f, 35.0f}) {  // scores of about 500 and 1e4
        Case c;
        c.dim = dim;
        c.kind = kind;
        c.spread = spread;
        c.queries = c.keys = 150;
        c.right = 0;
        Check(c, 11);
      }
    }
  }
}

// All scores of a row near `sign` * 1e4.
TEST(CudaForward, LargeMaximaOfEitherSign) {
  for (int64_t dim : {64, 128}) {
    for (int kind : {0, 1, 2}) {
      for (float sign : {1.0f, -1.0f}) {
        Case c;
        c.dim = dim;
        c.kind = kind;
        c.queries = c.keys = 150;
        c.right = 0;
        Problem p(c, 12);
        const float size = std::sqrt(1e4f / std::sqrt(static_cast<float>(dim)));
        p.q = Normal(c.dtype, p.q.size(), 13, sign * size, size * 1e-2f);
        p.k = Normal(c.dtype, p.k.size(), 14, size, size * 1e-2f);
        p.CheckAgainstFp64(p.Run());
      }
    }
  }
}

TEST(CudaForward, TiedMaximaInOneTileAndInSeveral) {
  for (int64_t dim : {64, 128}) {
    for (int kind : {0, 1, 2}) {
      for (float size : {0.0f, 0.1f, 1.0f}) {  // 0: every score is 0
        Case c;
        c.dim = dim;
        c.kind = kind;
        c.queries = c.keys = 300;
        c.right = 0;
        c.spread = size;
        Problem p(c, 15);
        const auto width = static_cast<size_t>(c.kv_heads * c.dim);
        for (size_t row = 0; row < static_cast<size_t>(p.rows_k); ++row) {
          if (row % 50 < 4) std::copy_n(p.k.begin(), width, p.k.begin() + static_cast<std::ptrdiff_t>(row * width));
        }
        p.CheckAgainstFp64(p.Run());
      }
    }
  }
}

TEST(CudaForward, OneKeyAndOneQuery) {
  for (int64_t dim : {64, 128}) {
    for (int kind : {0, 1, 2}) {
      Case c;
      c.dim = dim;
      c.kind = kind;
      c.queries = 1;
      c.keys = 1;
      Check(c, 3);
      c.keys = 300;
      Check(c, 4);
      c.queries = 300;
      c.keys = 1;
      Check(c, 5);
    }
  }
}

TEST(CudaForward, RepeatsBitForBit) {
  for (int64_t dim : {64, 128}) {
    for (int64_t rows : {500, 2100}) {
      Case c;
      c.dim = dim;
      c.heads = 24;
      c.queries = c.keys = rows;
      c.right = 0;
      const Problem p(c, 9);
      const Result first = p.Run();
      for (int i = 0; i < 3; ++i) {
        const Result again = p.Run();
        EXPECT_EQ(first.out, again.out);
        EXPECT_EQ(first.low, again.low);
        EXPECT_EQ(first.lse, again.lse);
      }
    }
  }
}

TEST(CudaForward, ConstantInputGivesValueExactly) {
  for (int64_t dim : {64, 128}) {
    Case c;
    c.dim = dim;
    Problem p(c, 1);
    std::fill(p.q.begin(), p.q.end(), ToStored(c.dtype, 1.0f));
    std::fill(p.k.begin(), p.k.end(), ToStored(c.dtype, 1.0f));
    std::fill(p.v.begin(), p.v.end(), ToStored(c.dtype, -2.296875f));
    const Result r = p.Run();
    for (uint16_t x : r.out) EXPECT_EQ(x, ToStored(c.dtype, -2.296875f));
  }
}

TEST(CudaForward, NanAndInfStayInTheirRows) {
  for (int64_t dim : {64, 128}) {
    for (int kind : {0, 1, 2}) {
      Case c;
      c.dim = dim;
      c.kind = kind;
      c.batch = 1;
      c.heads = c.kv_heads = 1;
      c.queries = c.keys = 300;
      c.right = 0;
      Problem p(c, 2);
      p.q[static_cast<size_t>(3 * dim + 5)] = ToStored(c.dtype, NAN);
      p.q[static_cast<size_t>(9 * dim + 1)] = ToStored(c.dtype, INFINITY);
      p.k[static_cast<size_t>(210 * dim + 7)] = ToStored(c.dtype, NAN);
      const Result r = p.Run();
      int64_t wrong = 0;
      for (int64_t t = 0; t < c.queries; ++t) {
        for (int64_t i = 0; i < dim; ++i) {
          const float x = FromStored(c.dtype, r.out[static_cast<size_t>(t * dim + i)]);
          wrong += std::isnan(x) != (t == 3 || t == 9 || t >= 210);
        }
      }
      EXPECT_EQ(wrong, 0);
      EXPECT_TRUE(std::isnan(r.lse[3]));
      EXPECT_TRUE(std::isnan(r.lse[210]));
    }
  }
}

TEST(CudaForward, OutputsThatNobodyWantsAndNoFlag) {
  for (int64_t dim : {64, 128}) {
    Case c;
    c.dim = dim;
    const Problem p(c, 6);
    const Device<uint16_t> q(p.q), k(p.k), v(p.v), out(p.q.size());
    auto a = p.Arguments();
    a.q.data = q.get(), a.k.data = k.get(), a.v.data = v.get(), a.out.data = out.get();
    ASSERT_EQ(trimtab_cuda_attention_forward(&a, nullptr), TRIMTAB_KERNEL_OK);
    Synchronize();
    EXPECT_EQ(out.Host(), p.Run().out);  // stabilized
  }
}

TEST(CudaForward, OneCapturedGraphFollowsTheFlag) {
  for (int64_t dim : {64, 128}) {
    for (int64_t rows : {70, 700}) {
      Case c;
      c.dim = dim;
      c.heads = 32;
      c.right = 0;
      c.queries = c.keys = rows;
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
      for (int32_t mode : {0, 2, 1, 0, 2}) {
        ASSERT_EQ(cudaMemcpy(kind.get(), &mode, sizeof mode, cudaMemcpyHostToDevice), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        Case same = c;
        same.kind = mode;
        EXPECT_EQ(out.Host(), Problem(same, 8).Run().out) << mode;
        results.push_back(out.Host());
      }
      EXPECT_NE(results[0], results[1]);
      EXPECT_EQ(results[0], results[3]);
      EXPECT_EQ(results[1], results[4]);
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
      cudaStreamDestroy(stream);
    }
  }
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
