// Results do not depend on how work is split over threads, repeat bit for bit, and agree between instruction sets; and
// a warm thread allocates nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "kernels/cpu/instance.h"
#include "tests/unit/kernels/problem.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// The library allocates through this one operator only.
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto align = static_cast<size_t>(alignment);
  return std::aligned_alloc(align, (size + align - 1) / align * align);
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }

namespace trimtab::testing {
namespace {

using Body = void (*)(void* arg, int64_t begin, int64_t end);

// Splits into `threads` uneven chunks, run concurrently.
struct Pool {
  int threads;
  static void Run(void* context, int64_t n, int64_t grain, Body body, void* arg) {
    const auto* pool = static_cast<const Pool*>(context);
    EXPECT_GE(grain, 1);
    std::vector<std::thread> workers;
    int64_t begin = 0;
    for (int t = 0; t < pool->threads && begin < n; ++t) {
      const int64_t end = t + 1 == pool->threads ? n : std::min(n, begin + 1 + (n - begin) * (t + 1) / 7);
      workers.emplace_back(body, arg, begin, end);
      begin = end;
    }
    for (auto& worker : workers) worker.join();
  }
};

struct Outcome {
  std::vector<uint8_t> bytes;
  void Add(const void* data, size_t size) {
    const auto* p = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), p, p + size);
  }
};

Outcome RunAll(Pool* pool) {
  std::mt19937 random(71);
  Problem p({3, 4, 2, 150, 170, 24, 40}, TRIMTAB_F32);
  p.Fill(random);
  p.call.kind = TRIMTAB_ATTENTION_STABILIZED;
  p.call.storage = TRIMTAB_STORE_BF16;
  p.call.causal = 2;
  if (pool != nullptr) {
    p.call.parallel_for = Pool::Run;
    p.call.parallel_context = pool;
  }
  EXPECT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(p.Probe(1, 3, true), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(p.DeltaStep(), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(p.Backward(true), TRIMTAB_KERNEL_OK);
  Outcome outcome;
  for (const StridedTensor* t : {&p.out, &p.low, &p.lse, &p.grad_q, &p.grad_k, &p.grad_v}) {
    outcome.Add(t->bytes().data(), t->bytes().size());
  }
  outcome.Add(p.stats.data(), p.stats.size() * sizeof(p.stats[0]));
  return outcome;
}

TEST(Split, BitsDoNotDependOnThreads) {
  const Outcome alone = RunAll(nullptr);
  EXPECT_EQ(RunAll(nullptr).bytes, alone.bytes);
  for (int threads : {1, 2, 3, 5, 12}) {
    Pool pool{threads};
    EXPECT_EQ(RunAll(&pool).bytes, alone.bytes) << threads;
  }
}

TEST(Split, SpectralSlicesDoNotDependOnThreads) {
  std::mt19937 random(72);
  StridedTensor w(TRIMTAB_F32, {1, 1, 512, 512});
  w.FillNormal(random, 0.0, 1.0);
  std::vector<std::vector<float>> results;
  for (const int threads : {0, 3}) {
    Pool pool{threads};
    std::vector<float> vector(8 * 512), sigma(8);
    trimtab_spectral s{sizeof s, TRIMTAB_F32, w.view().data, 512,          512,     512,     1,
                       8,        5,           vector.data(), sigma.data(), nullptr, nullptr, nullptr};
    if (threads > 0) {
      s.parallel_for = Pool::Run;
      s.parallel_context = &pool;
    }
    ASSERT_EQ(trimtab_spectral_norm(&s), TRIMTAB_KERNEL_OK);
    vector.insert(vector.end(), sigma.begin(), sigma.end());
    results.push_back(vector);
  }
  EXPECT_EQ(results[0], results[1]);
}

// A row's result is its own: computed alone or in a longer call, its bits are the same.
TEST(Split, BitsDoNotDependOnOtherRows) {
  std::mt19937 random(73);
  Problem all({1, 1, 1, 100, 90, 24, 24}, TRIMTAB_F32), one({1, 1, 1, 1, 90, 24, 24}, TRIMTAB_F32);
  all.Fill(random);
  one.k = all.k;
  one.v = all.v;
  ASSERT_EQ(all.Forward(), TRIMTAB_KERNEL_OK);
  for (int64_t r = 0; r < 100; ++r) {
    for (int64_t i = 0; i < 24; ++i) one.q.Set(0, 0, 0, i, all.q.Get(0, 0, r, i));
    ASSERT_EQ(one.Forward(), TRIMTAB_KERNEL_OK);
    for (int64_t i = 0; i < 24; ++i) ASSERT_EQ(one.out.Get(0, 0, 0, i), all.out.Get(0, 0, r, i));
    ASSERT_EQ(one.lse.Get(0, 0, 0, 0), all.lse.Get(0, 0, r, 0));
  }
}

TEST(Split, WarmCallsDoNotAllocate) {
  std::mt19937 random(74);
  Problem p({2, 4, 2, 64, 64, 8, 8}, TRIMTAB_BF16);
  p.Fill(random);
  p.SetAdditiveMask(random, TRIMTAB_F32, 0.1);
  p.call.causal = 1;
  p.call.kind = TRIMTAB_ATTENTION_STABILIZED;
  std::vector<float> vector(64), sigma(1);
  StridedTensor w(TRIMTAB_BF16, {1, 1, 64, 64});
  w.FillConstant(1.0);
  trimtab_activation_stats activation{};
  const auto run = [&] {
    ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
    ASSERT_EQ(p.Probe(0, 5, true), TRIMTAB_KERNEL_OK);
    ASSERT_EQ(p.DeltaStep(), TRIMTAB_KERNEL_OK);
    ASSERT_EQ(p.Backward(true), TRIMTAB_KERNEL_OK);
    trimtab_spectral s{sizeof s, TRIMTAB_BF16,  w.view().data, 64,      64,      64,     1, 1,
                       2,        vector.data(), sigma.data(),  nullptr, nullptr, nullptr};
    ASSERT_EQ(trimtab_spectral_norm(&s), TRIMTAB_KERNEL_OK);
    ASSERT_EQ(trimtab_activation(TRIMTAB_BF16, w.view().data, 64 * 64, 1.0f, &activation), TRIMTAB_KERNEL_OK);
  };
  std::thread([&] {
    run();
    const int64_t warm = allocations.load();
    EXPECT_GT(warm, 0);
    for (int i = 0; i < 20; ++i) run();
    p.call.queries = 40;  // smaller shapes fit into what is there
    p.call.causal = 0;
    run();
    EXPECT_EQ(allocations.load(), warm);
  }).join();
}

TEST(Split, InstructionSetsAgreeWithinRounding) {
  std::mt19937 random(75);
  Problem p({1, 2, 1, 61, 83, 19, 33}, TRIMTAB_F32, &random);
  p.Fill(random);
  p.call.causal = 2;
  const Reference reference = ComputeReference(p, true);
  std::vector<const cpu::Instance*> instances = {&cpu::kBaseInstance};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) instances.push_back(&cpu::kAvx2Instance);
#endif
  for (const auto* instance : instances) {
    cpu::UseInstanceForTest(instance);
    trimtab_head_stats_reset(p.stats.data(), 2);
    ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
    ASSERT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
    EXPECT_LE(MaxError(p.out, reference.out), 3e-6) << instance->name;
    EXPECT_LE(NormError(p.grad_q, reference.grad_q), 2e-6) << instance->name;
    EXPECT_LE(NormError(p.grad_k, reference.grad_k), 2e-6) << instance->name;
    EXPECT_LE(NormError(p.grad_v, reference.grad_v), 2e-6) << instance->name;
    EXPECT_EQ(p.stats[0].p_one_count, ReferenceStats(p)[0].p_one_count) << instance->name;
  }
  cpu::UseInstanceForTest(nullptr);
}

}  // namespace
}  // namespace trimtab::testing
