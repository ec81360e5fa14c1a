#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/cli/commands.h"
#include "server/cli/paths.h"
#include "server/cli/text.h"

namespace trimtab::cli {
namespace {

bool IsPythonCommand(const std::string& word) {
  return word == "run" || word == "attach" || word == "build" || word == "doctor-python";
}

}  // namespace

std::optional<int> LaunchPython(int argc, char** argv) {
  // Only `--server` may stand before the command; it is passed on.
  std::vector<std::string> server;
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    const std::string word = argv[i];
    if (word == "--server" && i + 1 < argc) {
      server = {"--server", argv[++i]};
    } else if (absl::StartsWith(word, "--server=")) {
      server = {word};
    } else {
      return std::nullopt;
    }
  }
  if (i >= argc || !IsPythonCommand(argv[i])) return std::nullopt;
  const std::string command = argv[i];
  std::vector<std::string> words = {FindPython(), "-m", "trimtab", command};
  if (command == "run" || command == "attach") words.insert(words.end(), server.begin(), server.end());
  words.insert(words.end(), argv + i + 1, argv + argc);

  PreparePythonEnvironment();
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  execvp(raw[0], raw.data());
  std::fprintf(stderr, "trimtab: cannot start %s: %s; name a Python with TRIMTAB_PYTHON\n", Escape(words[0]).c_str(),
               std::strerror(errno));
  return kFailed;
}

}  // namespace trimtab::cli
