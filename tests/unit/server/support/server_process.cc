#include "tests/unit/server/support/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

namespace trimtab::server {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr int kDidNotEnd = -1000;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

ServerProcess::ServerProcess(const std::string& program, const std::vector<std::string>& flags,
                             const std::string& output_file)
    : output_file_(output_file) {
  std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
  for (const std::string& flag : flags) arguments.push_back(const_cast<char*>(flag.c_str()));
  arguments.push_back(nullptr);
  const int output = open(output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  pid_ = fork();
  if (pid_ != 0) {
    close(output);
    return;
  }
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execv(program.c_str(), arguments.data());
  _exit(127);
}

ServerProcess::~ServerProcess() {
  if (ended_ || pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ServerProcess::Signal(int signal) {
  if (!ended_) kill(pid_, signal);
}

bool ServerProcess::WaitReady(const std::string& ready_file) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    const auto ready = nlohmann::json::parse(ReadFile(ready_file), nullptr, /*allow_exceptions=*/false);
    if (!ready.is_discarded() && ready.value("pid", 0) == pid_) {
      grpc_ = ready.value("grpc", "");
      http_ = ready.value("http", "");
      return true;
    }
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = true;
      result_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      return false;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

int ServerProcess::Wait() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!ended_ && std::chrono::steady_clock::now() < deadline) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = true;
      result_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    } else {
      std::this_thread::sleep_for(kPoll);
    }
  }
  return ended_ ? result_ : kDidNotEnd;
}

std::string ServerProcess::output() const { return ReadFile(output_file_); }

}  // namespace trimtab::server
