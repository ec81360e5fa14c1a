#include "agent/courier/spool.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>

#include "agent/courier/limits.h"
#include "agent/courier/spool_meta.h"
#include "tests/unit/agent/courier/test_trainer.h"

namespace trimtab::courier {
namespace {

v1::Hello MakeHello(uint32_t rank, uint64_t incarnation = 1) {
  v1::Hello hello;
  hello.mutable_rank()->set_run("run/../with slash");
  hello.mutable_rank()->set_rank(rank);
  hello.mutable_rank()->set_incarnation(incarnation);
  return hello;
}

class SpoolTest : public ::testing::Test {
 protected:
  Spool::Options Options(const std::string& server = "here:1", uint64_t bytes = uint64_t{1} << 30) {
    return {folder_ / "spool", bytes, server};
  }
  TempFolder folder_;
};

TEST_F(SpoolTest, NamesCannotLeaveTheFolder) {
  Spool spool(Options());
  auto log = spool.Create(MakeHello(1));
  ASSERT_TRUE(log->Append(1, "x").ok());
  EXPECT_EQ(std::filesystem::path(log->folder()).parent_path().string(), folder_ / "spool");
}

TEST_F(SpoolTest, ChannelsInUseAreNotAdopted) {
  Spool first(Options());
  auto log = first.Create(MakeHello(1));
  ASSERT_TRUE(log->Append(1, "x").ok());
  Spool second(Options());
  EXPECT_TRUE(second.Adopt(false, kMaxChannels).empty());
  log.reset();
  EXPECT_EQ(second.Adopt(false, kMaxChannels).size(), 1u);
}

TEST_F(SpoolTest, ChannelsOfAnotherServerStayUnlessAskedFor) {
  {
    Spool spool(Options("there:1"));
    ASSERT_TRUE(spool.Create(MakeHello(1))->Append(1, "x").ok());
  }
  Spool spool(Options("here:1"));
  EXPECT_TRUE(spool.Adopt(false, kMaxChannels).empty());
  EXPECT_EQ(spool.foreign_channels(), 1u);
  EXPECT_EQ(spool.bytes(), 0u);
  const auto adopted = spool.Adopt(true, kMaxChannels);
  ASSERT_EQ(adopted.size(), 1u);
  EXPECT_EQ(adopted[0]->meta().server(), "here:1");
  EXPECT_GT(spool.bytes(), 0u);
}

TEST_F(SpoolTest, DamagedMetaIsSetAside) {
  {
    Spool spool(Options());
    ASSERT_TRUE(spool.Create(MakeHello(1))->Append(1, "x").ok());
    ASSERT_TRUE(spool.Create(MakeHello(2))->Append(1, "x").ok());
  }
  const std::string meta = FilesBelow(folder_.path(), "meta").at(0);
  std::ofstream(meta, std::ios::app) << "more";
  EXPECT_EQ(ReadSpoolMeta(meta).status().code(), absl::StatusCode::kDataLoss);
  Spool spool(Options());
  EXPECT_EQ(spool.Adopt(false, kMaxChannels).size(), 1u);
  size_t aside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "spool")) {
    aside += entry.path().extension() == ".corrupt" ? 1 : 0;
  }
  EXPECT_EQ(aside, 1u);
}

TEST_F(SpoolTest, AdoptsNoMoreThanTheLimit) {
  {
    Spool spool(Options());
    for (uint32_t rank = 0; rank < 5; ++rank) ASSERT_TRUE(spool.Create(MakeHello(rank))->Append(1, "x").ok());
  }
  Spool spool(Options());
  EXPECT_EQ(spool.Adopt(false, 3).size(), 3u);
}

TEST_F(SpoolTest, OneBoundOverAllChannelsDropsTheOldest) {
  Spool spool(Options("here:1", kMinSpoolBytes));
  auto old = spool.Create(MakeHello(1));
  auto young = spool.Create(MakeHello(2));
  uint64_t dropped = 0;
  old->set_drop_listener([&](absl::Span<const uint64_t> sequences) { dropped += sequences.size(); });
  young->set_drop_listener([&](absl::Span<const uint64_t>) { FAIL() << "the young one was not to lose anything"; });
  const std::string payload(1000, 'x');
  for (uint64_t i = 1; i <= 30; ++i) ASSERT_TRUE(old->Append(i, payload).ok());
  for (uint64_t i = 1; i <= 40; ++i) ASSERT_TRUE(young->Append(i, payload).ok());
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(old->CountAfter(0), 30 - dropped);
  EXPECT_EQ(young->CountAfter(0), 40u);
  EXPECT_LE(spool.bytes(), kMinSpoolBytes);
}

TEST_F(SpoolTest, DiskFullIsAnErrorThatLeavesWhatIsThere) {
  Spool spool(Options());
  auto log = spool.Create(MakeHello(1));
  const std::string payload(1000, 'x');
  uint64_t stored = 0;
  {
    const FileSizeLimit limit(10'000);
    while (stored < 100 && log->Append(stored + 1, payload).ok()) ++stored;
    EXPECT_EQ(stored, 9u);
    EXPECT_FALSE(log->Append(stored + 1, payload).ok());
    EXPECT_EQ(log->last_sequence(), stored);
  }
  ASSERT_TRUE(log->Append(stored + 1, payload).ok()) << "there is room again";
  uint64_t sequence = 0, lost = 0;
  std::string read;
  for (uint64_t i = 1; i <= stored + 1; ++i) {
    ASSERT_TRUE(log->ReadAfter(i - 1, &sequence, &read, &lost));
    EXPECT_EQ(sequence, i);
    EXPECT_EQ(lost, 0u);
    EXPECT_EQ(read, payload);
  }
}

TEST_F(SpoolTest, FolderThatCannotBeMadeIsAnErrorOnAppendOnly) {
  std::ofstream(folder_ / "spool") << "a file";
  Spool spool(Options());
  EXPECT_TRUE(spool.Adopt(false, kMaxChannels).empty());
  auto log = spool.Create(MakeHello(1));
  EXPECT_FALSE(log->Append(1, "x").ok());
  EXPECT_TRUE(log->empty());
  std::filesystem::remove(folder_ / "spool");
  EXPECT_TRUE(log->Append(1, "x").ok());
}

}  // namespace
}  // namespace trimtab::courier
