"""Debian's Prometheus scrapes a real trimtabd that two real training runs report to: one protected, one not. Every query of
the dashboard and every rule is executed, and the numbers are compared with the store's."""

import json
import math
import re
import subprocess
import sys
import time

import pytest
from jobs import EXAMPLES, PACKAGE_PARENT, binary, job_environment
from prometheus import ROOT, RULES, Prometheus, expand, metric_names
from trimtabd import Server

STEPS = 3300  # past alarm and switch (about 2,000) of this configuration, before the explosion (about 3,750)


class Live:
    def __init__(self, folder):
        self.folder, self.begin = folder, time.time()
        self.server = Server(folder / "server")
        self.prometheus = Prometheus(folder, self.server.http)
        self.train()
        time.sleep(2.5)  # two more scrapes see the end
        self.end = time.time()

    def train(self):
        # The `trimtab` command reaches the Python launcher, as for a user.
        environment = job_environment(
            TRIMTAB_PYTHON=sys.executable, TRIMTAB_COURIER=binary("trimtab-courier"), TRIMTAB_PYTHONPATH=PACKAGE_PARENT
        )
        jobs = [
            subprocess.Popen(
                [binary("trimtab"), "run", "--server", self.server.address, "--run", name, "--emulate-storage", "e5m2",
                 *flags, "--", sys.executable, EXAMPLES / "train_gpt.py", "--steps", str(STEPS), "--seed", "0"],
                env=environment, stdout=open(self.folder / f"{name}.log", "wb"), stderr=subprocess.STDOUT)
            for name, flags in (("protected", ["--act"]), ("watched", []))
        ]
        for job in jobs:
            assert job.wait(900) == 0, "".join(path.read_text() for path in self.folder.glob("*ed.log"))

    def last_block(self, run, metric):
        return self.server.cli("series", run, "--metric", metric, "--json")[-1]["points"][-1]["block"]

    def stop(self):
        self.prometheus.stop()
        self.server.stop()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    live = Live(tmp_path_factory.mktemp("live"))
    yield live
    live.stop()


def finite(result):
    return [float(value) for series in result for _, value in series["values"] if math.isfinite(float(value))]


def dashboard_queries():
    found = []
    for path in sorted((ROOT / "dashboards/grafana").glob("*.json")):
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                found.append(pytest.param(target["expr"], id=panel["title"]))
        for annotation in dashboard["annotations"]["list"]:
            found.append(pytest.param(annotation["expr"], id=f"annotation {annotation['name']}"))
    return found


@pytest.mark.parametrize("expression", dashboard_queries())
def test_every_dashboard_query_has_data(live, expression):
    assert finite(live.prometheus.range(expand(expression), live.begin, live.end)), expression


def test_a_renamed_metric_would_be_noticed(live):
    query = expand('max by (run, layer) (trimtab_max_attention_logits{job=~"$job"})')
    assert not live.prometheus.range(query, live.begin, live.end)


def test_every_rule_is_healthy(live):
    groups = live.prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == RULES.read_text().count("- alert:")
    for rule in rules:
        assert rule["health"] == "ok", rule


def test_every_metric_of_the_rules_exists(live):
    for name in metric_names(RULES.read_text()):
        assert live.prometheus.range(name, live.begin, live.end), name


def test_the_runaway_rule_fired_and_the_refusal_too(live):
    fired = {(series["metric"]["alertname"], series["metric"].get("run"))
             for series in live.prometheus.range('ALERTS{alertstate="firing"}', live.begin, live.end)}
    assert ("TrimtabLogitRunaway", "watched") in fired
    assert ("TrimtabSwitchRefused", "watched") in fired
    assert ("TrimtabSwitchRefused", "protected") not in fired


@pytest.mark.parametrize("run", ["protected", "watched"])
def test_values_equal_the_store(live, run):
    def last(metric, **labels):
        selector = ",".join(f'{name}="{value}"' for name, value in {"run": run, **labels}.items())
        result = live.prometheus.range(f"{metric}{{{selector}}}", live.begin, live.end)
        assert len(result) == 1, (metric, labels, result)
        return float(result[0]["values"][-1][1])

    assert last("trimtab_last_step") == STEPS
    for exported, stored in (("trimtab_loss", "loss"), ("trimtab_grad_norm", "grad_norm"),
                             ("trimtab_learning_rate", "learning_rate")):
        assert last(exported) == pytest.approx(float(live.last_block(run, stored)["float32"][0]), rel=1e-6), exported
    logits = live.last_block(run, "max_attention_logit")
    layers, heads = logits["shape"]
    values = [float(value) for value in logits["float32"]]
    for layer in range(layers):
        of_layer = values[layer * heads:(layer + 1) * heads]
        assert last("trimtab_max_attention_logit", layer=layer) == pytest.approx(max(of_layer), rel=1e-6)
    norms = live.last_block(run, "spectral_norm_q")["float32"]
    for layer, norm in enumerate(norms):
        assert last("trimtab_spectral_norm", layer=layer, matrix="q") == pytest.approx(float(norm), rel=1e-6)


def test_exported_metrics_pass_promtool(live):
    import urllib.request

    with urllib.request.urlopen(f"http://{live.server.http}/metrics", timeout=20) as answer:
        text = answer.read()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    # Lint remarks (exit 3) are printed for the reader; text that cannot be parsed is an error.
    assert done.returncode in (0, 3), done.stderr.decode()
    assert b"error while linting" not in done.stderr and not re.search(rb"text format parsing error", done.stderr)
