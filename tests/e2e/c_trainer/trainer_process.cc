#include "tests/e2e/c_trainer/trainer_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

extern char** environ;

namespace trimtab {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

TrainerProcess::TrainerProcess(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  std::vector<std::string> command = {TRIMTAB_C_TRAINER};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  if (posix_spawn(&pid_, TRIMTAB_C_TRAINER, &actions, nullptr, Pointers(command).data(), Pointers(variables).data()) !=
      0) {
    std::abort();
  }
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  output_ = ends[0];
}

TrainerProcess::~TrainerProcess() {
  if (pid_ > 0) {
    Kill();
    Wait();
  }
  close(output_);
}

bool TrainerProcess::ReadLine(std::string* line) {
  for (;;) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      *line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return true;
    }
    char piece[4096];
    const ssize_t bytes = read(output_, piece, sizeof(piece));
    if (bytes <= 0) return false;
    buffer_.append(piece, static_cast<size_t>(bytes));
  }
}

std::string TrainerProcess::ReadRest() {
  std::string rest;
  for (std::string line; ReadLine(&line);) rest += line + "\n";
  return rest;
}

void TrainerProcess::Kill() { kill(pid_, SIGKILL); }

int TrainerProcess::Wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace trimtab
