#include "agent/torch/spectral_tracker.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trimtab::agent {
namespace {

// diag(1, 2, …, n) with the largest entry last.
struct Diagonal {
  explicit Diagonal(int64_t n) : n(n), data(n * n) {
    for (int64_t i = 0; i < n; ++i) data[i * n + i] = static_cast<float>(i + 1);
  }
  ProjectionView View() const { return {TRIMTAB_F32, data.data(), n, n, n, 1}; }
  SpectralTracker::Reader Reader() const {
    return [this](ProjectionView* view) {
      *view = View();
      return true;
    };
  }
  int64_t n;
  std::vector<float> data;
};

TEST(SpectralTrackerTest, VisitsRoundRobinAndReportsWhenAllWereTried) {
  Diagonal a(8);
  SpectralTracker tracker;
  std::string error;
  for (int layer = 0; layer < 3; ++layer) {
    auto reader = a.Reader();
    ASSERT_TRUE(tracker.Set(layer, "q", a.View(), 2, &reader, &error)) << error;
  }
  for (int visit = 0; visit < 3; ++visit) {
    EXPECT_FALSE(tracker.complete());
    EXPECT_EQ(tracker.Advance(0, nullptr, nullptr), 1);  // no time: one all the same
  }
  EXPECT_TRUE(tracker.complete());
  EXPECT_EQ(tracker.Advance(1e9, nullptr, nullptr), 3);  // all the time: each once
  for (int i = 0; i < 100; ++i) tracker.Advance(1e9, nullptr, nullptr);
  std::vector<float> sigma(3), residual(3), by_head(6);
  tracker.Read(SpectralTracker::kQ, sigma.data(), residual.data(), by_head.data(), 2);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_NEAR(sigma[layer], 8, 1e-3);
    EXPECT_NEAR(by_head[2 * layer], 4, 1e-3);
    EXPECT_NEAR(by_head[2 * layer + 1], 8, 1e-3);
  }
}

TEST(SpectralTrackerTest, AWeightThatCannotBeReadDoesNotHoldUpTheOthers) {
  Diagonal a(4);
  SpectralTracker tracker;
  std::string error;
  auto good = a.Reader();
  SpectralTracker::Reader bad = [](ProjectionView*) { return false; };
  ASSERT_TRUE(tracker.Set(0, "v", a.View(), 0, &good, &error));
  ASSERT_TRUE(tracker.Set(1, "v", a.View(), 0, &bad, &error));
  tracker.Advance(1e9, nullptr, nullptr);
  EXPECT_TRUE(tracker.complete());
  EXPECT_EQ(tracker.failures(), 1U);
  std::vector<float> sigma(2), residual(2);
  tracker.Read(SpectralTracker::kV, sigma.data(), residual.data(), nullptr, 0);
  EXPECT_GT(sigma[0], 0);
  EXPECT_EQ(sigma[1], 0);
}

TEST(SpectralTrackerTest, ReplacingGivesTheOldReaderBack) {
  Diagonal a(4), b(6);
  SpectralTracker tracker;
  std::string error;
  auto first = a.Reader(), second = b.Reader();
  ASSERT_TRUE(tracker.Set(0, "o", a.View(), 0, &first, &error));
  EXPECT_FALSE(first);
  ASSERT_TRUE(tracker.Set(0, "o", b.View(), 0, &second, &error));
  EXPECT_TRUE(second);
  ProjectionView view;
  second(&view);
  EXPECT_EQ(view.rows, 4);
  EXPECT_EQ(tracker.size(), 1U);
}

TEST(SpectralTrackerTest, RefusesBadArguments) {
  Diagonal a(4);
  SpectralTracker tracker;
  std::string error;
  auto reader = a.Reader();
  EXPECT_FALSE(tracker.Set(0, "qk", a.View(), 0, &reader, &error));
  EXPECT_FALSE(tracker.Set(TRIMTAB_MAX_LAYERS, "q", a.View(), 0, &reader, &error));
  EXPECT_FALSE(tracker.Set(0, "q", a.View(), 3, &reader, &error));
  EXPECT_NE(error.find("4 x 4"), std::string::npos);
  EXPECT_EQ(tracker.size(), 0U);
  EXPECT_FALSE(tracker.complete());
}

}  // namespace
}  // namespace trimtab::agent
