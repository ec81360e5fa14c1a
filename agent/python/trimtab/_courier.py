"""Starts the courier, the process that carries the rings of this node to the server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from . import _log, _paths

DELIVER_SECONDS_MAX = 10.0


class Courier:
    """A running courier. It outlives this process until its rings are delivered; it is never killed by us."""

    def __init__(self, process: subprocess.Popen):
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, seconds: float = DELIVER_SECONDS_MAX) -> bool:
        """True when the courier has delivered everything and ended within `seconds`."""
        try:
            return self._process.wait(timeout=seconds) == 0
        except subprocess.TimeoutExpired:
            return False


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
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True, env=environment
        )
    except OSError as error:
        _log.say(f"warning: {executable} does not start ({error.strerror}); nothing reaches {server}")
        return None
    return Courier(process)
