// Time and arithmetic rate of the CPU kernels on one thread. Shapes: the tiny model of the example job, and two layers
// of an ordinary size. Rates count the multiply-adds that the visible scores need, two operations each.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "trimtab/kernels.h"

namespace {

struct Buffers {
  trimtab_attention call{};
  std::vector<float> q, k, v, out, low, grad_out, grad_q, grad_k, grad_v, lse;
  std::vector<trimtab_head_stats> stats;

  Buffers(int64_t batch, int64_t heads, int64_t length, int64_t dim) : lse(batch * heads * length), stats(heads) {
    call.struct_size = sizeof call;
    call.batch = batch;
    call.heads = call.kv_heads = heads;
    call.queries = call.keys = length;
    call.head_dim = call.value_dim = dim;
    call.causal = 1;
    call.kind = TRIMTAB_ATTENTION_STABILIZED;
    call.storage = TRIMTAB_STORE_BF16;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto* x : {&q, &k, &v, &out, &low, &grad_out, &grad_q, &grad_k, &grad_v}) {
      x->resize(batch * heads * length * dim);
      for (float& value : *x) value = normal(random);
    }
    call.q = In(q);
    call.k = In(k);
    call.v = In(v);
    call.out = Out(out);
    call.out_low = Out(low);
    call.lse = {lse.data(), {heads * length, length, 1, 0}};
    trimtab_head_stats_reset(stats.data(), heads);
    trimtab_attention_forward(&call);
  }

  trimtab_tensor In(const std::vector<float>& x) const {
    const int64_t row = call.head_dim, head = row * call.queries;
    return {x.data(), {head * call.heads, head, row, 1}};
  }
  trimtab_mutable_tensor Out(std::vector<float>& x) const {
    const int64_t row = call.head_dim, head = row * call.queries;
    return {x.data(), {head * call.heads, head, row, 1}};
  }
  // Operations of one matrix product over the visible scores.
  double ProductFlops() const {
    const auto n = static_cast<double>(call.queries);
    return 2.0 * static_cast<double>(call.batch * call.heads * call.head_dim) * n * (n + 1) / 2;
  }
};

void Rate(benchmark::State& state, double flops) {
  state.counters["FLOP/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void Check(benchmark::State& state, trimtab_kernel_status status) {
  if (status != TRIMTAB_KERNEL_OK) state.SkipWithError(trimtab_kernel_error());
}

void Shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"batch", "heads", "length", "dim"});
  b->Args({16, 4, 64, 8})->Args({4, 8, 512, 64})->Args({1, 8, 1024, 128})->Unit(benchmark::kMillisecond);
}

Buffers MakeBuffers(const benchmark::State& state) {
  return {state.range(0), state.range(1), state.range(2), state.range(3)};
}

void Forward(benchmark::State& state, trimtab_attention_kind kind) {
  Buffers b = MakeBuffers(state);
  b.call.kind = kind;
  for (auto _ : state) Check(state, trimtab_attention_forward(&b.call));
  Rate(state, 2 * b.ProductFlops());
}
BENCHMARK_CAPTURE(Forward, standard, TRIMTAB_ATTENTION_STANDARD)->Apply(Shapes);
BENCHMARK_CAPTURE(Forward, paper, TRIMTAB_ATTENTION_PAPER)->Apply(Shapes);
BENCHMARK_CAPTURE(Forward, stabilized, TRIMTAB_ATTENTION_STABILIZED)->Apply(Shapes);

void ForwardWithStats(benchmark::State& state) {
  Buffers b = MakeBuffers(state);
  b.call.stats = b.stats.data();
  for (auto _ : state) Check(state, trimtab_attention_forward(&b.call));
  Rate(state, 2 * b.ProductFlops());
}
BENCHMARK(ForwardWithStats)->Apply(Shapes);

void Backward(benchmark::State& state) {
  Buffers b = MakeBuffers(state);
  trimtab_attention_grad g{};
  g.forward = b.call;
  g.grad_out = b.In(b.grad_out);
  g.grad_q = b.Out(b.grad_q);
  g.grad_k = b.Out(b.grad_k);
  g.grad_v = b.Out(b.grad_v);
  for (auto _ : state) Check(state, trimtab_attention_backward(&g));
  Rate(state, 5 * b.ProductFlops());
}
BENCHMARK(Backward)->Apply(Shapes);

void DeltaStep(benchmark::State& state) {
  Buffers b = MakeBuffers(state);
  std::vector<float> result(b.out.size());
  trimtab_delta_preserve d{};
  d.struct_size = sizeof d;
  d.storage = b.call.storage;
  d.batch = b.call.batch;
  d.heads = b.call.heads;
  d.rows = b.call.queries;
  d.columns = b.call.value_dim;
  d.out = b.In(b.out);
  d.out_low = b.In(b.low);
  d.grad_out = b.In(b.grad_out);
  d.result = b.Out(result);
  for (auto _ : state) Check(state, trimtab_delta_preserving_step(&d));
  state.counters["rows/s"] = benchmark::Counter(static_cast<double>(d.batch * d.heads * d.rows),
                                                benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(DeltaStep)->Apply(Shapes);

// 64 rows of one batch entry of every head, with O and dO: one sampled layer of an observed step.
void Probe(benchmark::State& state) {
  Buffers b = MakeBuffers(state);
  trimtab_probe p{};
  p.attention = b.call;
  p.attention.stats = b.stats.data();
  p.out = b.In(b.out);
  p.grad_out = b.In(b.grad_out);
  p.row_step = b.call.queries / 64;
  p.batch_step = b.call.batch;
  for (auto _ : state) Check(state, trimtab_attention_probe(&p));
}
BENCHMARK(Probe)->Apply(Shapes);

void SpectralNorm(benchmark::State& state) {
  const int64_t n = state.range(0);
  std::vector<float> w(n * n, 0.5f), vector(n), sigma(1);
  trimtab_spectral s{};
  s.struct_size = sizeof s;
  s.data = w.data();
  s.rows = s.columns = s.row_stride = n;
  s.column_stride = s.slices = 1;
  s.vector = vector.data();
  s.sigma = sigma.data();
  for (auto _ : state) Check(state, trimtab_spectral_norm(&s));
  state.SetBytesProcessed(state.iterations() * n * n * static_cast<int64_t>(sizeof(float)));
}
BENCHMARK(SpectralNorm)->Arg(256)->Arg(1024)->Arg(4096)->Unit(benchmark::kMicrosecond);

void Activation(benchmark::State& state) {
  const int64_t n = state.range(0);
  std::vector<float> x(n, 1.5f);
  trimtab_activation_stats stats{};
  for (auto _ : state) Check(state, trimtab_activation(TRIMTAB_F32, x.data(), n, 100.0f, &stats));
  state.SetBytesProcessed(state.iterations() * n * static_cast<int64_t>(sizeof(float)));
}
BENCHMARK(Activation)->Arg(1 << 16)->Arg(1 << 22)->Unit(benchmark::kMicrosecond);

}  // namespace
