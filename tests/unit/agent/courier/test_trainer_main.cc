// A trainer process for tests that kill: RING_DIR RANK STEPS SLEEP_US close|die|report
// With report, the number of each committed step goes to stdout as eight bytes.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/unit/agent/courier/test_trainer.h"

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const uint64_t steps = std::strtoull(argv[3], nullptr, 10);
  const useconds_t pause = static_cast<useconds_t>(std::strtoul(argv[4], nullptr, 10));
  const bool report = std::strcmp(argv[5], "report") == 0;
  trimtab::courier::TestTrainer trainer(argv[1], static_cast<uint32_t>(std::atoi(argv[2])), 4 << 20);
  if (trainer.agent() == nullptr) return 1;
  for (uint64_t step = 1; step <= steps; ++step) {
    trainer.Step(step);
    if (report && write(STDOUT_FILENO, &step, sizeof(step)) != sizeof(step)) return 1;
    if (pause > 0) usleep(pause);
  }
  if (std::strcmp(argv[5], "die") == 0) raise(SIGKILL);
  return 0;
}
