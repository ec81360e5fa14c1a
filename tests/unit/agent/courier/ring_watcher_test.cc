#include "agent/courier/ring_watcher.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "agent/courier/file_lock.h"
#include "tests/unit/agent/courier/test_trainer.h"

namespace trimtab::courier {
namespace {

class RingWatcherTest : public ::testing::Test {
 protected:
  void Touch(const std::string& name) { std::ofstream(folder_ / name) << "x"; }
  std::vector<std::string> Names(const RingWatcher& watcher) {
    std::vector<std::string> names;
    for (const RingFile& file : watcher.Scan()) names.push_back(std::filesystem::path(file.path).filename());
    return names;
  }
  TempFolder folder_;
};

TEST_F(RingWatcherTest, FindsRegularRingFilesOnly) {
  Touch("b.ring");
  Touch("a.ring");
  Touch(".hidden.ring");
  Touch("c.ring.corrupt");
  Touch("ring");
  std::filesystem::create_directory(folder_ / "folder.ring");
  std::filesystem::create_symlink(folder_ / "a.ring", folder_ / "link.ring");
  ASSERT_EQ(mkfifo((folder_ / "pipe.ring").c_str(), 0600), 0);
  const RingWatcher watcher(folder_.path());
  EXPECT_EQ(Names(watcher), (std::vector<std::string>{"a.ring", "b.ring"}));
}

TEST_F(RingWatcherTest, KnownFilesAreNotFoundAgainButReplacedOnesAre) {
  Touch("a.ring");
  RingWatcher watcher(folder_.path());
  const RingFile file = watcher.Scan().at(0);
  watcher.Know(file);
  EXPECT_TRUE(watcher.Scan().empty());
  Touch("new");
  std::filesystem::rename(folder_ / "new", folder_ / "a.ring");
  EXPECT_EQ(watcher.Scan().size(), 1u);
  RemoveRing(file);  // its name belongs to another file now
  EXPECT_TRUE(std::filesystem::exists(folder_ / "a.ring"));
  EXPECT_FALSE(SetAsideRing(file));
  watcher.Prune();
  const RingFile replaced = watcher.Scan().at(0);
  EXPECT_TRUE(SetAsideRing(replaced));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "a.ring.corrupt"));
}

TEST_F(RingWatcherTest, MissingFolderIsEmpty) {
  const RingWatcher watcher(folder_ / "not there");
  EXPECT_TRUE(watcher.Scan().empty());
}

TEST_F(RingWatcherTest, LockIsHeldUntilDestruction) {
  {
    auto first = FileLock::Try(folder_ / "lock");
    ASSERT_TRUE(first.ok() && first->has_value());
    auto second = FileLock::Try(folder_ / "lock");
    ASSERT_TRUE(second.ok());
    EXPECT_FALSE(second->has_value());
  }
  auto third = FileLock::Try(folder_ / "lock");
  EXPECT_TRUE(third.ok() && third->has_value());
  EXPECT_FALSE(FileLock::Try(folder_ / "no folder/lock").ok());
  std::filesystem::create_symlink("/dev/null", folder_ / "link");
  EXPECT_FALSE(FileLock::Try(folder_ / "link").ok());
}

}  // namespace
}  // namespace trimtab::courier
