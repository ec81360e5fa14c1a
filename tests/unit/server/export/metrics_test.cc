#include "server/export/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"

namespace trimtab::server {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class MetricsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = Store::Open({.path = folder_.path()});
    ASSERT_THAT(opened, IsOk());
    store_ = *std::move(opened);
    registry_ = Registry::Create({}, store_.get());
  }
  void Start(MetricsOptions options = {}) {
    options.version = "1.2.3";
    options.ingest = [this] { return ingest_; };
    exporter_ = MetricsExporter::Create(registry_.get(), store_.get(), std::move(options));
    store_->AddEventListener(exporter_.get());
  }
  void Run(const std::string& run, uint32_t layers, uint32_t heads, uint32_t world = 1) {
    for (uint32_t rank = 0; rank < world; ++rank) {
      registry_->OnRankJoined({run, rank, 1}, Info(run, rank, world), TestMetrics());
      v1::Step step = LossStep(1, 7, static_cast<float>(1 + rank));
      v1::Block logits = Floats(kMaxLogit, {layers, heads}, {}),
                shares = Floats(kRepeatedMaxShare, {layers, heads}, {});
      v1::Block modes = Counts(kMode, {layers}, {}), sigma = Floats(kSpectralNormQ, {layers}, {});
      for (uint32_t i = 0; i < layers * heads; ++i) {
        logits.add_float32(static_cast<float>(i + 100 * rank));
        shares.add_float32(static_cast<float>(i % heads) / 10);
      }
      for (uint32_t i = 0; i < layers; ++i) {
        modes.add_uint64(i == 0 ? 3 : 2);
        sigma.add_float32(static_cast<float>(i) + 0.5F);
      }
      for (const v1::Block& block : {logits, shares, modes, sigma}) *step.add_blocks() = block;
      const v1::Step* const one = &step;
      registry_->OnSteps({run, rank, 1}, {&one, 1});
    }
  }
  // "name{labels}" → value
  std::map<std::string, double> Scrape() {
    text_ = exporter_->Render();
    std::map<std::string, double> series;
    for (const absl::string_view line : absl::StrSplit(text_, '\n', absl::SkipEmpty())) {
      if (line[0] == '#') continue;
      const size_t space = line.rfind(' ');
      const std::string value(line.substr(space + 1));
      double number = std::nan("");
      EXPECT_TRUE(value == "Nan" || absl::SimpleAtod(value, &number)) << line;
      EXPECT_TRUE(series.emplace(line.substr(0, space), number).second) << "twice: " << line;
    }
    return series;
  }

  TempDir folder_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Registry> registry_;
  IngestStatistics ingest_;
  std::unique_ptr<MetricsExporter> exporter_;
  std::string text_;
};

TEST_F(MetricsTest, ARunsSeries) {
  Start();
  Run("r", 2, 2, 2);
  const auto s = Scrape();
  EXPECT_THAT(s, Contains(Pair("trimtab_loss{run=\"r\"}", 1.5)));
  EXPECT_THAT(s, Contains(Pair("trimtab_max_attention_logit{run=\"r\",layer=\"0\"}", 101)));
  EXPECT_THAT(s, Contains(Pair("trimtab_max_attention_logit{run=\"r\",layer=\"1\"}", 103)));
  EXPECT_NEAR(s.at("trimtab_repeated_max_share{run=\"r\",layer=\"1\"}"), 0.05, 1e-6);
  EXPECT_THAT(s, Contains(Pair("trimtab_spectral_norm{run=\"r\",layer=\"1\",matrix=\"q\"}", 1.5)));
  EXPECT_THAT(s, Contains(Pair("trimtab_attention_mode{run=\"r\",layer=\"0\",mode=\"stabilized\"}", 1)));
  EXPECT_THAT(s, Contains(Pair("trimtab_attention_mode{run=\"r\",layer=\"1\",mode=\"observe\"}", 1)));
  EXPECT_THAT(s, Not(Contains(Key("trimtab_attention_mode{run=\"r\",layer=\"0\",mode=\"observe\"}"))));
  EXPECT_THAT(s, Contains(Pair("trimtab_ranks_connected{run=\"r\"}", 2)));
  EXPECT_THAT(s, Contains(Pair("trimtab_world_size{run=\"r\"}", 2)));
  EXPECT_THAT(s, Contains(Pair("trimtab_last_step{run=\"r\"}", 7)));
  EXPECT_THAT(s, Contains(Pair("trimtab_steps_total{run=\"r\"}", 1)));
  EXPECT_THAT(s, Contains(Pair("trimtab_switches_total{run=\"r\",result=\"refused\"}", 0)));
  EXPECT_THAT(s, Contains(Pair("trimtab_nonfinite_total{run=\"r\",signal=\"loss\"}", 0)));
  EXPECT_LT(s.at("trimtab_last_sample_age_seconds{run=\"r\"}"), 60);
  EXPECT_THAT(s, Contains(Pair("trimtab_build_info{version=\"1.2.3\"}", 1)));
  EXPECT_THAT(text_, Not(HasSubstr("step=\""))) << "a step is never a label";
}

TEST_F(MetricsTest, TheTopHeadsOfARun) {
  Start();
  Run("r", 3, 5);
  const auto s = Scrape();
  size_t heads = 0;
  for (const auto& [name, value] : s) heads += absl::StartsWith(name, "trimtab_max_attention_logit_head{");
  EXPECT_EQ(heads, 8);
  EXPECT_THAT(s, Contains(Pair("trimtab_max_attention_logit_head{run=\"r\",layer=\"2\",head=\"4\"}", 14)));
  EXPECT_THAT(s, Contains(Pair("trimtab_max_attention_logit_head{run=\"r\",layer=\"1\",head=\"2\"}", 7)));
  EXPECT_THAT(s, Not(Contains(Key("trimtab_max_attention_logit_head{run=\"r\",layer=\"1\",head=\"1\"}"))));
}

TEST_F(MetricsTest, NonFiniteValues) {
  Start();
  registry_->OnRankJoined({"r", 0, 1}, Info("r"), TestMetrics());
  v1::Step step = LossStep(1, 1, NAN);
  *step.add_blocks() = Scalar(kGradNorm, INFINITY);
  *step.add_blocks() = Floats(kMaxLogit, {2, 2}, {NAN, NAN, NAN, INFINITY});
  const v1::Step* const one = &step;
  registry_->OnSteps({"r", 0, 1}, {&one, 1});
  const auto s = Scrape();
  EXPECT_TRUE(std::isnan(s.at("trimtab_loss{run=\"r\"}")));
  EXPECT_EQ(s.at("trimtab_grad_norm{run=\"r\"}"), INFINITY);
  EXPECT_EQ(s.at("trimtab_nonfinite_total{run=\"r\",signal=\"loss\"}"), 1);
  EXPECT_EQ(s.at("trimtab_nonfinite_total{run=\"r\",signal=\"grad_norm\"}"), 1);
  EXPECT_THAT(s, Not(Contains(Key("trimtab_max_attention_logit{run=\"r\",layer=\"0\"}")))) << "nothing was sampled";
  EXPECT_EQ(s.at("trimtab_max_attention_logit{run=\"r\",layer=\"1\"}"), INFINITY);
}

TEST_F(MetricsTest, DecisionsAreCountedFromTheAuditLog) {
  Start({.rules = {"logit_growth"}});
  Run("r", 1, 1);
  const auto append = [&](const std::string& kind, const std::string& rule) {
    v1::Event event;
    event.set_run("r");
    event.set_kind(kind);
    event.set_detector(rule);
    ASSERT_THAT(store_->Append(event), IsOk());
  };
  append("alert", "logit_runaway");
  append("alert", "logit_runaway");
  append("alert_resolved", "logit_runaway");
  append("switch_applied", "");
  append("switch_refused", "");
  append("rollback_planned", "");
  const auto s = Scrape();
  EXPECT_EQ(s.at("trimtab_alerts_total{run=\"r\",rule=\"logit_runaway\"}"), 2);
  EXPECT_EQ(s.at("trimtab_alerts_total{run=\"r\",rule=\"logit_growth\"}"), 0) << "there before its first alert";
  EXPECT_EQ(s.at("trimtab_switches_total{run=\"r\",result=\"applied\"}"), 1);
  EXPECT_EQ(s.at("trimtab_switches_total{run=\"r\",result=\"refused\"}"), 1);
  EXPECT_EQ(s.at("trimtab_switches_total{run=\"r\",result=\"rollback\"}"), 1);
}

TEST_F(MetricsTest, TheServersOwnSeries) {
  ingest_.steps = 12;
  ingest_.refusals[static_cast<size_t>(RefusalReason::kDuplicateRank)] = 3;
  ingest_.commit_buckets[0] = 2;
  ingest_.commit_buckets.back() = 1;
  Start({.extra = {{"trimtab_policy_steps_dropped_total", "h", true, [] { return 4.0; }}}});
  ASSERT_THAT(store_->PutState("key", "value"), IsOk());
  const auto s = Scrape();
  EXPECT_EQ(s.at("trimtab_ingest_steps_total"), 12);
  EXPECT_EQ(s.at("trimtab_ingest_refusals_total{reason=\"duplicate_rank\"}"), 3);
  EXPECT_EQ(s.at("trimtab_ingest_refusals_total{reason=\"overload\"}"), 0);
  EXPECT_EQ(s.at("trimtab_ingest_sync_seconds_bucket{le=\"0.0005\"}"), 2);
  EXPECT_EQ(s.at("trimtab_ingest_sync_seconds_bucket{le=\"2.5\"}"), 2);
  EXPECT_EQ(s.at("trimtab_ingest_sync_seconds_bucket{le=\"+Inf\"}"), 3);
  EXPECT_EQ(s.at("trimtab_ingest_sync_seconds_count"), 3);
  EXPECT_GT(s.at("trimtab_store_bytes"), 0);
  EXPECT_EQ(s.at("trimtab_policy_steps_dropped_total"), 4);
  Scrape();
  EXPECT_GT(Scrape().at("trimtab_scrape_seconds"), 0);
}

TEST_F(MetricsTest, TheCapHoldsAndTheOverflowIsCounted) {
  constexpr size_t kCap = 300;
  Start({.max_series = kCap});
  Run("small", 1, 1);
  const auto below = Scrape();
  EXPECT_EQ(below.at("trimtab_series_overflow_total"), 0);
  EXPECT_EQ(below.at("trimtab_series"), static_cast<double>(below.size()));
  Run("large", 200, 4);
  const auto s = Scrape();
  EXPECT_EQ(s.size(), kCap) << "exactly the cap";
  EXPECT_EQ(s.at("trimtab_series"), kCap);
  EXPECT_EQ(s.at("trimtab_series_limit"), kCap);
  const double overflow = s.at("trimtab_series_overflow_total");
  EXPECT_GT(overflow, 0);
  EXPECT_GT(Scrape().at("trimtab_series_overflow_total"), overflow) << "rises while series are left out";
  // Health stays when detail does not fit.
  EXPECT_THAT(s, Contains(Key("trimtab_ranks_connected{run=\"large\"}")));
  EXPECT_THAT(s, Contains(Key("trimtab_loss{run=\"large\"}")));
}

TEST_F(MetricsTest, TheDefaultCapHolds) {
  Start();
  for (int i = 0; i < 12; ++i) Run(absl::StrCat("run", i), 400, 1);
  const auto s = Scrape();
  EXPECT_EQ(s.size(), 10000);
  EXPECT_GT(s.at("trimtab_series_overflow_total"), 0);
}

TEST_F(MetricsTest, OldRunsLeaveThePage) {
  Start({.keep_finished_seconds = -1, .keep_silent_seconds = 3600});
  Run("finished", 1, 1);
  registry_->OnRankLeft({"finished", 0, 1}, LeaveReason::kFinished, "");
  Run("lost", 1, 1);
  registry_->OnRankLeft({"lost", 0, 1}, LeaveReason::kDied, "");
  const auto s = Scrape();
  EXPECT_THAT(s, Not(Contains(Key("trimtab_loss{run=\"finished\"}"))));
  EXPECT_THAT(s, Contains(Key("trimtab_loss{run=\"lost\"}")));
}

TEST_F(MetricsTest, PromtoolAcceptsThePage) {
  ASSERT_STRNE(TRIMTAB_PROMTOOL, "") << "promtool comes with Debian's prometheus package";
  Start();
  Run("with \"quotes\", back\\slash and größe", 2, 2);
  registry_->OnRankJoined({"nan", 0, 1}, Info("nan"), TestMetrics());
  const v1::Step step = LossStep(1, 1, NAN);
  const v1::Step* const one = &step;
  registry_->OnSteps({"nan", 0, 1}, {&one, 1});
  const std::string page = folder_.File("page");
  std::ofstream(page) << exporter_->Render();
  const std::string command = absl::StrCat(TRIMTAB_PROMTOOL, " check metrics < ", page, " > ", page, ".out 2>&1");
  const int code = std::system(command.c_str());
  std::ifstream output(page + ".out");
  const std::string said((std::istreambuf_iterator<char>(output)), {});
  EXPECT_EQ(code, 0) << said;
}

}  // namespace
}  // namespace trimtab::server
