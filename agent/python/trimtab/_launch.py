"""`trimtab run`: prepares the hook library, the rings and the courier, then runs the job with the hooks injected."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from . import _build, _child, _courier, _log, _paths, _ring_dir
from ._settings import ATTACH_VARIABLE, Settings, default_run_name, disabled

EXIT_USAGE = 2
EXIT_NOT_FOUND = 127  # as a shell says it
EXIT_CANNOT_RUN = 126
EXIT_NO_LIBRARY = 3
_NO_TORCH = 4  # answer of the job's Python


def run(settings: Settings, command: list[str], courier: bool = True) -> int:
    """Runs `command` under trimtab and returns its exit status. Blocks until the job has ended and the courier has
    delivered the rest, for at most ten seconds more."""
    if disabled():
        return _start(command, dict(os.environ))
    try:
        library = library_for(interpreter_of(command))
    except _build.BuildError as error:
        _log.say(f"{error} (to start the job without trimtab: TRIMTAB_DISABLE=1)")
        return EXIT_NO_LIBRARY
    own_folder = settings.ring_dir is None
    try:
        folder = _ring_dir.make() if own_folder else Path(settings.ring_dir).absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        _log.say(f"the folder for the rings cannot be made: {error}; name another with --ring-dir")
        return EXIT_USAGE
    settings = dataclasses.replace(
        settings, ring_dir=str(folder), run=settings.run or default_run_name(_program_name(command))
    )
    if settings.emulate_storage:
        _log.say(
            f"fault injector on: attention computes in {settings.emulate_storage} storage; for tests and demos only"
        )
    carrier = _courier.start(settings.server, folder, settings.log_file) if courier and settings.server else None
    if carrier:
        _log.say(
            f"run {settings.run} reports to {settings.server}; to watch it: "
            f"trimtab --server {settings.server} top {shlex.quote(settings.run)}"
        )
    try:
        code = _start(command, child_environment(settings, library), carrier.tend if carrier else None)
    finally:
        _finish(carrier, folder, own_folder, settings)
    return code


def child_environment(settings: Settings, library: tuple[str, str] | None, base=None) -> dict[str, str]:
    """The job's environment: settings, the library (path, identity of its torch), our sitecustomize first in
    PYTHONPATH."""
    environment = dict(os.environ if base is None else base)
    environment.update(settings.to_environment())
    environment[ATTACH_VARIABLE] = "1"
    if library:
        environment["TRIMTAB_SHIM"], environment["TRIMTAB_SHIM_FOR"] = library
    before = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part != str(_paths.INJECT)]
    environment["PYTHONPATH"] = os.pathsep.join([str(_paths.INJECT), *[part for part in before if part]])
    return environment


def interpreter_of(command: list[str]) -> str:
    """The Python that will run the job: the command itself, the interpreter a script names, else our own."""
    found = shutil.which(command[0])
    if found is None:
        return sys.executable
    if os.path.basename(found).startswith("python"):
        return found
    try:
        with open(found, "rb") as file:
            first = file.readline(512)
    except OSError:
        return sys.executable
    if not first.startswith(b"#!"):
        return sys.executable
    words = first[2:].decode("utf-8", "replace").split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if words and os.path.basename(words[0]).startswith("python"):
        return shutil.which(words[0]) or sys.executable
    return sys.executable


def library_for(python: str) -> tuple[str, str] | None:
    """Builds for the job's Python; (path, identity of its torch). None when that one has no torch: then there is
    nothing to hook, or another environment's Python comes later and builds on first use. Raises BuildError."""
    if os.path.abspath(python) == os.path.abspath(sys.executable):
        torch = _build.find_torch()
        answer = [str(_build.library(torch)), _build.identity(torch)] if torch else None
    else:
        answer = _ask_other_python(python)
    if answer is None:
        _log.say(f"warning: {python} has no torch; the job is started, and watched only if it finds one elsewhere")
        return None
    return answer[0], answer[1]


def _ask_other_python(python: str) -> list[str] | None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from trimtab import _build; "
        f"sys.exit(_build.main() if _build.find_torch() else {_NO_TORCH})"
    )
    answer = subprocess.run([python, "-c", code, str(_paths.PACKAGE_PARENT)], stdout=subprocess.PIPE, text=True)
    if answer.returncode == _NO_TORCH:
        return None
    lines = answer.stdout.strip().splitlines()
    if answer.returncode != 0 or len(lines) < 2:
        raise _build.BuildError(f"no hook library for {python}; its own line above says why")
    return lines[-2:]


def _start(command: list[str], environment: dict[str, str], tend=None) -> int:
    try:
        return _child.run(command, environment, tend=tend)
    except FileNotFoundError:
        _log.say(f"command not found: {command[0]}")
        return EXIT_NOT_FOUND
    except OSError as error:
        _log.say(f"cannot run {shlex.quote(command[0])}: {error.strerror}")
        return EXIT_CANNOT_RUN


def _finish(carrier, folder: Path, own_folder: bool, settings: Settings) -> None:
    """Gives the courier its time, and removes a private folder that nobody needs any more."""
    idle = own_folder and not _ring_dir.rings(folder)  # nobody will open one now
    if carrier is not None and not carrier.wait(_courier.IDLE_SECONDS_MAX if idle else _courier.DELIVER_SECONDS_MAX):
        if idle:
            carrier.stop()
            _ring_dir.remove(folder)
        elif _ring_dir.rings(folder):
            _log.say(
                f"the courier (pid {carrier.pid}) goes on delivering to {settings.server}; "
                "what the server does not take now is kept in its spool"
            )
        return
    if own_folder:
        _ring_dir.remove(folder)


def _program_name(command: list[str]) -> str:
    """Stem of the script or module that is run: `train` for `torchrun --nproc-per-node 2 train.py`."""
    for word, following in zip(command, [*command[1:], ""]):
        if word == "-m" and following and not following.startswith("torch.distributed"):
            return following.rsplit(".", 1)[-1]
        if word.endswith(".py"):
            return Path(word).stem
    return Path(command[0]).name
