#include "server/store/data_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "server/store/store.h"
#include "tests/unit/server/support/status_matchers.h"
#include "tests/unit/server/support/temp_dir.h"

namespace trimtab::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(DataFolderTest, MakesTheFolderAndItsParents) {
  TempDir folder;
  const std::string path = folder.File("a/b");
  ASSERT_THAT(PrepareDataFolder(path, 1), IsOk());
  EXPECT_EQ(ReadFile(path + "/FORMAT"), "trimtab-store 1\n");
  EXPECT_THAT(PrepareDataFolder(path, 1), IsOk());
  EXPECT_THAT(PrepareDataFolder(path, 2), IsOk()) << "older formats are read";
}

TEST(DataFolderTest, RefusesANewerFormat) {
  TempDir folder;
  std::ofstream(folder.File("FORMAT")) << "trimtab-store 2\n";
  EXPECT_THAT(Store::Open({.path = folder.path()}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("format 2"), HasSubstr("up to 1"), HasSubstr("newer trimtabd"))));
}

TEST(DataFolderTest, RefusesAForeignFolder) {
  TempDir folder;
  std::ofstream(folder.File("FORMAT")) << "something else\n";
  EXPECT_THAT(PrepareDataFolder(folder.path(), 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another --data-dir")));
  std::ofstream(folder.File("FORMAT"), std::ios::trunc) << "";
  EXPECT_THAT(PrepareDataFolder(folder.path(), 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another --data-dir")));
}

TEST(DataFolderTest, RefusesADatabaseWithoutItsRecord) {
  TempDir folder;
  std::filesystem::create_directory(folder.File("rocksdb"));
  EXPECT_THAT(PrepareDataFolder(folder.path(), 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no FORMAT file")));
}

TEST(DataFolderTest, RefusesAFile) {
  TempDir folder;
  std::ofstream(folder.File("file")) << "x";
  EXPECT_THAT(PrepareDataFolder(folder.File("file"), 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not a folder")));
}

TEST(DataFolderTest, ALockedStoreNamesItsHolder) {
  TempDir folder;
  {
    const auto own = Store::Open({.path = folder.path()});
    ASSERT_THAT(own, IsOk());
    EXPECT_THAT(Store::Open({.path = folder.path()}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("in use by this process")));
  }
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // takes the lock as RocksDB does; a whole store would need threads, which a forked copy may not start
    const int file = open((folder.path() + "/rocksdb/LOCK").c_str(), O_RDWR);
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    const char answer = fcntl(file, F_SETLK, &lock) == 0 ? 'y' : 'n';
    if (write(ready[1], &answer, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  close(ready[1]);
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  EXPECT_THAT(Store::Open({.path = folder.path()}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("in use by process " + std::to_string(child)), HasSubstr("--data-dir"))));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  EXPECT_THAT(Store::Open({.path = folder.path()}), IsOk()) << "the lock dies with its holder";
}

}  // namespace
}  // namespace trimtab::server
