// SIGTERM and SIGINT as something to wait for. SIGPIPE is ignored: a broken connection is an error code, not a death.
#ifndef TRIMTAB_SERVER_DAEMON_STOP_SIGNAL_H_
#define TRIMTAB_SERVER_DAEMON_STOP_SIGNAL_H_

#include <csignal>

namespace trimtab::server {

// Construct before the first thread starts.
class StopSignal {
 public:
  StopSignal() {
    std::signal(SIGPIPE, SIG_IGN);
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }

  // Returns the signal. A second one kills the process: whoever is in a hurry gets their way.
  int Wait() const {
    int signal = 0;
    while (sigwait(&signals_, &signal) != 0) {
    }
    pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
    return signal;
  }

 private:
  sigset_t signals_;
};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_DAEMON_STOP_SIGNAL_H_
