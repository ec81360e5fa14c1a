"""Where things lie, a clean environment for child processes, and rings as read, for the Python tests."""

import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: small tensors, and machines with other work

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_PARENT = ROOT / "agent" / "python"
EXAMPLES = PACKAGE_PARENT / "examples"
if str(PACKAGE_PARENT) not in sys.path:
    sys.path.insert(0, str(PACKAGE_PARENT))
# What a shell may carry must not change what is tested; these say only where built things lie.
KEPT = ("TRIMTAB_CACHE_DIR", "TRIMTAB_SHIM_SRC", "TRIMTAB_BUILD_DIR")
for _name in [name for name in os.environ if name.startswith("TRIMTAB_") and name not in KEPT]:
    del os.environ[_name]


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


def job_environment(**extra):
    """An environment for child processes: this package on the path, one thread, nothing of trimtab's but `extra`."""
    environment = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith("TRIMTAB_")}
    environment.update(
        PYTHONPATH=str(PACKAGE_PARENT),
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
        **{name: str(value) for name, value in extra.items()},
    )
    return environment


def binary(name):
    """The newest executable of that name in $TRIMTAB_BUILD_DIR, else in any build folder of the tree."""
    places = {
        "trimtabd": "server",
        "trimtab": "server/cli",
        "trimtab-courier": "agent/courier",
        "trimtab_feeder": "tests/e2e/page",
    }
    build = os.environ.get("TRIMTAB_BUILD_DIR")
    roots = [Path(build)] if build else sorted((ROOT / "build").glob("*"))
    found = [
        path for root in roots for path in (root / places[name] / name, root / "bin" / name) if os.access(path, os.X_OK)
    ]
    assert found, f"{name} is not built; run: cmake --preset dev && cmake --build --preset dev"
    return max(found, key=lambda path: path.stat().st_mtime)
