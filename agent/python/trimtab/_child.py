"""Runs the job as a child: same terminal and streams, signals passed on, its exit status returned."""

from __future__ import annotations

import contextlib
import os
import signal

# Passed to the job. SIGCHLD tells that it ended; stop and continue act on the whole process group by themselves.
_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGWINCH,
)
_SI_KERNEL = 0x80  # the terminal sent it, to the job as well
_POLL_SECONDS = 1.0


def run(command: list[str], environment: dict[str, str], started=None, tend=None) -> int:
    """Runs `command` and returns its exit status, or 128 + n when signal n ended it.

    `started(pid)` is called once the child exists, `tend()` about once a second and whenever a child of this process
    ended; it must not block. Must be called on the main thread of a process with no other threads. Raises OSError when
    the command cannot be started.
    """
    watched = {*_FORWARDED, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        # Python ignores these two; the job must find them as a shell would give them.
        child = os.posix_spawnp(
            command[0], command, environment, setsigmask=mask, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
        )
        if started:
            started(child)
        return _supervise(child, watched, tend)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _supervise(child: int, watched: set, tend) -> int:
    while True:
        if tend:
            tend()
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        arrived = signal.sigtimedwait(watched, _POLL_SECONDS)
        if arrived is None or arrived.si_signo == signal.SIGCHLD or arrived.si_code == _SI_KERNEL:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, arrived.si_signo)
