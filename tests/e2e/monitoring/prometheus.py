"""A real Prometheus in a temporary folder, and what tests ask of it."""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

from trimtabd import free_port

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy/prometheus/rules/trimtab.yml"


class Prometheus:
    """Scrapes `target` once a second with the repository's own configuration and rules."""

    def __init__(self, folder: Path, target: str):
        config = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
        config = config.replace("127.0.0.1:7071", target).replace("_interval: 5s", "_interval: 1s")
        assert target in config, "prometheus.yml no longer names trimtabd's default address"
        (folder / "rules").mkdir()
        rules = re.sub(r"\[30s\]", "[6s]", RULES.read_text())  # as many scrapes as with the intervals of operations
        assert rules != RULES.read_text()
        (folder / "rules" / RULES.name).write_text(rules)
        (folder / "prometheus.yml").write_text(config)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address={self.url[7:]}"],
            stdout=subprocess.DEVNULL, stderr=open(folder / "prometheus.log", "wb"))
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(self.url + "/-/ready", timeout=2).close()
                return
            except OSError:
                assert self.process.poll() is None, (folder / "prometheus.log").read_text()
                assert time.monotonic() < deadline, "Prometheus was not ready within 30 s"
                time.sleep(0.2)

    def stop(self):
        self.process.terminate()
        self.process.wait(20)

    def get(self, path: str, **parameters):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            document = json.load(error)
        assert document["status"] == "success", document
        return document["data"]

    def instant(self, expression: str):
        return self.get("query", query=expression)["result"]

    def range(self, expression: str, begin: float, end: float, step="1s"):
        return self.get("query_range", query=expression, start=begin, end=end, step=step)["result"]


def expand(expression: str) -> str:
    """Fills in Grafana's variables as "All" and a short interval."""
    for name, value in (("$__rate_interval", "10s"), ("$__interval", "5s"), ("$job", ".+"), ("$instance", ".+"),
                        ("$run", ".+")):
        expression = expression.replace(name, value)
    assert "$" not in expression, f"unknown variable in {expression}"
    return expression


def metric_names(expression: str) -> set[str]:
    return set(re.findall(r"\btrimtab_[a-z0-9_]+\b", expression))
