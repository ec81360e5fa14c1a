"""`trimtab doctor-python`: can a job in this Python be watched? A line a finding, status 0 when nothing is missing."""

from __future__ import annotations

import platform
import sys

from . import _build, _paths


def main() -> int:
    findings = [_python(), _torch(), _compiler(), _sources(), _courier_found()]
    for good, text in findings:
        print(f"{'ok  ' if good else 'MISS'} {text}")
    return 0 if all(good for good, _ in findings) else 1


def _python():
    good = sys.version_info >= (3, 10)
    return good, f"Python {platform.python_version()} at {sys.executable}" + (
        "" if good else "; 3.10 or newer is needed"
    )


def _torch():
    torch = _build.find_torch()
    if torch is None:
        return False, "torch is not installed in this Python; run doctor-python with the job's own"
    good = torch.release >= _build.TORCH_MINIMUM
    return good, f"torch {torch.version} at {torch.folder}" + ("" if good else "; 2.9 or newer is needed")


def _compiler():
    try:
        return True, f"C++ compiler: {' '.join(_build.find_compiler())}"
    except _build.BuildError as error:
        return False, str(error)


def _sources():
    root = _paths.shim_source_root()
    return (
        (True, f"sources of the hook library: {root}")
        if root
        else (False, "sources of the hook library not found; set TRIMTAB_SHIM_SRC")
    )


def _courier_found():
    courier = _paths.courier()
    return (
        (True, f"courier: {courier}")
        if courier
        else (False, "trimtab-courier not found; install trimtab's binaries or set TRIMTAB_COURIER")
    )
