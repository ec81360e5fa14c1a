// The terminal that stdout is connected to.
#ifndef TRIMTAB_SERVER_CLI_TERMINAL_H_
#define TRIMTAB_SERVER_CLI_TERMINAL_H_

#include <cstddef>

namespace trimtab::cli {

struct TerminalSize {
  size_t columns = 80, rows = 24;
};

bool StdoutIsTerminal();
TerminalSize SizeOfTerminal();
// Columns of the terminal; 0 (no limit) when stdout is none.
size_t TerminalWidth();

// Alternate screen, hidden cursor and unbuffered keys, until destroyed. SIGINT and SIGTERM only set stopped(), so that
// the terminal is put back. One at a time.
class FullScreen {
 public:
  FullScreen();
  ~FullScreen();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  // Waits up to `seconds` for a key; 0 when none came, the window changed its size, or a signal came.
  char WaitKey(double seconds);
  bool stopped() const;
};

}  // namespace trimtab::cli
#endif  // TRIMTAB_SERVER_CLI_TERMINAL_H_
