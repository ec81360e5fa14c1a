"""Private folders for the rings of one job: made with mode 0700 in shared memory, swept when their owner is gone."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
_SWEPT_MAX = 64  # folders looked at in one sweep


def make() -> Path:
    """A new private folder that names this process as its owner. Raises OSError."""
    base = _base()
    sweep(base)
    return Path(tempfile.mkdtemp(prefix=f"trimtab-{os.getuid()}-{os.getpid()}-", dir=base))


def remove(folder: Path) -> None:
    """Removes the folder and what is left in it; nothing happens when it is gone."""
    shutil.rmtree(folder, ignore_errors=True)


def rings(folder: Path) -> list[Path]:
    """Ring files that nobody has delivered and removed yet."""
    try:
        return sorted(folder.glob("*.ring"))
    except OSError:
        return []


def sweep(base: Path) -> None:
    """Removes folders of this user whose owner has died and that no courier serves."""
    pattern = re.compile(rf"trimtab-{os.getuid()}-(\d+)-\w+")
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return
    for name in [name for name in names if pattern.fullmatch(name)][:_SWEPT_MAX]:
        owner = int(pattern.fullmatch(name).group(1))
        folder = base / name
        if not Path(f"/proc/{owner}").exists() and not _locked(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _base() -> Path:
    return _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _locked(folder: Path) -> bool:
    """True when a courier holds its lock in the folder, or when that cannot be told."""
    try:
        for path in folder.glob("*.lock"):
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
