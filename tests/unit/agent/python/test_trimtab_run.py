"""`trimtab run` around commands that need no torch: arguments, exit status, signals, the job's environment."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import job_environment
from trimtab import _build, _launch, _ring_dir


def trimtab(*arguments, **environment):
    """Runs the command line with a stand-in for the library's path: nothing here loads it."""
    environment.setdefault("TRIMTAB_SHIM", "/etc/passwd")
    return subprocess.run(
        [sys.executable, "-m", "trimtab", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=job_environment(**environment),
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a command is missing"),
        (["run"], "training command is missing"),
        (["run", "--"], "training command is missing"),
        (["run", "--server", "nowhere", "--", "true"], "HOST:PORT"),
        (["run", "--run", "a\nb", "--", "true"], "cannot be printed"),
        (["run", "--run", "x" * 10_000, "--", "true"], "10000 bytes"),
        (["run", "--mode", "fast", "--", "true"], "invalid choice"),
        (["run", "--emulate-storage", "e9m9", "--", "true"], "invalid choice"),
        (["run", "--sample-every", "0", "--", "true"], "sample-every"),
        (["run", "--sample-every", "x", "--", "true"], "invalid int"),
        (["run", "--overhead-budget", "2", "--", "true"], "overhead-budget"),
        (["run", "--unknown", "--", "true"], "--unknown"),
        (["start"], "invalid choice"),
        (["attach"], "PID"),
        (["attach", "x"], "invalid int"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(arguments, words):
    result = trimtab(*arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_attach_says_what_to_do_instead():
    result = trimtab("attach", str(os.getpid()))
    assert result.returncode == 2
    assert "trimtab run" in result.stderr and "trimtab.attach()" in result.stderr


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_exit_status_is_the_jobs(status):
    assert trimtab("run", "--no-courier", "--", "sh", "-c", f"exit {status}").returncode == status


def test_a_signal_that_ends_the_job_becomes_128_plus_n():
    assert trimtab("run", "--no-courier", "--", "sh", "-c", "kill -KILL $$").returncode == 137


def test_streams_and_arguments_pass_unchanged():
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "trimtab",
            "run",
            "--no-courier",
            "--",
            "sh",
            "-c",
            'cat; echo "$1"; echo err >&2',
            "x",
            "a 'b' $c",
        ],
        input="in\n",
        capture_output=True,
        text=True,
        env=job_environment(TRIMTAB_SHIM="/etc/passwd"),
    )
    assert result.stdout == "in\na 'b' $c\n"
    assert "err\n" in result.stderr


def test_a_command_that_does_not_exist():
    result = trimtab("run", "--no-courier", "--", "no-such-program")
    assert result.returncode == 127
    assert "command not found: no-such-program" in result.stderr


def test_a_command_that_cannot_run(tmp_path):
    (tmp_path / "data").write_text("x")
    result = trimtab("run", "--no-courier", "--", str(tmp_path / "data"))
    assert result.returncode in (126, 127)
    assert "trimtab:" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_job(number, tmp_path):
    job = tmp_path / "job.py"
    job.write_text(
        "import signal, sys, time\n"
        "def stop(number, frame):\n"
        "    print('got', number, flush=True)\n"
        "    sys.exit(40 + number)\n"
        f"signal.signal({int(number)}, stop)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "trimtab", "run", "--no-courier", "--", sys.executable, str(job)],
        stdout=subprocess.PIPE,
        text=True,
        env=job_environment(TRIMTAB_SHIM="/etc/passwd"),
        start_new_session=True,
    )
    assert launcher.stdout.readline() == "ready\n"
    launcher.send_signal(number)
    output, _ = launcher.communicate(timeout=30)
    assert output == f"got {int(number)}\n"
    assert launcher.returncode == 40 + number


def test_the_job_starts_with_default_signal_handling():
    code = (
        "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), "
        "int(open('/proc/self/status').read().split('SigIgn:')[1].split()[0], 16) & 0x7fffffff)"
    )
    direct = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=job_environment()).stdout
    assert trimtab("run", "--no-courier", "--", sys.executable, "-c", code).stdout == direct


def test_settings_reach_the_job_and_the_ring_folder_is_private_and_removed():
    code = (
        "import json, os, stat; d = os.environ['TRIMTAB_RING_DIR']; "
        "print(json.dumps([dict(os.environ), oct(stat.S_IMODE(os.stat(d).st_mode))]))"
    )
    result = trimtab(
        "run",
        "--no-courier",
        "--run",
        "r/1",
        "--act",
        "--sample-every",
        "5",
        "--emulate-storage",
        "e5m2",
        "--",
        sys.executable,
        "-c",
        code,
    )
    environment, mode = json.loads(result.stdout)
    assert mode == "0o700"
    assert environment["TRIMTAB_RUN"] == "r/1"
    assert environment["TRIMTAB_ACT"] == "1"
    assert environment["TRIMTAB_SAMPLE_EVERY"] == "5"
    assert environment["TRIMTAB_EMULATE_STORAGE"] == "e5m2"
    assert "fault injector on" in result.stderr
    assert not Path(environment["TRIMTAB_RING_DIR"]).exists()


def test_flags_win_over_the_environment():
    code = (
        "import os; print(os.environ['TRIMTAB_RUN'], os.environ['TRIMTAB_EMULATE_STORAGE'], os.environ['TRIMTAB_MODE'])"
    )
    result = trimtab(
        "run",
        "--no-courier",
        "--run",
        "flag",
        "--",
        sys.executable,
        "-c",
        code,
        TRIMTAB_RUN="variable",
        TRIMTAB_EMULATE_STORAGE="bf16",
        TRIMTAB_MODE="paper",
    )
    assert result.stdout == "flag bf16 paper\n"


def test_disabled_changes_nothing():
    code = (
        "import os, sys; "
        "print('TRIMTAB_ATTACH' in os.environ, any('_inject' in p for p in sys.path), 'trimtab' in sys.modules)"
    )
    result = trimtab("run", "--", sys.executable, "-c", code, TRIMTAB_DISABLE="1")
    assert result.stdout == "False False False\n"
    assert result.stderr == ""


def test_without_a_compiler_the_job_is_not_started_and_the_message_helps(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "trimtab", "run", "--no-courier", "--", sys.executable, "-c", "print('ran')"],
        capture_output=True,
        text=True,
        env=job_environment(TRIMTAB_CACHE_DIR=tmp_path, PATH="/nonexistent"),
    )
    assert result.returncode == _launch.EXIT_NO_LIBRARY
    assert "apt-get install g++" in result.stderr and "TRIMTAB_DISABLE=1" in result.stderr
    assert result.stdout == ""


def test_without_a_courier_the_job_runs_and_a_warning_says_so(tmp_path):
    result = trimtab("run", "--server", "127.0.0.1:1", "--", "sh", "-c", "echo ran", TRIMTAB_COURIER=tmp_path / "none")
    assert result.returncode == 0
    assert result.stdout == "ran\n"
    assert "warning" in result.stderr and "TRIMTAB_COURIER" in result.stderr


def test_a_courier_gets_its_arguments_and_time_to_deliver(tmp_path):
    courier, record = tmp_path / "courier", tmp_path / "record"
    courier.write_text(f'#!/bin/sh\necho "$@" > {record}\nsleep 1\necho delivered >> {record}\n')
    courier.chmod(0o755)
    result = trimtab("run", "--server", "127.0.0.1:7071", "--", "true", TRIMTAB_COURIER=courier)
    assert result.returncode == 0
    words, delivered = record.read_text().splitlines()
    assert "--server 127.0.0.1:7071 --ring-dir /" in words
    assert "--exit-when-idle --parent-pid" in words
    assert delivered == "delivered"


def test_a_courier_that_waits_for_a_first_ring_ends_with_the_job(tmp_path):
    courier, record = tmp_path / "courier", tmp_path / "record"
    courier.write_text(
        f"#!/bin/sh\ntrap 'echo told >> {record}; kill $!; exit' TERM\necho $4 > {record}\nsleep 60 &\nwait\n"
    )
    courier.chmod(0o755)
    start = time.monotonic()
    result = trimtab("run", "--server", "127.0.0.1:7071", "--", "true", TRIMTAB_COURIER=courier)
    assert result.returncode == 0 and time.monotonic() - start < 9, result.stderr
    deadline = time.monotonic() + 10
    while "told" not in record.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not Path(record.read_text().splitlines()[0]).exists()


def test_a_courier_that_was_done_is_started_again_for_a_later_ring(tmp_path):
    courier, record, rings = tmp_path / "courier", tmp_path / "record", tmp_path / "rings"
    courier.write_text(f'#!/bin/sh\necho "life $(ls $4)" >> {record}\n')
    courier.chmod(0o755)
    rings.mkdir()
    (rings / "old.ring").write_text("")
    job = ["sh", "-c", f"sleep 1; touch {rings}/new.ring; sleep 2"]
    result = trimtab("run", "--ring-dir", str(rings), "--", *job, TRIMTAB_COURIER=courier)
    assert result.returncode == 0, result.stderr
    assert record.read_text().split() == ["life", "old.ring", "life", "new.ring", "old.ring"]


def test_a_killed_courier_is_started_again_and_one_that_gave_up_is_not(tmp_path):
    courier, record = tmp_path / "courier", tmp_path / "record"
    courier.write_text(f'#!/bin/sh\necho "life $$" >> {record}\n[ $(wc -l < {record}) = 3 ] && exit 3\nkill -9 $$\n')
    courier.chmod(0o755)
    result = trimtab("run", "--server", "127.0.0.1:7071", "--", "sleep", "4", TRIMTAB_COURIER=courier)
    assert result.returncode == 0
    assert len(record.read_text().splitlines()) == 3
    assert result.stderr.count("ended by signal 9; it is started again") == 2


def test_a_terminal_interrupt_does_not_reach_the_courier(tmp_path):
    courier, record = tmp_path / "courier", tmp_path / "record"
    courier.write_text(f"#!/bin/sh\necho started > {record}\nsleep 2\necho delivered >> {record}\n")
    courier.chmod(0o755)
    launcher = subprocess.Popen(
        [sys.executable, "-m", "trimtab", "run", "--", "sleep", "60"],
        start_new_session=True,
        env=job_environment(TRIMTAB_SHIM="/etc/passwd", TRIMTAB_COURIER=courier),
    )
    deadline = time.monotonic() + 30
    while not (record.exists() and record.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    os.killpg(launcher.pid, signal.SIGINT)
    assert launcher.wait(timeout=30) == 130
    assert record.read_text() == "started\ndelivered\n"


def test_stale_ring_folders_of_dead_launchers_are_swept(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    stale = tmp_path / f"trimtab-{os.getuid()}-{gone.pid}-abcd"
    alive = tmp_path / f"trimtab-{os.getuid()}-{os.getpid()}-abcd"
    other = tmp_path / f"trimtab-{os.getuid()}-{gone.pid}-shared.txt"
    for folder in (stale, alive, other):
        folder.mkdir()
    _ring_dir.sweep(tmp_path)
    assert not stale.exists() and alive.exists() and other.exists()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "train"),
        (["torchrun", "--nproc-per-node", "2", "a/b/finetune.py", "--x", "other.py"], "finetune"),
        (["python", "-m", "pkg.job"], "job"),
        (["python", "-m", "torch.distributed.run", "x.py"], "x"),
        (["/opt/bin/mytrainer", "--fast"], "mytrainer"),
    ],
)
def test_name_of_the_program(command, name):
    assert _launch._program_name(command) == name


def test_interpreter_behind_a_script(tmp_path):
    script = tmp_path / "tool"
    script.write_text(f"#!{sys.executable}\nprint(1)\n")
    script.chmod(0o755)
    assert _launch.interpreter_of([str(script)]) == sys.executable
    assert _launch.interpreter_of([sys.executable, "x.py"]) == sys.executable
    assert _launch.interpreter_of(["sh"]) == sys.executable
    assert _launch.interpreter_of(["no-such-program"]) == sys.executable


def test_another_python_is_asked_for_its_torch(tmp_path):
    link = tmp_path / "python3"
    link.symlink_to(os.path.realpath(sys.executable))  # outside the virtual environment: no torch there
    answer = _launch.library_for(str(link))
    assert answer is None or answer[1] != _build.identity(_build.find_torch())


def test_build_prints_the_library_and_its_torch(shim):
    result = subprocess.run(
        [sys.executable, "-m", "trimtab", "build"], capture_output=True, text=True, env=job_environment()
    )
    assert result.stdout.splitlines() == [str(shim), _build.identity(_build.find_torch())]


def test_a_ring_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    result = trimtab("run", "--no-courier", "--ring-dir", str(tmp_path / "file" / "rings"), "--", "true")
    assert result.returncode == 2
    assert "--ring-dir" in result.stderr and result.stderr.count("\n") == 1
