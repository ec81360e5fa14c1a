// A folder that goes away with the object.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_TEMP_DIR_H_
#define TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <string>

namespace trimtab::server {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trimtab-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_TEMP_DIR_H_
