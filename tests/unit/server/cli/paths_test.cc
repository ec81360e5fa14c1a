#include "server/cli/paths.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

namespace trimtab::cli {
namespace {

namespace fs = std::filesystem;

class PathsTest : public testing::Test {
 protected:
  PathsTest() {
    std::string pattern = (fs::temp_directory_path() / "trimtab-paths-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    for (const char* name : {"TRIMTAB_PYTHONPATH", "TRIMTAB_PYTHON", "VIRTUAL_ENV"}) unsetenv(name);
  }
  ~PathsTest() override { fs::remove_all(root_); }

  void Touch(const fs::path& file, bool executable = false) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << "x";
    if (executable) fs::permissions(root_ / file, fs::perms::owner_all);
  }

  fs::path root_;
};

TEST_F(PathsTest, FindsThePackageOfAnInstalledPrefix) {
  Touch("share/trimtab/python/trimtab/__init__.py");
  EXPECT_EQ(FindPythonPackage(root_ / "bin"), root_ / "share/trimtab/python");
}

TEST_F(PathsTest, FindsThePackageOfTheSourceTreeAboveABuildFolder) {
  EXPECT_EQ(FindPythonPackage(root_ / "build/dev/server/cli"), std::nullopt);
  Touch("CMakePresets.json");
  Touch("agent/python/trimtab/__init__.py");
  EXPECT_EQ(FindPythonPackage(root_ / "build/dev/server/cli"), root_ / "agent/python");
}

TEST_F(PathsTest, TheNamedFolderWins) {
  Touch("share/trimtab/python/trimtab/__init__.py");
  setenv("TRIMTAB_PYTHONPATH", "/named", 1);
  EXPECT_EQ(FindPythonPackage(root_ / "bin"), "/named");
}

TEST_F(PathsTest, PrefersTheNamedPythonThenTheVirtualEnvironment) {
  EXPECT_EQ(FindPython(), "python3");
  setenv("VIRTUAL_ENV", root_.c_str(), 1);
  EXPECT_EQ(FindPython(), "python3");  // an environment without Python
  Touch("bin/python3", true);
  EXPECT_EQ(FindPython(), (root_ / "bin/python3").string());
  setenv("TRIMTAB_PYTHON", "/other/python", 1);
  EXPECT_EQ(FindPython(), "/other/python");
}

TEST_F(PathsTest, FindsTheCourierBesideTheBinaryOrInTheBuildTree) {
  EXPECT_EQ(FindCourier(root_ / "server/cli"), std::nullopt);
  Touch("agent/courier/trimtab-courier", true);
  EXPECT_EQ(FindCourier(root_ / "server/cli"), root_ / "agent/courier/trimtab-courier");
  Touch("server/cli/trimtab-courier", true);
  EXPECT_EQ(FindCourier(root_ / "server/cli"), root_ / "server/cli/trimtab-courier");
}

}  // namespace
}  // namespace trimtab::cli
