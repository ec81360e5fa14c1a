"""promtool's own word on configuration, rules and rule tests."""

import subprocess

from prometheus import ROOT


def promtool(*words):
    return subprocess.run(["promtool", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_configuration():
    done = promtool("check", "config", "deploy/prometheus/prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules():
    done = promtool("check", "rules", "deploy/prometheus/rules/trimtab.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_rule_tests():
    done = promtool("test", "rules", "deploy/prometheus/tests/trimtab_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broken_threshold_is_noticed(tmp_path):
    """The rule tests would fail if the rule stopped firing."""
    rules = (ROOT / "deploy/prometheus/rules/trimtab.yml").read_text()
    assert "> 200" in rules
    (tmp_path / "rules").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "rules/trimtab.yml").write_text(rules.replace("> 200", "> 2000"))
    (tmp_path / "tests/t.yml").write_text((ROOT / "deploy/prometheus/tests/trimtab_test.yml").read_text())
    assert promtool("test", "rules", str(tmp_path / "tests/t.yml")).returncode != 0
