"""Fixtures of the Python tests: the real hook library, a reader of rings, `trimtab run`."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import ROOT, Ring, job_environment


@pytest.fixture(scope="session")
def ring_dump(tmp_path_factory):
    """The reader of rings, built from this tree's C++ once per state of its sources."""
    sources = [ROOT / "tests/e2e/ring_dump/ring_dump.cc", *sorted((ROOT / "agent/core").glob("*.cc"))]
    digest = hashlib.sha256()
    for path in [*sources, *sorted((ROOT / "agent/core").glob("*.h")), ROOT / "agent/include/trimtab/agent.h"]:
        digest.update(path.read_bytes())
    folder = Path(os.environ.get("TRIMTAB_CACHE_DIR") or Path.home() / ".cache/trimtab") / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    binary = folder / f"ring_dump-{digest.hexdigest()[:16]}"
    if not binary.exists():
        built = tmp_path_factory.mktemp("ring_dump") / "ring_dump"
        subprocess.run(
            [
                "g++",
                "-std=c++20",
                "-O1",
                f"-I{ROOT}",
                f"-I{ROOT}/agent/include",
                *map(str, sources),
                "-o",
                str(built),
                "-pthread",
            ],
            check=True,
        )
        partial = binary.with_suffix(f".{os.getpid()}")
        partial.write_bytes(built.read_bytes())
        partial.chmod(0o755)
        partial.rename(binary)
    return binary


@pytest.fixture(scope="session")
def read_rings(ring_dump):
    """read_rings(folder) -> list of Ring, by rank."""

    def read(folder):
        paths = sorted(Path(folder).glob("*.ring"))
        if not paths:
            return []
        output = subprocess.run([str(ring_dump), *map(str, paths)], check=True, capture_output=True, text=True).stdout
        rings = []
        for line in output.splitlines():
            entry = json.loads(line)
            if "identity" in entry:
                rings.append(Ring(entry["identity"]))
            elif "info" in entry:
                rings[-1].info = entry["info"]
            else:
                rings[-1].steps.append(entry)
        return sorted(rings, key=lambda ring: ring.identity["rank"])

    return read


@pytest.fixture(scope="session")
def shim():
    """Path of the hook library for this Python's torch; built when it is not cached."""
    from trimtab import _build

    return _build.library()


@pytest.fixture
def trimtab_run(shim, tmp_path):
    """trimtab_run(command, *options, rings=folder, **environment): `trimtab run` without a courier, as completed."""

    def run(command, *options, rings=None, timeout=600, **environment):
        rings = rings or tmp_path / "rings"
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "trimtab",
                "run",
                "--no-courier",
                "--ring-dir",
                str(rings),
                "--run",
                "test",
                *options,
                "--",
                *map(str, command),
            ],
            env=job_environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path,
        )

    return run
