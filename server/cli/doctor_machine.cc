#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/cli/doctor_checks.h"
#include "server/cli/paths.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

namespace fs = std::filesystem;
constexpr double kRingBytes = 16.0 * (1 << 20);  // one rank's ring
constexpr double kComfortableShmBytes = 8 * kRingBytes;
constexpr size_t kMaxOutputBytes = 64 << 10;

struct ProgramResult {
  int exit_status = -1;
  std::string output;  // stdout; stderr is left out
};

// Runs a program without a shell. exit_status 127: not found.
ProgramResult RunProgram(const std::vector<std::string>& words) {
  std::vector<char*> raw;
  for (const std::string& word : words) raw.push_back(const_cast<char*>(word.c_str()));
  raw.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const pid_t child = fork();
  if (child == 0) {  // only what is safe in a forked child of a program with threads
    dup2(ends[1], STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execvp(raw[0], raw.data());
    _exit(127);
  }
  close(null);
  close(ends[1]);
  ProgramResult result;
  char buffer[4096];
  ssize_t got = 0;
  while (child > 0 && (got = read(ends[0], buffer, sizeof(buffer))) > 0) {
    if (result.output.size() < kMaxOutputBytes) result.output.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)) result.exit_status = WEXITSTATUS(status);
  return result;
}

Finding CheckShm() {
  struct statvfs space {};
  if (statvfs("/dev/shm", &space) != 0) {
    return {Verdict::kBad, "/dev/shm", "is not there", "mount a tmpfs at /dev/shm, or set TRIMTAB_RING_DIR to a tmpfs"};
  }
  const double free_bytes = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  const std::string text =
      absl::StrCat(Number(free_bytes, "bytes"), " free; a rank's ring takes up to ", Number(kRingBytes, "bytes"));
  const char* fix = "enlarge it (containers: --shm-size=1g), or set TRIMTAB_RING_DIR";
  if (free_bytes < kRingBytes) return {Verdict::kBad, "/dev/shm", text, fix};
  if (free_bytes < kComfortableShmBytes) return {Verdict::kWarning, "/dev/shm", text, fix};
  return {Verdict::kGood, "/dev/shm", text, ""};
}

fs::path CacheFolder() {
  const auto value = [](const char* name) -> std::string {
    const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
    return text != nullptr ? text : "";
  };
  if (!value("TRIMTAB_CACHE_DIR").empty()) return value("TRIMTAB_CACHE_DIR");
  if (!value("XDG_CACHE_HOME").empty()) return fs::path(value("XDG_CACHE_HOME")) / "trimtab";
  return fs::path(value("HOME")) / ".cache" / "trimtab";
}

Finding CheckCache() {
  const fs::path folder = CacheFolder();
  std::error_code error;
  size_t libraries = 0;
  for (fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".so") ++libraries;
  }
  fs::path existing = folder;  // the folder itself, or the nearest one above that is there
  while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  if (access(existing.c_str(), W_OK) != 0) {
    return {Verdict::kBad, "cache", absl::StrCat(folder.string(), " cannot be written"),
            "set TRIMTAB_CACHE_DIR to a folder of your own"};
  }
  if (libraries == 0) {
    return {Verdict::kGood, "cache",
            absl::StrCat(folder.string(), ": empty; the first `trimtab run` builds the hook library"), ""};
  }
  return {Verdict::kGood, "cache", absl::StrCat(folder.string(), ": ", libraries, " hook libraries built"), ""};
}

}  // namespace

std::vector<Finding> CheckPython() {
  const std::string python = FindPython();
  PreparePythonEnvironment();
  const ProgramResult result = RunProgram({python, "-m", "trimtab", "doctor-python"});
  const char* fix =
      "needed only where jobs run: use the job's own Python (TRIMTAB_PYTHON, or activate its environment)";
  if (result.exit_status == 127) return {{Verdict::kWarning, "python", absl::StrCat(python, " was not found"), fix}};
  std::vector<Finding> findings;
  absl::string_view text = result.output;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    absl::string_view line = text.substr(0, end);
    text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 1);
    const bool missing = absl::ConsumePrefix(&line, "MISS ");
    if (!missing && !absl::ConsumePrefix(&line, "ok   ")) continue;
    findings.push_back({missing ? Verdict::kWarning : Verdict::kGood, "python", std::string(line), missing ? fix : ""});
  }
  if (findings.empty()) {
    findings.push_back({Verdict::kWarning, "python", absl::StrCat(python, " cannot import trimtab"),
                        "set TRIMTAB_PYTHONPATH to the folder that holds the package `trimtab`"});
  }
  return findings;
}

std::vector<Finding> CheckMachine() { return {CheckShm(), CheckCache()}; }

}  // namespace trimtab::cli
