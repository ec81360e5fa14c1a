#include "server/cli/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <optional>

namespace trimtab::cli {
namespace {

volatile std::sig_atomic_t stop_requested = 0;
std::optional<termios> saved_mode;

void OnStop(int) { stop_requested = 1; }
void OnResize(int) {}  // only to interrupt poll

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;  // no SA_RESTART: poll must return
  sigaction(signal, &action, nullptr);
}

void Say(const char* sequence) {
  std::fputs(sequence, stdout);
  std::fflush(stdout);
}

}  // namespace

bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }

TerminalSize SizeOfTerminal() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

size_t TerminalWidth() { return StdoutIsTerminal() ? SizeOfTerminal().columns : 0; }

FullScreen::FullScreen() {
  stop_requested = 0;
  Handle(SIGINT, OnStop);
  Handle(SIGTERM, OnStop);
  Handle(SIGHUP, OnStop);
  Handle(SIGWINCH, OnResize);
  termios mode{};
  if (tcgetattr(STDIN_FILENO, &mode) == 0) {
    saved_mode = mode;
    mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &mode);
  }
  Say("\x1b[?1049h\x1b[?25l");
}

FullScreen::~FullScreen() {
  Say("\x1b[?25h\x1b[?1049l");
  if (saved_mode.has_value()) tcsetattr(STDIN_FILENO, TCSANOW, &*saved_mode);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) Handle(signal, SIG_DFL);
}

char FullScreen::WaitKey(double seconds) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  const nfds_t watched = isatty(STDIN_FILENO) == 1 ? 1 : 0;  // without a keyboard only time and signals end the waiting
  if (poll(&input, watched, static_cast<int>(seconds * 1e3)) <= 0) return 0;
  char key = 0;
  if (read(STDIN_FILENO, &key, 1) == 1) return key;
  stop_requested = 1;  // the terminal is gone
  return 0;
}

bool FullScreen::stopped() const { return stop_requested != 0; }

}  // namespace trimtab::cli
