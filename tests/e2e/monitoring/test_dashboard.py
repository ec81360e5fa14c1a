"""The run dashboard as text: the conventions that a reader of dashboards relies on. No Grafana runs here."""

import json
import re

import pytest

from prometheus import ROOT

DASHBOARDS = sorted((ROOT / "dashboards/grafana").glob("*.json"))
KNOWN_UNITS = {"none", "s", "ops", "percentunit", "short", "bytes"}


def queries(dashboard):
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def dashboard(request):
    return json.loads(request.param.read_text())


def test_there_is_a_dashboard():
    assert DASHBOARDS


def test_identity(dashboard):
    assert dashboard["uid"] and dashboard["title"] and dashboard["description"] and dashboard["tags"]
    assert dashboard["editable"] is False
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_every_panel_says_what_it_shows(dashboard):
    for panel in dashboard["panels"]:
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in KNOWN_UNITS, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}" and panel["targets"], panel["title"]


def test_variables(dashboard):
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for name in ("job", "instance", "run"):
        assert variables[name]["multi"] and variables[name]["allValue"] == ".+" and variables[name]["refresh"] == 2


def test_every_query_uses_the_variables(dashboard):
    for title, expression in queries(dashboard):
        for name in ("job", "instance", "run"):
            assert f'{name}=~"${name}"' in expression, f"{title}: {expression}"
        for counter in re.findall(r"(\w+_total)\b", expression):
            assert "rate(" in expression or "sum by" in expression, f"{title}: {counter} is a counter"
        for window in re.findall(r"rate\([^[]*\[([^\]]+)\]", expression):
            assert window == "$__rate_interval", title


def test_panels_do_not_overlap(dashboard):
    taken = {}
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] >= 0 and grid["x"] + grid["w"] <= 24, panel["title"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies over {taken.get((x, y))}"
                taken[x, y] = panel["title"]


def test_provisioning_names_what_exists():
    provider = (ROOT / "deploy/grafana/provisioning/dashboards/trimtab.yaml").read_text()
    source = (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml").read_text()
    assert "path: /var/lib/grafana/dashboards/trimtab" in provider and "type: prometheus" in source


def test_every_rule_has_a_runbook():
    rules = (ROOT / "deploy/prometheus/rules/trimtab.yml").read_text()
    alerts, books = re.findall(r"- alert: (\w+)", rules), re.findall(r"runbook_url: (\S+)", rules)
    assert alerts and len(alerts) == len(books)
    for name, book in zip(alerts, books):
        text = (ROOT / book).read_text()
        assert text.startswith(f"# {name}\n"), f"{book} is not the runbook of {name}"
    tested = (ROOT / "deploy/prometheus/tests/trimtab_test.yml").read_text()
    for name in alerts:
        assert f"alertname: {name}" in tested, f"{name} has no rule test"
