"""The command line against a real server: what it prints, its JSON, its exit statuses."""

import csv
import io
import json
import os
import signal
import socket
import subprocess
import time

import pytest
from jobs import binary

OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3


def documents(done):
    assert done.returncode == OK, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def one_line(text):
    return text.count("\n") == 1 and text.endswith("\n")


# --- reading -----------------------------------------------------------------------------------------------------


def test_runs(fed, hostile):
    done = fed.trimtab("runs")
    assert done.returncode == OK
    line = next(line for line in done.stdout.splitlines() if line.startswith("alpha"))
    assert "finished" in line and "120" in line
    runs = {run["run"]: run for run in documents(fed.trimtab("--json", "runs"))[0]["runs"]}
    assert set(runs) == {"alpha", hostile}
    assert runs["alpha"]["lastStep"] == "120" and runs["alpha"]["layers"] == 4


def test_nothing_hostile_reaches_the_terminal(fed, hostile):
    for command in (["runs"], ["show", "beta"], ["events"], ["coverage", "beta"], ["top", "beta"], ["doctor"]):
        done = fed.trimtab(*command)
        assert "\x1b" not in done.stdout and "\u202e" not in done.stdout, command
    assert "\\u202e" in fed.trimtab("runs").stdout


def test_show(fed):
    text = fed.trimtab("show", "alpha").stdout
    state = documents(fed.trimtab("show", "alpha", "--json"))[0]
    assert "finished" in text and "4 observe" in text and "blocks.3.attention" in text and "synthetic-host" in text
    logit = next(block for block in state["latest"]
                 if block["metric"] == next(m["id"] for m in state["metrics"] if m["name"] == "max_attention_logit"))
    assert logit["shape"] == [4, 8] and len(logit["float32"]) == 32
    assert f"{max(logit['float32'][:8]):.4g}" in text


def test_coverage(fed):
    text = fed.trimtab("coverage", "alpha").stdout
    assert "3 calls of aten::_scaled_dot_product_flash_attention_for_cpu: dropout" in text


def test_top_prints_once_without_a_terminal(fed):
    done = fed.trimtab("top", "alpha")
    assert done.returncode == OK and "loss history" in done.stdout and "\x1b" not in done.stdout


def test_top_draws_on_a_terminal_and_puts_it_back(fed):
    import pty

    master, slave = pty.openpty()
    process = subprocess.Popen([binary("trimtab"), "--server", fed.grpc, "top", "alpha", "--interval", "0.1"],
                               stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    while b"loss history" not in seen:
        seen += os.read(master, 65536)
    process.send_signal(signal.SIGWINCH)
    os.write(master, b"q")
    while True:
        try:
            more = os.read(master, 65536)
        except OSError:
            break
        seen += more
        if not more:
            break
    assert process.wait(20) == OK
    assert seen.startswith(b"\x1b[?1049h") and seen.rstrip().endswith(b"\x1b[?1049l")


# --- series ------------------------------------------------------------------------------------------------------


def test_series_table_csv_and_json_tell_the_same(fed):
    rows = list(csv.DictReader(io.StringIO(fed.trimtab("series", "alpha", "--csv").stdout)))
    assert [int(row["step"]) for row in rows] == list(range(1, 121))
    points = [point for chunk in documents(fed.trimtab("series", "alpha", "--json")) for point in chunk["points"]]
    assert [float(row["value"]) for row in rows] == pytest.approx([p["block"]["float32"][0] for p in points], rel=1e-6)
    table = fed.trimtab("series", "alpha").stdout.splitlines()
    assert len(table) <= 25 and table[1].split()[0] == "1" and table[-1].split()[0] == "120"
    assert table[1].split()[-1] == f"{float(rows[0]['value']):.4g}"


def test_series_of_one_head_is_a_column_of_the_block(fed):
    everything = list(csv.DictReader(io.StringIO(
        fed.trimtab("series", "alpha", "--metric", "max_attention_logit", "--from", "50", "--to", "52", "--csv").stdout)))
    assert len(everything) == 3 * 4 * 8
    wanted = [row["value"] for row in everything if row["layer"] == "2" and row["head"] == "5"]
    one = list(csv.DictReader(io.StringIO(fed.trimtab(
        "series", "alpha", "--metric", "max_attention_logit", "--from", "50", "--to", "52", "--layer", "2", "--head", "5",
        "--csv").stdout)))
    assert [row["value"] for row in one] == wanted and {(row["layer"], row["head"]) for row in one} == {("2", "5")}


def test_series_tables_fold_heads_or_show_them(fed):
    layers = fed.trimtab("series", "alpha", "--metric", "max_attention_logit").stdout.splitlines()[0].split()
    assert layers == ["STEP", "TIME", "L0", "L1", "L2", "L3"]
    heads = fed.trimtab("series", "alpha", "--metric", "max_attention_logit", "--layer", "1").stdout.splitlines()[0].split()
    assert heads[2:] == [f"H{i}" for i in range(8)]


def test_series_keeps_what_is_not_finite(fed):
    text = fed.trimtab("series", "beta", "--metric", "max_attention_logit", "--layer", "0", "--csv").stdout
    assert ",0,0,nan" in text and ",0,1,inf" in text


@pytest.mark.parametrize("flags, status, words", [
    (["--metric", "los"], FAILED, "loss"),
    (["--layer", "0"], FAILED, "no layers"),
    (["--metric", "spectral_norm_q", "--layer", "9"], FAILED, "9"),
    (["--metric", "max_attention_logit", "--layer", "9"], FAILED, "there are 4"),
    (["--metric", "max_attention_logit", "--layer", "9", "--json"], FAILED, "there are 4"),
    (["--to", "99999999999999999999"], USAGE, "too large"),
    (["--rank", "7"], FAILED, "rank"),
    (["--head", "0"], USAGE, "--layer"),
    (["--from", "5", "--to", "2"], USAGE, "--from"),
    (["--csv", "--json"], USAGE, "exclude"),
    (["--points", "x"], USAGE, "--points"),
    (["--from", "-1"], USAGE, "--from"),
])
def test_series_refuses_with_the_cause(fed, flags, status, words):
    done = fed.trimtab("series", "alpha", *flags)
    assert done.returncode == status and one_line(done.stderr) and words in done.stderr, done.stderr


def test_a_closed_pipe_ends_it_quietly(fed):
    done = subprocess.run(f"{binary('trimtab')} --server {fed.grpc} series alpha --metric max_attention_logit --csv | head -n 1",
                          shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("step,") and done.stderr == ""


# --- events ------------------------------------------------------------------------------------------------------


def test_events(fed):
    text = fed.trimtab("events", "alpha").stdout
    assert "run_started" in text
    kinds = [event["kind"] for event in documents(fed.trimtab("events", "alpha", "--json"))]
    assert kinds[0] == "run_started" and kinds == [line.split()[3] for line in text.splitlines()]
    assert fed.trimtab("events", "alpha", "--kind", "nothing").stdout == "No events.\n"


def test_events_follow_shows_new_ones(server):
    follower = subprocess.Popen([binary("trimtab"), "--server", server.grpc, "events", "--follow", "--json"],
                                stdout=subprocess.PIPE, text=True)
    try:
        server.feed("later", steps=3).wait(30)
        events = iter(lambda: json.loads(follower.stdout.readline()), None)
        assert next(event for event in events if event["run"] == "later")["kind"] == "run_started"
    finally:
        follower.terminate()
        follower.wait(10)


def test_events_follow_ends_with_a_server_that_is_killed(server):
    follower = subprocess.Popen([binary("trimtab"), "--server", server.grpc, "events", "--follow"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "policy_loaded" in follower.stdout.readline()
    server.kill()
    assert follower.wait(30) == UNREACHABLE
    server.start()  # at the same address, for the fixture to stop
    said = follower.stderr.read()
    assert one_line(said) and f"the connection to {server.grpc} ended" in said


# --- control -----------------------------------------------------------------------------------------------------


@pytest.fixture
def acting(server):
    process = server.feed("job", "--act", wait=False, steps=100000, rate=100, ranks=2, runaway_step=100000)
    deadline = time.monotonic() + 30
    while True:
        runs = server.get("/api/v1/runs")["runs"]
        if runs and runs[0]["ranks_connected"] == 2 and runs[0]["last_step"] > 5:
            break
        assert time.monotonic() < deadline, runs
        time.sleep(0.1)
    yield server
    process.terminate()
    process.wait(10)


def modes(server):
    return server.state("job")["modes"]


def wait_for(condition, explain=lambda: None, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)


def test_switch_plans_and_rollback(acting):
    done = acting.trimtab("switch", "--mode", "stabilized", "--layers", "0,2-3", "--reason", "by hand")
    assert done.returncode == OK, done.stderr
    assert "stabilized in layers 0, 2, 3" in done.stdout and "2 ranks" in done.stdout
    assert " applied: " in done.stdout and "waiting" in done.stderr
    assert documents(acting.trimtab("plans", "--json"))[0]["plans"][0]["state"] == "PLAN_STATE_APPLIED"
    wait_for(lambda: modes(acting) == ["stabilized", "observe", "stabilized", "stabilized"])
    assert "applied" in acting.trimtab("plans", "job").stdout
    plan = documents(acting.trimtab("plans", "--json"))[0]["plans"][0]
    assert plan["reason"] == "by hand" and "@" in plan["actor"]
    done = acting.trimtab("rollback", "job")
    assert done.returncode == OK, done.stderr
    wait_for(lambda: modes(acting) == ["observe"] * 4)


def test_switch_without_waiting(acting):
    done = acting.trimtab("--json", "switch", "job", "--mode", "stabilized", "--no-wait")
    assert documents(done)[0]["mode"] == "KERNEL_MODE_STABILIZED"
    wait_for(lambda: modes(acting) == ["stabilized"] * 4, lambda: acting.trimtab("plans").stdout)


def test_a_refused_switch_says_why_and_fails(server):
    process = server.feed("job", "--act", "--refuse", wait=False, steps=100000, rate=100, ranks=2)
    try:
        wait_for(lambda: server.get("/api/v1/runs")["runs"] and server.get("/api/v1/runs")["runs"][0]["last_step"] > 5)
        done = server.trimtab("switch", "job", "--mode", "stabilized")
        assert done.returncode == FAILED
        assert "refused" in done.stderr and "shadow comparison differs by 0.3" in done.stderr
        assert modes(server) == ["observe"] * 4
    finally:
        process.terminate()
        process.wait(10)


def test_a_job_without_act_is_not_switched(fed):
    done = fed.trimtab("switch", "alpha", "--mode", "stabilized")
    assert done.returncode == FAILED and one_line(done.stderr), done.stderr


@pytest.mark.parametrize("arguments, words", [
    (["switch", "alpha"], "--mode"),
    (["switch", "alpha", "--mode", "fast"], "not one of native, observe, stabilized, paper"),
    (["switch", "alpha", "--mode", "paper", "--layers", "1-x"], "--layers"),
    (["switch", "alpha", "--mode", "paper", "--deadline", "0"], "--deadline"),
    (["approve", "alpha", "--plan", "-1"], "--plan"),
])
def test_wrong_control_usage_is_one_line(fed, arguments, words):
    done = fed.trimtab(*arguments)
    assert done.returncode == USAGE and one_line(done.stderr) and words in done.stderr, done.stderr


def test_approve_without_a_proposal_fails(fed):
    done = fed.trimtab("approve", "alpha")
    assert done.returncode == FAILED and one_line(done.stderr), done.stderr


# --- policy ------------------------------------------------------------------------------------------------------


def test_policy_check_needs_no_server(fed, tmp_path):
    shown = fed.trimtab("policy", "show", "--yaml")
    assert shown.returncode == OK, shown.stderr
    good = tmp_path / "policy.yaml"
    good.write_text(shown.stdout)
    done = fed.trimtab("policy", "check", str(good), TRIMTAB_SERVER="127.0.0.1:1")
    assert done.returncode == OK and f"{good}: ok" in done.stdout, done.stderr
    bad = tmp_path / "bad.yaml"
    bad.write_text(shown.stdout + "\nnonsense: 1\n")
    done = fed.trimtab("policy", "check", str(bad))
    line = shown.stdout.count("\n") + 2
    assert done.returncode == FAILED and f"{bad}:{line}:" in done.stderr and "nonsense" in done.stderr
    answer = json.loads(fed.trimtab("--json", "policy", "check", str(bad)).stdout)
    assert answer["ok"] is False and answer["problems"][0]["line"] == line


def test_policy_check_of_no_file_is_wrong_usage(fed, tmp_path):
    done = fed.trimtab("policy", "check", str(tmp_path / "none.yaml"))
    assert done.returncode == USAGE and one_line(done.stderr)
    done = fed.trimtab("policy", "check", str(tmp_path))
    assert done.returncode == USAGE and one_line(done.stderr) and "cannot read" in done.stderr


# --- choosing a run and a server ----------------------------------------------------------------------------------


def test_a_unique_beginning_names_a_run(fed):
    assert fed.trimtab("show", "al").returncode == OK
    done = fed.trimtab("show")
    assert done.returncode == FAILED and "alpha" in done.stderr and one_line(done.stderr)
    done = fed.trimtab("show", "gamma")
    assert done.returncode == FAILED and "alpha" in done.stderr and one_line(done.stderr)


def test_an_exact_name_wins_over_a_beginning_and_one_run_needs_no_name(server):
    assert server.feed("a", steps=3).wait(30) == 0
    assert "finished" in server.trimtab("show").stdout
    assert server.feed("ab", steps=3).wait(30) == 0
    assert documents(server.trimtab("--json", "show", "a"))[0]["summary"]["run"] == "a"


@pytest.mark.parametrize("command", [["runs"], ["show", "x"], ["series", "x"], ["events"], ["plans"], ["top"],
                                     ["switch", "x", "--mode", "paper"], ["policy", "show"], ["coverage", "x"]])
def test_no_server_is_status_3_and_one_line(fed, command):
    done = fed.trimtab("--server", "127.0.0.1:1", *command)
    assert done.returncode == UNREACHABLE and one_line(done.stderr) and "127.0.0.1:1" in done.stderr, done.stderr


def test_an_empty_server(server):
    assert "No run has reported yet" in server.trimtab("runs").stdout
    assert [event["kind"] for event in documents(server.trimtab("--json", "events"))] == ["policy_loaded"]
    assert "No switch" in server.trimtab("plans").stdout
    done = server.trimtab("show")
    assert done.returncode == FAILED and "no run" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["runs", "--what"], ["--timeout", "0", "runs"], ["policy"]])
def test_wrong_usage_is_status_2_and_one_line(fed, arguments):
    done = fed.trimtab(*arguments)
    assert done.returncode == USAGE and one_line(done.stderr) and done.stdout == "", done.stderr


@pytest.mark.parametrize("arguments, words", [
    (["nonsense"], "unknown command 'nonsense'; there are: run runs show"),
    (["policy", "nonsense"], "unknown command 'nonsense'; there are: check show"),
    (["--nonsense"], "unknown option '--nonsense'"),
    (["--json", "run"], "trimtab run --help"),
    (["--server", "localhost", "runs"], "HOST:PORT"),
    (["--server", "localhost:70700", "runs"], "HOST:PORT"),
    (["--server=", "--json", "runs"], "HOST:PORT"),
    (["--timeout", "nan", "runs"], "seconds from 0.1 to 3600"),
])
def test_wrong_usage_names_what_is_right(fed, arguments, words):
    done = fed.trimtab(*arguments)
    assert done.returncode == USAGE and one_line(done.stderr) and words in done.stderr, done.stderr


def test_a_server_that_stays_silent_is_named_as_such():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = subprocess.run([binary("trimtab"), "--server", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.5",
                               "runs"], capture_output=True, text=True)
        assert done.returncode == UNREACHABLE and one_line(done.stderr), done.stderr


def test_help_and_version(fed):
    assert "switch" in fed.trimtab("--help").stdout
    assert "--lead-steps" in fed.trimtab("switch", "--help").stdout
    assert fed.trimtab("version").stdout.startswith("trimtab ")


# --- doctor and launch --------------------------------------------------------------------------------------------


def test_doctor(fed):
    done = fed.trimtab("doctor")
    lines = done.stdout.splitlines()
    for words in ("ok    server: ", "ok    health: serving", "ok    version: ", "ok    page: http://", "ok    clock: ",
                  "ok    run alpha: finished", "/dev/shm: ", "cache: "):
        assert any(line.startswith(words) or words in line for line in lines), (words, done.stdout)
    findings = [json.loads(line) for line in fed.trimtab("--json", "doctor").stdout.splitlines()]
    assert all(finding["fix"] for finding in findings if finding["verdict"] != "ok")
    assert done.returncode == (FAILED if any(finding["verdict"] == "fail" for finding in findings) else OK)


def test_doctor_without_a_server_fails_and_says_how_to_mend_it(fed):
    done = fed.trimtab("--server", "127.0.0.1:1", "doctor")
    assert done.returncode == FAILED
    assert "fail  server: " in done.stdout and "--server" in done.stdout


def test_run_is_handed_to_the_python_package(fed, tmp_path):
    stub = tmp_path / "package" / "trimtab"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("")
    (stub / "__main__.py").write_text("import os, sys; print(sys.argv[1:], os.environ['PYTHONPATH'].split(':')[0])")
    done = fed.trimtab("--server", "h:1", "run", "--act", "--", "python", "train.py", "--json",
                       TRIMTAB_PYTHONPATH=str(tmp_path / "package"))
    assert done.returncode == OK, done.stderr
    expected = ["run", "--server", "h:1", "--act", "--", "python", "train.py", "--json"]
    assert done.stdout == f"{expected} {tmp_path / 'package'}\n"


def test_run_finds_the_package_of_the_source_tree(fed):
    done = fed.trimtab("run", "--help")
    assert done.returncode == OK and "--act" in done.stdout, done.stderr


def test_a_missing_python_is_named(fed):
    done = fed.trimtab("run", "--", "true", TRIMTAB_PYTHON="/nonexistent/python")
    assert done.returncode == FAILED and one_line(done.stderr) and "TRIMTAB_PYTHON" in done.stderr
