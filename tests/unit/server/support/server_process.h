// A real trimtabd as a child process.
#ifndef TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_SERVER_PROCESS_H_
#define TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_SERVER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace trimtab::server {

class ServerProcess {
 public:
  // Starts `program` with `flags`; what it writes to stdout and stderr goes to output().
  ServerProcess(const std::string& program, const std::vector<std::string>& flags, const std::string& output_file);
  ~ServerProcess();  // kills it

  // Waits for the JSON of --ready-file; false when the process ended first or took 60 s.
  bool WaitReady(const std::string& ready_file);
  void Signal(int signal);
  // Waits for the end. Exit status, or minus the signal that killed it; -1000 when it does not end within 60 s.
  int Wait();

  pid_t pid() const { return pid_; }
  const std::string& grpc_address() const { return grpc_; }
  const std::string& http_address() const { return http_; }
  std::string output() const;

 private:
  const std::string output_file_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int result_ = 0;
  std::string grpc_, http_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_TESTS_UNIT_SERVER_SUPPORT_SERVER_PROCESS_H_
