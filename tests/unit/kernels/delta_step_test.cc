// The delta-preserving step, alone and in the chain forward -> step -> backward on the data of numerics.md section 4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/unit/kernels/problem.h"

namespace trimtab::testing {
namespace {

struct Residuals {
  double before = 0.0, after = 0.0;  // sum of squares over rows of rowsum(dO * (O - exact O))
};

Residuals StepResiduals(Problem& p) {
  const auto& c = p.call;
  const StridedTensor before = p.out;
  EXPECT_EQ(p.DeltaStep(), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
  Residuals result;
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t r = 0; r < c.queries; ++r) {
      double low = 0.0, left = 0.0;
      for (int64_t i = 0; i < c.value_dim; ++i) {
        const double grad = p.grad_out.Get(0, h, r, i), exact = before.Get(0, h, r, i) + p.low.Get(0, h, r, i);
        low += grad * (before.Get(0, h, r, i) - exact);
        left += grad * (p.out.Get(0, h, r, i) - exact);
      }
      result.before += low * low;
      result.after += left * left;
    }
  }
  return result;
}

TEST(DeltaStep, RemovesNearlyAllOfTheResidualInEveryFormat) {
  for (const trimtab_storage storage :
       {TRIMTAB_STORE_BF16, TRIMTAB_STORE_FP16, TRIMTAB_STORE_E4M3, TRIMTAB_STORE_E5M2}) {
    std::mt19937 random(41);
    Problem p({1, 2, 2, 300, 300, 32, 64}, TRIMTAB_F32, &random);
    p.Fill(random, 1.0, -2.0, 0.2, -1.0, 0.3);
    p.call.storage = storage;
    p.call.kind = TRIMTAB_ATTENTION_STABILIZED;
    p.call.causal = 1;
    ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
    const Residuals residuals = StepResiduals(p);
    // What is left is about half the smallest step |dO| * ulp(O) of a row, 3 % here.
    EXPECT_LT(std::sqrt(residuals.after), 5e-2 * std::sqrt(residuals.before)) << storage;
  }
}

TEST(DeltaStep, ResultIsRepresentableAndWithinAFewUlps) {
  for (const trimtab_dtype dtype : {TRIMTAB_F32, TRIMTAB_BF16, TRIMTAB_F16}) {
    std::mt19937 random(42);
    Problem p({1, 1, 1, 200, 100, 16, 24}, dtype);
    p.Fill(random);
    p.call.storage = dtype == TRIMTAB_F32 ? TRIMTAB_STORE_E4M3 : TRIMTAB_STORE_SAME;
    p.call.kind = TRIMTAB_ATTENTION_STABILIZED;
    ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
    const StridedTensor before = p.out;
    ASSERT_EQ(p.DeltaStep(), TRIMTAB_KERNEL_OK);
    const int bits = dtype == TRIMTAB_F32 ? 3 : dtype == TRIMTAB_BF16 ? 7 : 10;
    int64_t moved = 0;
    for (int64_t r = 0; r < 200; ++r) {
      for (int64_t i = 0; i < 24; ++i) {
        const double o = p.out.Get(0, 0, r, i), was = before.Get(0, 0, r, i);
        EXPECT_EQ(o, trimtab_round(static_cast<float>(o), p.storage()));
        // Four ulps, and one more where the binade above has a coarser grid.
        const int unit = std::max(std::ilogb(was) - bits, dtype == TRIMTAB_F16 ? -24 : -149);
        EXPECT_LE(std::fabs(o - was), 5.0 * std::ldexp(1.0, unit));
        moved += o != was;
      }
    }
    EXPECT_GT(moved, 200);
    EXPECT_LT(moved, 200 * 16);
  }
}

// One row by the definition: the largest unvisited |dO| * ulp(O) of at most 4/3, later 2, times the residual moves to
// round(O + r / dO), at most four ulps away. Returns the number of moves.
int DefinedStep(const std::vector<double>& grad, double residual, std::vector<double>* o) {
  std::vector<double> ulp, step;
  for (size_t i = 0; i < grad.size(); ++i) {
    ulp.push_back(std::ldexp(1.0, std::ilogb((*o)[i]) - 7));
    step.push_back(std::fabs(grad[i]) * ulp[i]);
  }
  int moves = 0;
  for (const double bound : {4.0 / 3.0, 2.0}) {
    while (true) {
      size_t best = grad.size();
      for (size_t i = 0; i < grad.size(); ++i) {
        if (step[i] > 0.0 && step[i] <= bound * std::fabs(residual) && (best == grad.size() || step[i] > step[best])) {
          best = i;
        }
      }
      if (best == grad.size()) break;
      step[best] = 0.0;
      const double wanted = std::clamp(residual / grad[best], -4.0 * ulp[best], 4.0 * ulp[best]);
      const double target = trimtab_round(static_cast<float>((*o)[best] + wanted), TRIMTAB_STORE_BF16);
      residual -= grad[best] * (target - (*o)[best]);
      moves += target != (*o)[best];
      (*o)[best] = target;
    }
  }
  return moves;
}

TEST(DeltaStep, EqualsItsDefinitionAndMovesFewEntries) {
  std::mt19937 random(43);
  Problem p({1, 1, 1, 400, 50, 8, 64}, TRIMTAB_F32);
  p.Fill(random);
  p.call.storage = TRIMTAB_STORE_BF16;
  p.call.kind = TRIMTAB_ATTENTION_STABILIZED;
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  const StridedTensor before = p.out;
  ASSERT_EQ(p.DeltaStep(), TRIMTAB_KERNEL_OK);
  int moves = 0;
  for (int64_t r = 0; r < 400; ++r) {
    std::vector<double> o, grad;
    double residual = 0.0;
    for (int64_t i = 0; i < 64; ++i) {
      o.push_back(before.Get(0, 0, r, i));
      grad.push_back(p.grad_out.Get(0, 0, r, i));
      residual += grad[i] * p.low.Get(0, 0, r, i);
    }
    moves += DefinedStep(grad, residual, &o);
    for (int64_t i = 0; i < 64; ++i) ASSERT_EQ(o[i], p.out.Get(0, 0, r, i)) << "row " << r << " entry " << i;
  }
  EXPECT_LT(moves, 400 * 10);
}

TEST(DeltaStep, MaxEntriesBoundsTheMoves) {
  std::mt19937 random(44);
  for (const int32_t limit : {1, 2, 3}) {
    Problem p({1, 1, 1, 100, 40, 8, 64}, TRIMTAB_BF16);
    p.Fill(random);
    p.call.kind = TRIMTAB_ATTENTION_STABILIZED;
    ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
    const StridedTensor before = p.out;
    trimtab_delta_preserve d{};
    d.struct_size = sizeof d;
    d.dtype = TRIMTAB_BF16;
    d.batch = d.heads = 1;
    d.rows = 100;
    d.columns = 64;
    d.out = before.view();
    d.out_low = p.low.view();
    d.grad_out = p.grad_out.view();
    d.result = p.out.mutable_view();
    d.max_entries = limit;
    ASSERT_EQ(trimtab_delta_preserving_step(&d), TRIMTAB_KERNEL_OK);
    int most = 0;
    for (int64_t r = 0; r < 100; ++r) {
      int moved = 0;
      for (int64_t i = 0; i < 64; ++i) moved += p.out.Get(0, 0, r, i) != before.Get(0, 0, r, i);
      most = std::max(most, moved);
    }
    EXPECT_EQ(most, limit);
  }
}

TEST(DeltaStep, LeavesRowsAloneThatItCannotHelp) {
  Problem p({1, 1, 1, 4, 1, 1, 8}, TRIMTAB_F32);
  p.call.storage = TRIMTAB_STORE_BF16;
  p.out.FillConstant(1.5);
  p.low.FillConstant(0.001);
  p.grad_out.FillConstant(1.0);
  for (int64_t i = 0; i < 8; ++i) {
    p.grad_out.Set(0, 0, 0, i, 0.0);  // no gradient
    p.low.Set(0, 0, 1, i, 0.0);       // nothing lost
  }
  p.grad_out.Set(0, 0, 2, 3, NAN);
  p.out.Set(0, 0, 3, 0, INFINITY);  // an infinite entry stays, the others still move
  ASSERT_EQ(p.DeltaStep(), TRIMTAB_KERNEL_OK);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(p.out.Get(0, 0, r, i), 1.5);
  }
  EXPECT_EQ(p.out.Get(0, 0, 3, 0), INFINITY);
  double sum = 0.0;
  for (int64_t i = 1; i < 8; ++i) sum += p.out.Get(0, 0, 3, i) - 1.5;
  EXPECT_NEAR(sum, 0.008, 0.0040);
}

struct GradErrors {
  double delta_rms, delta_bias, grad_q, grad_k;
};

GradErrors MeasureChain(trimtab_attention_kind kind, double v_mean, double v_deviation, double grad_mean,
                        double grad_deviation) {
  std::mt19937 random(45);
  Problem p({1, 2, 2, 512, 512, 64, 64}, TRIMTAB_BF16);
  p.Fill(random, 1.0, v_mean, v_deviation, grad_mean, grad_deviation);
  p.call.kind = kind;
  p.call.causal = 1;
  EXPECT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  if (kind == TRIMTAB_ATTENTION_STABILIZED) {
    EXPECT_EQ(p.DeltaStep(), TRIMTAB_KERNEL_OK);
  }
  EXPECT_EQ(p.Backward(), TRIMTAB_KERNEL_OK);
  const Reference reference = ComputeReference(p, true);
  GradErrors errors{0.0, 0.0, NormError(p.grad_q, reference.grad_q), NormError(p.grad_k, reference.grad_k)};
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t r = 0; r < 512; ++r) {
      double g = 0.0;
      for (int64_t i = 0; i < 64; ++i) {
        g += p.grad_out.Get(0, h, r, i) * (p.out.Get(0, h, r, i) - reference.out[(h * 512 + r) * 64 + i]);
      }
      errors.delta_rms += g * g / 1024;
      errors.delta_bias += g / 1024;
    }
  }
  errors.delta_rms = std::sqrt(errors.delta_rms);
  return errors;
}

// Golden numbers of numerics.md section 4: S = 512, D = 64, causal, BF16. Native: delta error 3.2e-2 rms, dQ 4.3e-2,
// dK 2.5e-2; delta-preserving: 9.7e-4, 2.6e-3, 2.1e-3.
TEST(DeltaStep, BiasedDataGetsGradientsAtLeastEightTimesNearer) {
  const GradErrors native = MeasureChain(TRIMTAB_ATTENTION_STANDARD, -2.0, 0.2, -1.0, 0.3);
  const GradErrors kept = MeasureChain(TRIMTAB_ATTENTION_STABILIZED, -2.0, 0.2, -1.0, 0.3);
  for (const GradErrors& e : {native, kept}) {
    std::printf("delta error rms %.2e, bias %.2e; dQ error %.2e, dK error %.2e\n", e.delta_rms, e.delta_bias, e.grad_q,
                e.grad_k);
  }
  EXPECT_NEAR(native.delta_rms, 3.2e-2, 1e-2);
  EXPECT_NEAR(native.grad_q, 4.3e-2, 1.5e-2);
  EXPECT_NEAR(native.grad_k, 2.5e-2, 1e-2);
  EXPECT_LT(kept.delta_rms, 2e-3);
  EXPECT_LT(std::fabs(kept.delta_bias), 2e-4);
  EXPECT_LT(kept.grad_q, 3.5e-3);
  EXPECT_LT(kept.grad_k, 3.5e-3);
  EXPECT_LT(kept.grad_q, native.grad_q / 8);
  EXPECT_LT(kept.grad_k, native.grad_k / 8);
  EXPECT_LT(kept.delta_rms, native.delta_rms / 15);
}

TEST(DeltaStep, RandomDataIsNeverWorse) {
  const GradErrors native = MeasureChain(TRIMTAB_ATTENTION_STANDARD, 0.0, 1.0, 0.0, 1.0);
  const GradErrors kept = MeasureChain(TRIMTAB_ATTENTION_STABILIZED, 0.0, 1.0, 0.0, 1.0);
  EXPECT_LE(kept.grad_q, native.grad_q);
  EXPECT_LE(kept.grad_k, native.grad_k);
  EXPECT_LE(kept.delta_rms, native.delta_rms);
}

}  // namespace
}  // namespace trimtab::testing
