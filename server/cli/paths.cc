#include "server/cli/paths.h"

#include <unistd.h>

#include <cstdlib>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"

namespace trimtab::cli {
namespace {

namespace fs = std::filesystem;
constexpr int kFoldersUp = 6;  // build/<name>/server/cli, and some

const char* Environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread is started
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool Executable(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

fs::path BinaryFolder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path(".") : self.parent_path();
}

std::string FindPython() {
  if (const char* named = Environment("TRIMTAB_PYTHON")) return named;
  if (const char* venv = Environment("VIRTUAL_ENV")) {
    const fs::path python = fs::path(venv) / "bin" / "python3";
    if (Executable(python)) return python;
  }
  return "python3";
}

std::optional<fs::path> FindPythonPackage(const fs::path& folder) {
  if (const char* named = Environment("TRIMTAB_PYTHONPATH")) return named;
  const fs::path package = fs::path("trimtab") / "__init__.py";
  for (const char* relative : {"../share/trimtab/python", "../lib/trimtab/python", "share/trimtab/python"}) {
    const fs::path candidate = (folder / relative).lexically_normal();
    if (Exists(candidate / package)) return candidate;
  }
  fs::path above = folder;
  for (int i = 0; i < kFoldersUp && above.has_relative_path(); ++i, above = above.parent_path()) {
    if (Exists(above / "CMakePresets.json") && Exists(above / "agent" / "python" / package)) {
      return above / "agent" / "python";
    }
  }
  return std::nullopt;
}

std::optional<fs::path> FindCourier(const fs::path& folder) {
  for (const char* relative : {"trimtab-courier", "../bin/trimtab-courier", "../../agent/courier/trimtab-courier"}) {
    const fs::path candidate = (folder / relative).lexically_normal();
    if (Executable(candidate)) return candidate;
  }
  return std::nullopt;
}

void PreparePythonEnvironment() {
  const fs::path folder = BinaryFolder();
  if (const auto package = FindPythonPackage(folder)) {
    const char* before = Environment("PYTHONPATH");
    const std::string path =
        absl::StrCat(package->string(), before != nullptr ? ":" : "", before != nullptr ? before : "");
    setenv("PYTHONPATH", path.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): before any thread is started
  }
  if (Environment("TRIMTAB_COURIER") == nullptr) {
    if (const auto courier = FindCourier(folder)) {
      setenv("TRIMTAB_COURIER", courier->c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    }
  }
}

}  // namespace trimtab::cli
