"""The hook library, loaded into the real torch, with rings in temporary folders."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "agent" / "python"))

PREPARE, COMMIT, ABORT = 1, 2, 3
PREPARED, COMMITTED, APPLIED, REFUSED, ABORTED = 1, 2, 3, 4, 5
MODES = {"native": 1, "observe": 2, "stabilized": 3, "paper": 4}


def pytest_configure(config):
    os.environ.pop("TRIMTAB_DISABLE", None)
    os.environ.pop("TRIMTAB_EMULATE_STORAGE", None)


@pytest.fixture(scope="session")
def library():
    from trimtab import _build

    path = _build.library()
    torch.ops.load_library(str(path))
    return path


@pytest.fixture(scope="session")
def ring_tool():
    sources = [Path(__file__).with_name("ring_tool.cc"), *sorted((ROOT / "agent/core").glob("*.cc"))]
    headers = [*(ROOT / "agent/core").glob("*.h"), ROOT / "agent/include/trimtab/agent.h"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in [*sources, *sorted(headers)])).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"trimtab-ring-tool-{os.getuid()}-{digest}"
    if not target.exists():
        part = target.with_suffix(f".{os.getpid()}")
        subprocess.run(
            ["g++", "-std=c++20", "-O1", f"-I{ROOT}", f"-I{ROOT}/agent/include", *map(str, sources), "-o", str(part)],
            check=True,
        )
        part.rename(target)
    return target


class Shim:
    """One started session; what it wrote is read back through the ring reader that the courier uses."""

    def __init__(self, ring_dir, ring_tool):
        self.ops = torch.ops.trimtab
        self.ring_dir = Path(ring_dir)
        self._tool = ring_tool

    def start(self, **options):
        answer = json.loads(self.ops.start(json.dumps({"run": "test", "ring_dir": str(self.ring_dir), **options})))
        assert answer["ok"], answer["error"]
        return self

    def stop(self):
        self.ops.stop()

    def status(self):
        return json.loads(self.ops.status())

    def coverage(self):
        return self.status()["coverage"]

    def passed(self):
        """Calls passed by, by reason."""
        result = {}
        for row in self.coverage()["passed_by"]:
            result[row["reason"]] = result.get(row["reason"], 0) + row["calls"]
        return result

    def ring(self):
        rings = sorted(self.ring_dir.glob("*.ring"))
        assert len(rings) == 1, rings
        return rings[0]

    def lines(self):
        out = subprocess.run([self._tool, self.ring(), "dump"], check=True, capture_output=True, text=True).stdout
        return [json.loads(line) for line in out.splitlines()]

    def steps(self):
        """Step records: {"step": n, metric: scalar or nested lists}."""
        result = []
        for line in self.lines():
            if "step" not in line:
                continue
            record = {"step": line.pop("step"), "time": line.pop("time")}
            for name, block in line.items():
                data = torch.tensor(block["data"], dtype=torch.float64)
                record[name] = data.item() if not block["shape"] else data.view(block["shape"])
            result.append(record)
        return result

    def info(self):
        return [line["info"] for line in self.lines() if "info" in line][-1]

    def acks(self):
        return [(line["ack"], line["plan"], line["at"], line["reason"]) for line in self.lines() if "ack" in line]

    def command(self, plan, phase, mode, effective=0, deadline=0, layers=()):
        arguments = [plan, phase, MODES[mode], effective, deadline, *layers]
        subprocess.run([self._tool, self.ring(), "command", *map(str, arguments)], check=True)


@pytest.fixture
def shim(library, ring_tool, tmp_path):
    session = Shim(tmp_path / "rings", ring_tool)
    session.ring_dir.mkdir(mode=0o700)
    yield session
    session.stop()
    session.ops.enter_layer(-1)
