"""Finds or builds the hook library (libtrimtab_torch.so) for the torch that is installed.

The library is compiled once per (sources, torch, compiler, flags) and kept in the cache folder. Several ranks that need
it at once build it once: a file lock lets the first one through, a rename publishes the result. torch is not imported
for this, so that a launcher can build before any rank starts.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from . import _paths

LIBRARY = "libtrimtab_torch.so"
# Translation units and the headers beside them, relative to the source root. Sorted, so that the hash is stable.
UNIT_FOLDERS = ("agent/core", "agent/torch", "kernels/cpu")
HEADER_FOLDERS = ("agent/include", "kernels/include", *UNIT_FOLDERS)
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread", "-DNDEBUG", "-w")
TORCH_MINIMUM = (2, 9)
UNITS_MAX = 200
COMPILE_SECONDS_MAX = 900
LOG_BYTES_MAX = 256 * 1024
LIBRARIES_KEPT = 12


class BuildError(RuntimeError):
    """Why there is no hook library: one line, with what to do."""


@dataclasses.dataclass(frozen=True)
class Torch:
    """An installed torch, described without importing it."""

    version: str
    folder: Path  # .../site-packages/torch
    cxx11_abi: int  # value of _GLIBCXX_USE_CXX11_ABI

    @property
    def release(self) -> tuple[int, int]:
        major, minor = re.match(r"(\d+)\.(\d+)", self.version).groups()
        return int(major), int(minor)


def find_torch() -> Torch | None:
    """The torch of this interpreter, or None. Cost: reads one small file; older wheels are asked in a subprocess."""
    loaded = sys.modules.get("torch")
    if loaded is not None and hasattr(loaded, "__version__") and hasattr(loaded, "_C"):
        abi = int(bool(getattr(loaded._C, "_GLIBCXX_USE_CXX11_ABI", True)))
        return Torch(str(loaded.__version__), Path(loaded.__file__).parent, abi)
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin:
        return None
    folder = Path(spec.origin).parent
    try:
        match = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", (folder / "version.py").read_text(encoding="utf-8"))
    except OSError:
        return None
    if not match:
        return None
    torch = Torch(match.group(1), folder, 1)
    if torch.release < (2, 7):  # both ABIs were shipped; only the library knows
        code = "import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))"
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "TRIMTAB_DISABLE": "1"}
        )
        torch = dataclasses.replace(torch, cxx11_abi=int(answer.stdout.strip() == "1"))
    return torch


def library(torch: Torch | None = None, progress=sys.stderr) -> Path:
    """Path of the library for `torch` (default: this interpreter's), built when it is not in the cache.

    TRIMTAB_SHIM names a ready one and skips everything, unless TRIMTAB_SHIM_FOR says that it was made for another torch
    (a job may start Pythons of other environments). Raises BuildError. Cost when cached: hashing the sources
    (about a megabyte) and one stat; when not, tens of seconds of compiler time on all cores.
    """
    torch = torch or find_torch()
    ready = os.environ.get("TRIMTAB_SHIM")
    if ready and os.environ.get("TRIMTAB_SHIM_FOR", "") in ("", identity(torch)):
        if not os.path.isfile(ready):
            raise BuildError(f"TRIMTAB_SHIM={ready} is not a file; unset it to have the library built")
        return Path(ready)
    if torch is None:
        raise BuildError(f"torch is not installed for {sys.executable}; install it or use the job's own Python")
    if torch.release < TORCH_MINIMUM:
        raise BuildError(f"torch {torch.version} is older than 2.9, the oldest that the hooks support")
    root = _paths.shim_source_root()
    if root is None:
        raise BuildError("the sources of the hook library were not found; set TRIMTAB_SHIM_SRC to their folder")
    units = sorted(path for folder in UNIT_FOLDERS for path in (root / folder).glob("*.cc"))
    if not units or len(units) > UNITS_MAX:
        raise BuildError(f"{root} holds {len(units)} source files of the hook library; expected 1 to {UNITS_MAX}")
    compiler = find_compiler()
    folder = _cache_folder() / _fingerprint(root, torch, compiler)
    target = folder / LIBRARY
    if target.is_file():
        with contextlib.suppress(OSError):
            os.utime(folder)  # the time of last use, for _prune
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder / "lock", progress):
        if not target.is_file():
            _build(root, units, torch, compiler, target, progress)
            _prune(folder.parent)
    return target


def _prune(cache: Path) -> None:
    """Removes the libraries that were not used for longest, beyond LIBRARIES_KEPT. A process that has one loaded keeps
    it."""

    def last_use(folder: Path) -> float:
        try:
            return folder.stat().st_mtime
        except OSError:
            return 0.0

    folders = sorted((path.parent for path in cache.glob(f"torch-*/{LIBRARY}")), key=last_use, reverse=True)
    for folder in folders[LIBRARIES_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def identity(torch: Torch | None) -> str:
    """One line that tells installed torches apart; "" for none."""
    return f"{torch.version} {os.path.realpath(torch.folder)}" if torch else ""


def find_compiler() -> list[str]:
    """$CXX (may carry arguments), g++, c++ or clang++. Raises BuildError with the package to install."""
    named = os.environ.get("CXX")
    if named:
        command = shlex.split(named)
        if command and shutil.which(command[0]):
            return command
        raise BuildError(f"CXX={named} is not a compiler on this machine; unset CXX or install it")
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError(
        "no C++ compiler to build the hook library with; install one (Debian, Ubuntu: apt-get install g++; "
        "Fedora, RHEL: dnf install gcc-c++) or name one in CXX"
    )


def _cache_folder() -> Path:
    """The cache root, or a private folder in the temporary directory when it cannot be written."""
    root = _paths.cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        if os.access(root, os.W_OK | os.X_OK):
            return root
    except OSError:
        pass
    fallback = Path(tempfile.gettempdir()) / f"trimtab-cache-{os.getuid()}"
    try:
        fallback.mkdir(mode=0o700, exist_ok=True)
        status = os.lstat(fallback)
    except OSError as error:
        raise BuildError(f"no cache folder: {root} and {fallback} cannot be written ({error.strerror})") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise BuildError(f"{fallback} belongs to somebody else; set TRIMTAB_CACHE_DIR to a folder of yours")
    return fallback


def _fingerprint(root: Path, torch: Torch, compiler: list[str]) -> str:
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout.split("\n", 1)[0]
    digest = hashlib.sha256()
    for text in (torch.version, str(torch.folder), str(torch.cxx11_abi), " ".join(compiler), version, *FLAGS):
        digest.update(text.encode() + b"\0")
    files = {
        path
        for folder in HEADER_FOLDERS
        for pattern in ("*.h", "**/*.h", "*.cc", "**/*.inc")
        for path in (root / folder).glob(pattern)
    }
    for path in sorted(files):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"torch-{re.sub('[^0-9A-Za-z.]', '-', torch.version)}-{digest.hexdigest()[:20]}"


@contextlib.contextmanager
def _lock(path: Path, progress):
    """Exclusive among processes. File systems without locks (some NFS) go on unlocked: the rename is atomic anyway."""
    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                print("trimtab: another process builds the hook library; waiting for it", file=progress, flush=True)
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Progress:
    """Counts finished units on one line of a terminal, or on a line at the start and the end of anything else."""

    def __init__(self, stream, title: str, total: int):
        self._stream, self._title, self._total, self._done = stream, title, total, 0
        self._terminal = bool(getattr(stream, "isatty", lambda: False)())
        self._guard = threading.Lock()
        self._show("\r" if self._terminal else "\n")

    def advance(self) -> None:
        with self._guard:
            self._done += 1
            if self._terminal:
                self._show("\n" if self._done == self._total else "\r")

    def _show(self, end: str) -> None:
        print(f"trimtab: {self._title}  {self._done}/{self._total}", end=end, file=self._stream, flush=True)


def _build(root: Path, units: list[Path], torch: Torch, compiler: list[str], target: Path, progress) -> None:
    cache = [shutil.which("ccache")] if shutil.which("ccache") and "ccache" not in compiler[0] else []
    includes = [
        root,
        root / "agent/include",
        root / "kernels/include",
        torch.folder / "include",
        torch.folder / "include/torch/csrc/api/include",
    ]
    common = [
        *FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={torch.cxx11_abi}",
        *(f"-I{path}" for path in includes[:3]),
        *(f"-isystem{path}" for path in includes[3:]),
    ]
    started = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="build-", dir=target.parent))
    report = _Progress(
        progress, f"building the hook library for torch {torch.version} (once, about 40 s)…", len(units) + 1
    )
    try:

        def compile_unit(numbered):
            index, unit = numbered
            output = work / f"{index}-{unit.stem}.o"
            _command([*cache, *compiler, *common, "-c", str(unit), "-o", str(output)], unit.name, target.parent)
            report.advance()
            return output

        with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1)) as pool:
            objects = list(pool.map(compile_unit, enumerate(units)))
        libraries = torch.folder / "lib"
        linked = work / LIBRARY
        _command(
            [
                *compiler,
                "-shared",
                "-pthread",
                *map(str, objects),
                "-o",
                str(linked),
                f"-L{libraries}",
                "-ltorch_cpu",
                "-ltorch",
                "-lc10",
                f"-Wl,-rpath,{libraries}",
            ],
            "linking",
            target.parent,
        )
        os.replace(linked, target)
        report.advance()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"trimtab: hook library ready after {time.monotonic() - started:.0f} s: {target}", file=progress, flush=True)


def _command(command: list[str], what: str, folder: Path) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS_MAX)
        code, output = result.returncode, result.stdout + result.stderr
    except subprocess.TimeoutExpired:
        code, output = -1, f"no end after {COMPILE_SECONDS_MAX} s"
    except OSError as error:
        code, output = -1, str(error)
    if code == 0:
        return
    log = folder / "failed.log"
    with contextlib.suppress(OSError):
        log.write_text(f"$ {shlex.join(command)}\n{output[:LOG_BYTES_MAX]}\nexit status {code}\n", encoding="utf-8")
    first = next((line.strip() for line in output.splitlines() if "error" in line), output.strip().split("\n")[0])
    raise BuildError(f"building the hook library failed at {what}: {first[:300]}; command and output: {log}")


def main() -> int:
    """Builds for this interpreter and prints path and identity of its torch, on two lines: how the launcher builds for
    another Python."""
    try:
        print(library(), identity(find_torch()), sep="\n")
    except BuildError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 1
    return 0
