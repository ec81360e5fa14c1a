// Forward of all kinds against FP64, and the defined results of rows that have nothing, one key, NaN or Inf.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/kernels/problem.h"

namespace trimtab::testing {
namespace {

constexpr trimtab_attention_kind kKinds[] = {TRIMTAB_ATTENTION_STANDARD, TRIMTAB_ATTENTION_PAPER,
                                             TRIMTAB_ATTENTION_STABILIZED};

int64_t Between(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

Shape RandomShape(std::mt19937& random) {
  const int64_t kv_heads = Between(random, 1, 3), group = Between(random, 1, 3);
  return {Between(random, 1, 2),  kv_heads * group,      kv_heads, Between(random, 1, 130), Between(random, 1, 130),
          Between(random, 1, 96), Between(random, 1, 96)};
}

void ExpectMatches(const Problem& p, double tolerance) {
  const Reference reference = ComputeReference(p, false);
  EXPECT_LE(MaxError(p.out, reference.out), tolerance);
  EXPECT_LE(MaxError(p.lse, reference.lse), 2e-6);
}

TEST(Forward, RandomShapesStridesAndMasksAgreeWithFp64) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    Problem p(RandomShape(random), TRIMTAB_F32, &random);
    p.Fill(random);
    p.call.causal = static_cast<int32_t>(trial % 3);
    p.call.kind = kKinds[trial / 3 % 3];
    p.call.scale = trial % 5 == 0 ? 0.3f : 0.0f;
    if (trial % 4 == 1) p.SetBoolMask(random, 0.3);
    if (trial % 4 == 2) p.SetAdditiveMask(random, static_cast<trimtab_dtype>(trial % 3), 0.3);
    ASSERT_EQ(p.Forward(trial % 2 == 0), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
    SCOPED_TRACE(trial);
    ExpectMatches(p, 3e-6);
  }
}

TEST(Forward, SixteenBitTensorsStayWithinTheirRounding) {
  std::mt19937 random(2);
  for (const trimtab_dtype dtype : {TRIMTAB_BF16, TRIMTAB_F16}) {
    for (const auto kind : kKinds) {
      Problem p({2, 4, 2, 70, 90, 40, 24}, dtype, &random);
      p.Fill(random);
      p.call.kind = kind;
      p.call.causal = 2;
      ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
      ExpectMatches(p, dtype == TRIMTAB_BF16 ? 1e-2 : 1.5e-3);
      const Reference reference = ComputeReference(p, false);
      EXPECT_LE(NormError(p.out, reference.out), dtype == TRIMTAB_BF16 ? 4e-3 : 6e-4);
    }
  }
}

// P and V rounded to storage, sums exact: the FP64 restatement of the emulation itself.
TEST(Forward, EmulatedStorageRoundsWeightsValuesAndOutput) {
  std::mt19937 random(3);
  for (const trimtab_storage storage :
       {TRIMTAB_STORE_BF16, TRIMTAB_STORE_FP16, TRIMTAB_STORE_E4M3, TRIMTAB_STORE_E5M2}) {
    for (const auto kind : {TRIMTAB_ATTENTION_STANDARD, TRIMTAB_ATTENTION_STABILIZED}) {
      Problem p({1, 2, 1, 50, 60, 16, 8}, TRIMTAB_F32);
      p.Fill(random, 1.0, -1.0, 0.5);
      p.call.storage = storage;
      p.call.kind = kind;
      ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
      const double c = kind == TRIMTAB_ATTENTION_STABILIZED ? 25.0 / 32.0 : 1.0;
      std::vector<double> expected;
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t r = 0; r < 50; ++r) {
          double max = -INFINITY;
          for (int64_t j = 0; j < 60; ++j) max = std::max(max, p.Score(0, h, r, j));
          double exact_sum = 0.0, rounded_sum = 0.0;
          std::vector<double> out(8);
          for (int64_t j = 0; j < 60; ++j) {
            const double weight = c * std::exp(p.Score(0, h, r, j) - max);
            const double stored = trimtab_round(static_cast<float>(weight), storage);
            exact_sum += weight;
            rounded_sum += stored;
            for (int64_t i = 0; i < 8; ++i) {
              out[i] += stored * trimtab_round(static_cast<float>(p.v.Get(0, 0, j, i)), storage);
            }
          }
          for (const double o : out) {
            expected.push_back(o / (kind == TRIMTAB_ATTENTION_STABILIZED ? rounded_sum : exact_sum));
          }
        }
      }
      // The low half undoes the rounding of O; a weight within an FP32 ulp of a rounding boundary may go either way.
      size_t index = 0, off = 0;
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t r = 0; r < 50; ++r) {
          for (int64_t i = 0; i < 8; ++i, ++index) {
            const double stored = p.out.Get(0, h, r, i);
            EXPECT_EQ(stored, trimtab_round(static_cast<float>(stored), storage));
            off += std::fabs(stored + p.low.Get(0, h, r, i) - expected[index]) > 3e-6;
          }
        }
      }
      EXPECT_LE(off, index / 20) << "storage " << storage << " kind " << kind;
    }
  }
}

TEST(Forward, RowsWithoutKeysAreZeroWithTheAskedLse) {
  std::mt19937 random(4);
  for (const float empty : {0.0f, INFINITY, -INFINITY}) {
    for (const auto kind : kKinds) {
      Problem p({1, 2, 1, 20, 7, 8, 8}, TRIMTAB_F32, &random);  // bottom-right: rows 0..12 see nothing
      p.Fill(random);
      p.call.causal = 2;
      p.call.kind = kind;
      p.call.empty_lse = empty;
      ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t r = 0; r < 13; ++r) {
          EXPECT_EQ(p.lse.Get(0, h, r, 0), empty == 0.0f ? -INFINITY : empty);
          for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(p.out.Get(0, h, r, i), 0.0);
        }
        EXPECT_EQ(p.stats[h].empty_rows, 13u);
        EXPECT_EQ(p.stats[h].trivial_rows, 1u);
        EXPECT_EQ(p.stats[h].rows, 6u);
      }
    }
  }
}

TEST(Forward, NoKeysAtAll) {
  Problem p({1, 1, 1, 5, 0, 8, 8}, TRIMTAB_BF16);
  p.q.FillConstant(1.0);
  p.call.keys = 0;
  ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK) << trimtab_kernel_error();
  for (int64_t r = 0; r < 5; ++r) {
    EXPECT_EQ(p.lse.Get(0, 0, r, 0), -INFINITY);
    EXPECT_EQ(p.out.Get(0, 0, r, 3), 0.0);
  }
  EXPECT_EQ(p.stats[0].empty_rows, 5u);
}

TEST(Forward, FullyMaskedRowsInEitherMask) {
  std::mt19937 random(5);
  for (const bool additive : {false, true}) {
    Problem p({2, 2, 2, 11, 40, 16, 16}, TRIMTAB_F32, &random);
    p.Fill(random);
    if (additive) {
      p.SetAdditiveMask(random, TRIMTAB_F32, 0.5);
      for (int64_t j = 0; j < 40; ++j) p.additive_mask.Set(1, 0, 4, j, -INFINITY);
    } else {
      p.SetBoolMask(random, 0.5);
      for (int64_t j = 0; j < 40; ++j) p.bool_mask[((1 * 2 + 0) * 11 + 4) * 40 + j] = 0;
    }
    ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
    ExpectMatches(p, 3e-6);
    EXPECT_EQ(p.lse.Get(1, 0, 4, 0), -INFINITY);
    EXPECT_EQ(p.stats[0].empty_rows, 1u);
  }
}

TEST(Forward, LargeMaximaOfEitherSignLoseNothing) {
  std::mt19937 random(6);
  for (const auto kind : kKinds) {
    for (const double m : {-1e4, -3e3, -120.0, -24.0, -1.0, 0.0, 1.0, 24.0, 120.0, 3e3, 1e4}) {
      // Scores m + e with |e| < 3, exact in FP32 up to the product's own rounding.
      Problem p({1, 1, 1, 33, 65, 2, 8}, TRIMTAB_F32);
      p.Fill(random);
      p.call.kind = kind;
      p.call.scale = 1.0f;
      std::uniform_int_distribution<int> sixteenth(-48, 48);
      for (int64_t r = 0; r < 33; ++r) {
        p.q.Set(0, 0, r, 0, m);
        p.q.Set(0, 0, r, 1, 1.0);
      }
      for (int64_t j = 0; j < 65; ++j) {
        p.k.Set(0, 0, j, 0, 1.0);
        p.k.Set(0, 0, j, 1, sixteenth(random) / 16.0);
      }
      ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
      const Reference reference = ComputeReference(p, false);
      EXPECT_LE(MaxError(p.out, reference.out), 3e-6) << "kind " << kind << " m " << m;
      EXPECT_LE(MaxError(p.lse, reference.lse), 1e-6) << "kind " << kind << " m " << m;
    }
  }
}

TEST(Forward, NanAndInfReachOnlyTheRowsThatSeeThem) {
  for (const auto kind : kKinds) {
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      for (const char tensor : {'q', 'k', 'v'}) {
        std::mt19937 random(8);
        Problem p({1, 2, 2, 50, 50, 8, 24}, TRIMTAB_F32);
        p.Fill(random);
        p.call.causal = 1;
        p.call.kind = kind;
        StridedTensor& target = tensor == 'q' ? p.q : tensor == 'k' ? p.k : p.v;
        target.Set(0, 1, 30, 2, bad);
        ASSERT_EQ(p.Forward(true), TRIMTAB_KERNEL_OK);
        EXPECT_EQ(p.stats[0].nonfinite_scores, 0u);
        const uint64_t expected = tensor == 'q' ? 31u : tensor == 'k' ? 20u : 0u;
        EXPECT_EQ(p.stats[1].nonfinite_scores, expected);
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t r = 0; r < 50; ++r) {
            bool finite = true;
            for (int64_t i = 0; i < 24; ++i) finite = finite && std::isfinite(p.out.Get(0, h, r, i));
            const bool sees = h == 1 && (tensor == 'q' ? r == 30 : r >= 30);
            // An infinite key gives scores of -Inf to some rows, whose weight is then 0.
            if (tensor == 'k' && bad == INFINITY) {
              EXPECT_TRUE(finite || sees);
            } else {
              EXPECT_EQ(finite, !sees) << tensor << " row " << r << " kind " << kind;
            }
          }
        }
      }
    }
  }
}

TEST(Forward, InfinityInValuesKeepsItsSignWhereNothingOpposesIt) {
  Problem p({1, 1, 1, 2, 3, 1, 2}, TRIMTAB_F32);
  p.q.FillConstant(0.0);
  p.k.FillConstant(0.0);
  p.v.FillConstant(1.0);
  p.v.Set(0, 0, 1, 0, -INFINITY);
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  EXPECT_EQ(p.out.Get(0, 0, 0, 0), -INFINITY);
  EXPECT_EQ(p.out.Get(0, 0, 0, 1), 1.0);
}

TEST(Forward, LongRowsSpanManyTiles) {
  std::mt19937 random(9);
  Problem p({1, 1, 1, 5, 5000, 8, 17}, TRIMTAB_F32);
  p.Fill(random);
  p.call.causal = 2;
  ASSERT_EQ(p.Forward(), TRIMTAB_KERNEL_OK);
  ExpectMatches(p, 3e-6);
}

}  // namespace
}  // namespace trimtab::testing
