"""A real trimtabd in a temporary folder, real runs fed to it over the wire, and the real command line against it."""

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
READY_SECONDS = 60
BUILD = os.environ.get("TRIMTAB_BUILD_DIR", "")


def binary(name: str) -> Path:
    """The newest executable of that name in $TRIMTAB_BUILD_DIR, else in any build folder of the tree."""
    roots = [Path(BUILD)] if BUILD else sorted((ROOT / "build").glob("*"))
    places = {"trimtabd": "server", "trimtab": "server/cli", "trimtab_feeder": "tests/e2e/page"}
    found = [path for root in roots for path in (root / places[name] / name, root / "bin" / name) if os.access(path, os.X_OK)]
    assert found, f"{name} is not built; run `cmake --build --preset dev`"
    return max(found, key=lambda path: path.stat().st_mtime)


class LiveServer:
    """trimtabd on free loopback ports."""

    def __init__(self, folder: Path, *flags: str, listen="127.0.0.1:0", http="127.0.0.1:0"):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        self.log = folder / "trimtabd.log"
        self.process = subprocess.Popen(
            [binary("trimtabd"), "--listen", listen, "--http", http, "--data-dir", folder / "store", "--ready-file", ready,
             *flags], stdout=open(self.log, "ab"), stderr=subprocess.STDOUT)
        deadline = time.monotonic() + READY_SECONDS
        while not (ready.exists() and ready.stat().st_size):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"trimtabd was not ready within {READY_SECONDS} s"
            time.sleep(0.05)
        addresses = json.loads(ready.read_text())
        self.grpc = addresses.get("grpc") or addresses["listen"]
        self.http = addresses["http"]
        self.url = f"http://{self.http}"

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(30)

    def get(self, path: str, **parameters):
        url = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)

    def state(self, run: str):
        return self.get(f"/api/v1/runs/{urllib.parse.quote(run, safe='')}/state")

    def feed(self, run="synthetic", *flags: str, wait=True, **options):
        """Feeds a run; options as feeder flags (steps=300 → --steps 300). Waits until every step is durable."""
        command = [binary("trimtab_feeder"), "--server", self.grpc, "--run", run, *flags]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if wait:
            line = process.stdout.readline()
            assert line.startswith("fed "), process.communicate()[1]
        return process

    def trimtab(self, *arguments: str, timeout=60, **environment):
        """The command line; its server comes from the environment, as for a user."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
        return subprocess.run([binary("trimtab"), *arguments], capture_output=True, text=True, timeout=timeout,
                              env={**clean, "TRIMTAB_SERVER": self.grpc, **environment})
