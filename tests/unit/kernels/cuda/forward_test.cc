// The CUDA forward against FP64: shapes, layouts, masks, kinds, extremes.
#include <algorithm>

#include "forward_problem.h"
#include "kernels/cuda/forward_sm90.h"

namespace trimtab {
namespace {

// A whole number from low to high.
struct Picker {
  std::mt19937* random;
  int64_t operator()(int64_t low, int64_t high) const {
    return std::uniform_int_distribution<int64_t>(low, high)(*random);
  }
};

// Up to two batches, two key heads and three query heads for each, of either dtype.
Case RandomHeads(int64_t dim, const Picker& pick) {
  Case c;
  c.dtype = pick(0, 1) ? TRIMTAB_BF16 : TRIMTAB_F16;
  c.dim = dim;
  c.batch = pick(1, 2);
  c.kv_heads = pick(1, 2);
  c.heads = c.kv_heads * pick(1, 3);
  return c;
}

TEST(CudaForward, RandomShapesMasksAndLayoutsOfEveryHeadSize) {
  std::mt19937 random(7);
  const Picker pick{&random};
  for (int64_t dim : {64, 96, 128, 192, 256}) {
    for (int i = 0; i < 12; ++i) {
      Case c = RandomHeads(dim, pick);
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
  const Picker pick{&random};
  for (int64_t dim : {64, 128}) {
    for (int i = 0; i < 36; ++i) {
      Case c = RandomHeads(dim, pick);
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
