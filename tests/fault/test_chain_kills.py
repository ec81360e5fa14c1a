"""kill -9 of server, courier and trainer of a real job at random moments.

Training goes on while the server or the courier is dead; nothing that was committed to a ring is lost; everything arrives
once, with its own value. TRIMTAB_FAULT_ROUNDS sets how often each is killed (default 20), TRIMTAB_FAULT_SEED the moments.
"""

import csv
import os
import random
import signal
import struct
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from jobs import EXAMPLES
from trimtabd import JOIN_SECONDS, Jobs, Server, free_port, wait_for

ROUNDS = int(os.environ.get("TRIMTAB_FAULT_ROUNDS", "20"))
SEED = int(os.environ.get("TRIMTAB_FAULT_SEED", str(time.time_ns())))
SMALL = ["--layers", 1, "--context", 16, "--batch", 4, "--log-every", 100_000]
AWAY_STEPS = 30  # steps that the job must train while somebody is dead


def single(value):
    """As float32, the way a loss is stored; all NaN are one."""
    return struct.unpack("f", struct.pack("f", value))[0]


def losses(path):
    with open(path, newline="") as file:
        return {int(row["step"]): [single(float(row["loss"]))] for row in csv.DictReader(file) if row["loss"]}


def trained(path):
    """Lines of the job's own log, which it flushes line by line."""
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


@pytest.fixture
def chance():
    print(f"TRIMTAB_FAULT_SEED={SEED}")
    return random.Random(SEED)


@pytest.fixture
def server(tmp_path):
    one = Server(tmp_path / "server", listen=f"127.0.0.1:{free_port()}")
    yield one
    one.stop()


@pytest.fixture
def start(server, shim, tmp_path):
    jobs = Jobs(server, tmp_path)
    yield jobs
    jobs.stop()


def endless(start, name, tmp_path):
    """A job that trains until it is told to stop, and its loss log."""
    log = tmp_path / f"{name}.csv"
    program = [sys.executable, "-c", STOPPABLE.format(examples=str(EXAMPLES), stop=str(tmp_path / "stop"))]
    job = start(name, [*program, "--steps", 1_000_000, "--log", log, *SMALL])
    wait_for(lambda: trained(log) > 5, JOIN_SECONDS, lambda: start.output(name))
    return job, log


# The example job as it is, at some 100 steps a second, so that its ring holds what it writes while no courier lives;
# between two steps it looks for the file that ends it.
STOPPABLE = """
import os, sys, time
sys.path.insert(0, {examples!r})
import torch, train_gpt
clip = torch.nn.utils.clip_grad_norm_
def clip_or_end(*args, **kwargs):
    if os.path.exists({stop!r}):
        sys.exit(0)
    time.sleep(0.008)
    return clip(*args, **kwargs)
torch.nn.utils.clip_grad_norm_ = clip_or_end
train_gpt.main()
"""


def stop_and_compare(job, log, server, name, tmp_path):
    """Ends the job between two steps; every loss it logged must be in the store, once and bitwise."""
    (tmp_path / "stop").touch()
    assert job.wait(JOIN_SECONDS) == 0
    expected = losses(log)
    wait_for(lambda: server.steps(name) >= max(expected), 60, lambda: (server.steps(name), max(expected)))
    arrived = {step: [single(v) for v in values] for step, values in server.series(name, "loss").items()}
    assert {step: values for step, values in arrived.items() if step in expected} == expected
    assert all(len(values) == 1 for values in arrived.values())
    with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=20) as answer:
        metrics = answer.read().decode()
    assert "\ntrimtab_ingest_ring_dropped_steps_total 0\n" in metrics
    assert "\ntrimtab_ingest_spool_dropped_steps_total 0\n" in metrics


def test_server_killed(server, start, tmp_path, chance):
    job, log = endless(start, "steady", tmp_path)
    for _ in range(ROUNDS):
        time.sleep(chance.uniform(0, 0.7))
        durable = server.steps("steady")
        server.kill()
        at = trained(log)
        wait_for(lambda at=at: trained(log) >= at + AWAY_STEPS, 60, lambda: "training waits for the server")
        server.start()
        assert server.steps("steady") >= durable
    stop_and_compare(job, log, server, "steady", tmp_path)


def couriers_of(launcher):
    """pids of the running couriers that this launcher started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            name = (folder / "comm").read_text().strip()
        except OSError:
            continue
        if name == "trimtab-courier" and int(stat[1]) == launcher and stat[0] != "Z":
            found.append(int(folder.name))
    return found


def test_courier_killed(server, start, tmp_path, chance):
    job, log = endless(start, "carried", tmp_path)
    killed = []
    for _ in range(ROUNDS):
        time.sleep(chance.uniform(0, 0.7))
        wait_for(lambda: couriers_of(job.pid), 90, lambda: start.output("carried"))
        (courier,) = couriers_of(job.pid)
        os.kill(courier, signal.SIGKILL)
        killed.append(courier)
        at = trained(log)
        wait_for(lambda at=at: trained(log) >= at + AWAY_STEPS, 60, lambda: "training waits for the courier")
    wait_for(lambda: server.steps("carried") >= trained(log) - 10 * AWAY_STEPS, 90)
    stop_and_compare(job, log, server, "carried", tmp_path)
    assert len(set(killed)) == ROUNDS


def test_trainer_killed(server, start, tmp_path, chance):
    for number in range(ROUNDS):
        name = f"dead{number}"
        log = tmp_path / f"{name}.csv"
        pid_file = tmp_path / f"{name}.pid"
        program = [sys.executable, "-c", TOLD.format(examples=str(EXAMPLES), pid=str(pid_file))]
        job = start(name, [*program, "--steps", 1_000_000, "--log", log, *SMALL])
        wait_for(lambda log=log: trained(log) > 5, JOIN_SECONDS, lambda name=name: start.output(name))
        time.sleep(chance.uniform(0, 0.5))
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        assert job.wait(JOIN_SECONDS) == 128 + signal.SIGKILL
        expected = losses(log)
        # The killed write may have cut the last line, and the step after the last logged one may have been committed.
        expected.pop(max(expected))
        wait_for(lambda name=name, last=max(expected): server.steps(name) >= last, 60)
        arrived = {step: [single(v) for v in values] for step, values in server.series(name, "loss").items()}
        assert expected.items() <= arrived.items()
        assert sorted(arrived) == list(range(min(arrived), max(arrived) + 1))
        wait_for(lambda name=name: "rank_lost" in server.cli("events", name), 60)


TOLD = """
import os, sys
sys.path.insert(0, {examples!r})
open({pid!r}, "w").write(str(os.getpid()))
import train_gpt
train_gpt.main()
"""
