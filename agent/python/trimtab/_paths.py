"""Where the pieces lie: shim sources, courier, cache; in a source tree, an installed prefix or the bundle."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
INJECT = PACKAGE / "_inject"
# Folder that holds the package: agent/python in the source tree, share/trimtab/python when installed.
PACKAGE_PARENT = PACKAGE.parent

COURIER = "trimtab-courier"


def shim_source_root() -> Path | None:
    """The folder with agent/torch, agent/core and kernels below it; $TRIMTAB_SHIM_SRC overrides. None: not found."""
    installed = shutil.which(COURIER)
    candidates = [
        Path(os.environ["TRIMTAB_SHIM_SRC"]) if os.environ.get("TRIMTAB_SHIM_SRC") else None,
        PACKAGE_PARENT.parent.parent,  # source tree: <root>/agent/python/trimtab
        PACKAGE_PARENT.parent / "shim-src",  # <prefix>/share/trimtab/python/trimtab
        PACKAGE / "shim-src",
        # a package of its own beside an installation that is on the path
        Path(installed).resolve().parent.parent / "share" / "trimtab" / "shim-src" if installed else None,
    ]
    for candidate in candidates:
        if candidate and (candidate / "agent" / "torch").is_dir() and (candidate / "kernels").is_dir():
            return candidate.resolve()
    return None


def cache_root() -> Path:
    """$TRIMTAB_CACHE_DIR, else $XDG_CACHE_HOME/trimtab, else ~/.cache/trimtab."""
    if os.environ.get("TRIMTAB_CACHE_DIR"):
        return Path(os.environ["TRIMTAB_CACHE_DIR"])
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "trimtab"


def courier() -> Path | None:
    """The courier's executable: $TRIMTAB_COURIER, the prefix, a build tree beside the sources, PATH. None: not found.

    A TRIMTAB_COURIER that names no executable counts as not found: the owner's word is not guessed around.
    """
    named = os.environ.get("TRIMTAB_COURIER")
    if named:
        return Path(named) if _executable(Path(named)) else None
    prefix = PACKAGE_PARENT.parent.parent.parent  # <prefix>/share/trimtab/python/trimtab
    candidates = [prefix / "bin" / COURIER, PACKAGE_PARENT.parent / "bin" / COURIER, PACKAGE / "bin" / COURIER]
    root = PACKAGE_PARENT.parent.parent
    if (root / "CMakePresets.json").is_file():
        candidates += sorted(root.glob(f"build/*/bin/{COURIER}")) + sorted(
            root.glob(f"build/*/agent/courier/{COURIER}")
        )
    for candidate in candidates:
        if _executable(candidate):
            return candidate
    found = shutil.which(COURIER)
    return Path(found) if found else None


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
