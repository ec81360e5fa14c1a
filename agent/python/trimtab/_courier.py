"""Starts the courier, the process that carries the rings of this node to the server."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

from . import _log, _paths, _ring_dir

DELIVER_SECONDS_MAX = 10.0
IDLE_SECONDS_MAX = 3.0  # without a ring
RESTART_SECONDS = 0.5
RESTART_SECONDS_MAX = 5.0


class Courier:
    """A running courier. It outlives this process until its rings are delivered; it is never killed by us,
    only asked to end when there is no ring.

    `launch` starts its process. One that a signal ended (out of memory, an operator's kill) is started again by `tend`
    and resumes from its spool and the rings. One that was done is started again for rings that came after it had seen the
    last one end: of a second script, or of workers that a launcher starts again. One that gave up stays ended, it said
    why. Not thread-safe.
    """

    def __init__(self, launch, ring_dir: Path):
        self._launch, self._ring_dir = launch, ring_dir
        self._known = set(_ring_dir.rings(ring_dir))
        self._process = launch()
        self._started = time.monotonic()
        self._delay = RESTART_SECONDS
        self._deaths = 0
        self._ended = False  # a death that `tend` has seen and not answered yet

    @property
    def pid(self) -> int:
        return self._process.pid

    def tend(self) -> bool:
        """Starts the courier again when a signal ended it or when rings came after it was done, at most every
        RESTART_SECONDS, twice as long after each start that follows soon. True while there is a courier or there will be
        one. Does not block."""
        code = self._process.poll()
        if code is None:
            return True
        if code > 0:
            return False
        rings = set(_ring_dir.rings(self._ring_dir))
        if code == 0 and rings <= self._known:
            return False
        if code < 0 and not self._ended:
            self._ended = True
            if time.monotonic() - self._started > RESTART_SECONDS_MAX:
                self._delay = RESTART_SECONDS
            self._deaths += 1
            if self._deaths <= 5 or self._deaths % 100 == 0:
                _log.say(
                    f"warning: the courier (pid {self.pid}) was ended by signal {-code}; it is started again "
                    f"(death {self._deaths})"
                )
        if time.monotonic() - self._started < self._delay:
            return True
        self._delay = min(self._delay * 2, RESTART_SECONDS_MAX)
        self._known = rings
        try:
            self._process = self._launch()
        except OSError as error:
            _log.say(f"warning: the courier does not start again ({error.strerror})")
            return True
        self._started, self._ended = time.monotonic(), False
        return True

    def stop(self) -> None:
        """Asks it to end although it waits for a first ring. Its spool keeps what it holds. Does not block."""
        self._process.terminate()

    def wait(self, seconds: float = DELIVER_SECONDS_MAX) -> bool:
        """True when the courier has delivered everything and ended within `seconds`."""
        deadline = time.monotonic() + seconds
        while self.tend():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=min(left, RESTART_SECONDS))
        return self._process.returncode == 0


def start(server: str, ring_dir: Path, log_file: str | None = None) -> Courier | None:
    """Starts a courier for `ring_dir`, in its own session so that the job's signals do not reach it.

    It ends by itself when every ring it has seen is delivered, or, with this process gone, when none is left. None, and
    one line saying why, when there is no courier: the job goes on with its rings only.
    """
    executable = _paths.courier()
    if executable is None:
        named = os.environ.get("TRIMTAB_COURIER")
        where = f"TRIMTAB_COURIER={named} is no executable" if named else f"{_paths.COURIER} was not found"
        _log.say(
            f"warning: {where}; the job is measured, but nothing reaches {server}. "
            "Install trimtab's binaries or set TRIMTAB_COURIER to the courier's path"
        )
        return None
    command = [
        str(executable),
        "--server",
        server,
        "--ring-dir",
        str(ring_dir),
        "--exit-when-idle",
        "--parent-pid",
        str(os.getpid()),
    ]
    command += ["--log-file", log_file] if log_file else ["--log-level", "warn"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_PRELOAD")}

    def launch() -> subprocess.Popen:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True, env=environment
        )

    try:
        return Courier(launch, ring_dir)
    except OSError as error:
        _log.say(f"warning: {executable} does not start ({error.strerror}); nothing reaches {server}")
        return None
