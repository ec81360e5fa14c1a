// Runs c_trainer as a process of its own and reads its output.
#ifndef TRIMTAB_TESTS_E2E_C_TRAINER_TRAINER_PROCESS_H_
#define TRIMTAB_TESTS_E2E_C_TRAINER_TRAINER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace trimtab {

class TrainerProcess {
 public:
  // Starts the program with `arguments`, stdout and stderr in one pipe, and `environment` ("NAME=value") added.
  explicit TrainerProcess(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});
  ~TrainerProcess();  // kills it if it still runs
  TrainerProcess(const TrainerProcess&) = delete;
  TrainerProcess& operator=(const TrainerProcess&) = delete;

  // Next line without its end; false at the end of the output. Blocks.
  bool ReadLine(std::string* line);
  std::string ReadRest();
  void Kill();
  // Waits for its end. Exit code, or minus the signal's number.
  int Wait();

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string buffer_;
};

}  // namespace trimtab
#endif  // TRIMTAB_TESTS_E2E_C_TRAINER_TRAINER_PROCESS_H_
