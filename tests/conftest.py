"""Shared by the Python tests: the package from the source tree, the real hook library, a reader of rings."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: small tensors, and machines with other work

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_PARENT = ROOT / "agent" / "python"
EXAMPLES = PACKAGE_PARENT / "examples"
sys.path.insert(0, str(PACKAGE_PARENT))
# What a shell may carry must not change what is tested; these two say only where the hook library comes from.
KEPT = ("TRIMTAB_CACHE_DIR", "TRIMTAB_SHIM_SRC")
for name in [name for name in os.environ if name.startswith("TRIMTAB_") and name not in KEPT]:
    del os.environ[name]


class Ring:
    """One ring as read: identity, info (RankInfo) and the records, oldest first."""

    def __init__(self, identity):
        self.identity, self.info, self.steps = identity, {}, []

    def series(self, metric):
        """(step, value) of every record that carries the metric."""
        return [(record["step"], record["metrics"][metric]) for record in self.steps if metric in record["metrics"]]

    def values(self, metric):
        return [value for _, value in self.series(metric)]

    @property
    def coverage(self):
        return self.info.get("coverage", {})

    @property
    def layer_names(self):
        return [layer.get("name") for layer in self.info.get("layers", [])]


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
        subprocess.run(["g++", "-std=c++20", "-O1", f"-I{ROOT}", f"-I{ROOT}/agent/include", *map(str, sources), "-o",
                        str(built), "-pthread"], check=True)
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


def job_environment(**extra):
    """An environment for child processes: this package on the path, one thread, nothing of trimtab's but `extra`."""
    environment = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith("TRIMTAB_")}
    environment.update(PYTHONPATH=str(PACKAGE_PARENT), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
                       **{name: str(value) for name, value in extra.items()})
    return environment


@pytest.fixture
def trimtab_run(shim, tmp_path):
    """trimtab_run(command, *options, rings=folder, **environment) -> CompletedProcess of `trimtab run`, without a courier."""

    def run(command, *options, rings=None, timeout=600, **environment):
        rings = rings or tmp_path / "rings"
        return subprocess.run(
            [sys.executable, "-m", "trimtab", "run", "--no-courier", "--ring-dir", str(rings), "--run", "test", *options,
             "--", *map(str, command)],
            env=job_environment(**environment), capture_output=True, text=True, timeout=timeout, cwd=tmp_path,
        )

    return run
