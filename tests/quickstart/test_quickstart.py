"""deploy/quickstart.sh as a newcomer runs it: trains twice, and the protected run is saved.

The build folder is the one of these tests; that the script builds its own is proven on a bare machine
(docs/benchmarks.md). The second call must not build again, and answers to wrong flags must be one line.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from jobs import EXAMPLES, ROOT, binary, job_environment
from trimtab import loss_curve

SCRIPT = ROOT / "deploy/quickstart.sh"
WORK = ROOT / "build/quickstart"
BUILD = os.environ.get("TRIMTAB_BUILD_DIR", ROOT / "build/dev")
KEYS = {
    "explosion_step_unprotected",
    "alarm_step",
    "switch_step",
    "final_loss_protected",
    "final_loss_unprotected",
    "max_logit_unprotected",
    "max_logit_protected",
}


def quickstart(*flags, timeout=3000):
    return subprocess.run(
        ["bash", str(SCRIPT), "--work", str(WORK), "--build", str(BUILD), *map(str, flags)],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The whole demonstration with seed 0: (completed process, result of the last line, result in the file)."""
    file = tmp_path_factory.mktemp("quickstart") / "result.json"
    done = quickstart("--seed", 0, "--json", file)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done, json.loads(done.stdout.splitlines()[-1]), json.loads(file.read_text())


def test_the_last_line_and_the_file_hold_the_same_result(first):
    _, line, file = first
    assert line == file
    assert KEYS <= line.keys()


def test_the_unprotected_run_explodes_long_after_the_alarm(first):
    _, result, _ = first
    assert result["explosion_step_unprotected"] is not None
    assert result["explosion_step_unprotected"] - result["alarm_step"] >= 1000
    assert result["max_logit_unprotected"] > 1e4


@pytest.fixture(scope="module")
def stabilized_from_the_start(tmp_path_factory):
    """Mean of the last 200 losses of the same job that ran the stabilized kernel from its first step."""
    folder = tmp_path_factory.mktemp("stabilized")
    python = WORK / "venv/bin/python" if (WORK / "venv/bin/python").exists() else sys.executable
    done = subprocess.run(
        [python, "-m", "trimtab", "run", "--no-courier", "--mode", "stabilized", "--emulate-storage", "e5m2", "--"]
        + [python, EXAMPLES / "train_gpt.py", "--seed", "0", "--steps", "5000", "--log", folder / "loss.csv"],
        env=job_environment(),
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr
    losses = loss_curve.read_csv(folder / "loss.csv")
    assert len(losses) == 5000
    return loss_curve.final_loss(losses)


def test_the_protected_run_is_saved(first, stabilized_from_the_start):
    _, result, _ = first
    assert result["explosion_step_protected"] is None
    assert result["alarm_step"] <= result["switch_step"] < result["explosion_step_unprotected"]
    assert result["final_loss_protected"] == pytest.approx(stabilized_from_the_start, rel=0.01)
    assert result["final_loss_unprotected"] > 1.2 * result["final_loss_protected"]


def test_the_picture_shows_both_curves_the_alarm_and_the_switch(first):
    done, _, _ = first
    picture = [line for line in done.stdout.splitlines() if re.match(r"\s*\d+\.\d\d \|", line)]
    assert len(picture) == 14
    assert all(any(mark in line for line in picture) for mark in "xo!|")
    assert "live page:" in done.stdout and "terminal:" in done.stdout


def test_a_kept_server_answers_after_a_second_call_without_a_build(first):
    built = binary("trimtabd").stat().st_mtime_ns
    done = quickstart("--seed", 7, "--steps", 200, "--keep")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    pid = int(re.search(r"trimtabd keeps running \(pid (\d+)\)", done.stdout).group(1))
    try:
        assert binary("trimtabd").stat().st_mtime_ns == built
        page = re.search(r"live page:\s+(http://\S+)", done.stdout).group(1)
        with urllib.request.urlopen(page, timeout=20) as answer:
            assert b"trimtab" in answer.read()
    finally:
        os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--sed", "1"], "--sed"),
        (["--seed"], "--seed needs a value"),
        (["--seed", "x"], "--seed takes a whole number, not 'x'"),
        (["--steps", "5"], "--steps must be at least 200"),
        (["--json", "/nowhere/result.json"], "/nowhere/result.json"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(flags, says):
    done = quickstart(*flags, timeout=60)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_help_says_what_it_installs():
    done = quickstart("--help", timeout=60)
    assert done.returncode == 0
    assert "Debian packages" in done.stdout
