// A database written by the first version of format 1 must open and read the same for ever.
// docs/store.md says how to add one for a new format; an existing one is never written again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "server/store/store.h"
#include "tests/unit/server/support/messages.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"

namespace trimtab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr uint64_t kFirstLife = 0xA1, kSecondLife = 0xB2;

std::vector<v1::Step> GoldenSteps(uint64_t first_step, uint64_t count) {
  std::vector<v1::Step> steps;
  for (uint64_t i = 0; i < count; ++i) {
    const auto x = static_cast<float>(first_step + i);
    v1::Step step = LossStep(i + 1, first_step + i, i == 3 ? std::nanf("") : 3 - x / 16);
    *step.add_blocks() = Floats(kMaxLogit, {2, 2}, {x, -x, INFINITY, -INFINITY});
    *step.add_blocks() = Counts(kMode, {2}, {2, 0x0102030405060708});
    steps.push_back(std::move(step));
  }
  return steps;
}

absl::Status Append(Store* store, uint64_t incarnation, const std::vector<v1::Step>& steps) {
  RankSteps batch{{"größe/1 \"x\"", 1, incarnation}, {}};
  for (const v1::Step& step : steps) batch.steps.push_back(&step);
  return store->AppendSteps({&batch, 1});
}

// What the golden folder was made with: TRIMTAB_WRITE_GOLDEN=<new folder> server_store_test --gtest_filter=Golden*
void WriteGolden(const std::string& path) {
  auto store = Store::Open({.path = path});
  ASSERT_THAT(store, IsOk());
  for (const uint64_t life : {kFirstLife, kSecondLife}) {
    ASSERT_THAT((*store)->RegisterRank(Info("größe/1 \"x\"", 1, 2, life), TestMetrics()), IsOk());
    ASSERT_THAT(Append(store->get(), life, GoldenSteps(life == kFirstLife ? 10 : 12, 5)), IsOk());
  }
  v1::Event event;
  event.set_run("größe/1 \"x\"");
  event.set_kind("run_started");
  event.set_time_unix_nanos(1);
  ASSERT_THAT((*store)->Append(event), IsOk());
  ASSERT_THAT((*store)->PutState("plan/1", "state"), IsOk());
  ASSERT_THAT((*store)->Compact(), IsOk());  // tables, and not only a log
}

TEST(GoldenTest, Format1Opens) {
  if (const char* path = std::getenv("TRIMTAB_WRITE_GOLDEN")) return WriteGolden(path);
  TempDir folder;
  std::filesystem::copy(std::string(TRIMTAB_GOLDEN_DIR) + "/format1", folder.File("store"),
                        std::filesystem::copy_options::recursive);
  auto opened = Store::Open({.path = folder.File("store")});
  ASSERT_THAT(opened, IsOk());
  Store& store = **opened;
  const auto run = store.GetRun("größe/1 \"x\"");
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(run->id, 1);
  EXPECT_THAT(run->metrics, SizeIs(TestMetrics().size()));
  ASSERT_THAT(run->ranks, SizeIs(1));
  EXPECT_EQ(run->ranks[0].incarnation(), kSecondLife);
  for (const char* metric : {"loss", "max_attention_logit", "attention_mode"}) {
    std::vector<std::string> expected, found;
    for (const uint64_t life : {kFirstLife, kSecondLife}) {
      for (const v1::Step& step : GoldenSteps(life == kFirstLife ? 10 : 12, 5)) {
        const int block = metric == std::string("loss") ? 0 : metric == std::string("attention_mode") ? 2 : 1;
        expected.push_back(std::to_string(life) + "/" + std::to_string(step.step()) + "/" +
                           std::to_string(step.time_unix_nanos()) + step.blocks(block).SerializeAsString());
      }
    }
    ASSERT_THAT(store.ReadRows(run->run, metric, 1, 0, 0,
                               [&](const Store::Row& row) {
                                 found.push_back(std::to_string(row.incarnation) + "/" + std::to_string(row.step) +
                                                 "/" + std::to_string(row.time_unix_nanos) +
                                                 row.block.SerializeAsString());
                                 return true;
                               }),
                IsOk());
    EXPECT_EQ(found, expected) << metric;
  }
  EXPECT_EQ(*store.RegisterRank(run->ranks[0], run->metrics), 5) << "durable sequence";
  EXPECT_EQ(store.ReadEvents(run->run, 0, 10, false)->at(0).kind(), "run_started");
  EXPECT_THAT(*store.ListState(""), ElementsAre(std::pair("plan/1", "state")));
  // And it takes new rows.
  EXPECT_THAT(Append(&store, 0xC3, {}), testing::Not(IsOk()));
  ASSERT_THAT(store.RegisterRank(Info(run->run, 1, 2, 0xC3), TestMetrics()), IsOk());
  EXPECT_THAT(Append(&store, 0xC3, GoldenSteps(1, 1)), IsOk());
}

}  // namespace
}  // namespace trimtab::server
