"""The whole chain on real jobs: hooks, ring, courier, server, store, command line, a switch on all ranks."""

import csv
import struct
import subprocess
import sys

import pytest
from jobs import EXAMPLES, binary, job_environment
from trimtabd import JOIN_SECONDS, Jobs, Server, wait_for

GPT = EXAMPLES / "train_gpt.py"


def single(value):
    """As float32, the way a loss is stored."""
    return struct.unpack("f", struct.pack("f", value))[0]


@pytest.fixture
def server(tmp_path):
    one = Server(tmp_path / "server")
    yield one
    one.stop()


@pytest.fixture
def start(server, shim, tmp_path):
    jobs = Jobs(server, tmp_path)
    yield lambda name, command, *options: jobs(name, command, "--sample-every", "2", *options)
    jobs.stop()


def two_ranks(port, *words):
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", port, GPT, *words]


def test_every_loss_arrives_exactly(server, start, tmp_path):
    job = start("exact", [sys.executable, GPT, "--steps", 60, "--log", "loss.csv"])
    assert job.wait(JOIN_SECONDS) == 0, (tmp_path / "exact.txt").read_text()
    with open(tmp_path / "loss.csv", newline="") as file:
        expected = {int(row["step"]): [single(float(row["loss"]))] for row in csv.DictReader(file)}
    arrived = server.series("exact", "loss")
    assert {step: [single(v) for v in values] for step, values in arrived.items()} == expected
    assert len(server.series("exact", "grad_norm")) == 60
    assert "h.0.attn" in server.cli("show", "exact")


def test_two_ranks_switch_and_roll_back_at_one_step(server, start, tmp_path):
    job = start("pair", two_ranks(29711, "--steps", 100_000, "--csv", "loss.csv"), "--act")
    wait_for(lambda: server.steps("pair") > 20, JOIN_SECONDS, lambda: (tmp_path / "pair.txt").read_text())
    server.cli("switch", "pair", "--mode", "stabilized", "--layers", "1", "--timeout", "60")
    plan = server.finished_plan("pair", 0)
    assert plan["state"] == "PLAN_STATE_APPLIED", plan
    switched = int(plan["effectiveStep"])
    assert {int(rank["step"]) for rank in plan["ranks"]} == {switched}
    server.cli("rollback", "pair", "--timeout", "60")
    undone = server.finished_plan("pair", 1)
    assert undone["state"] == "PLAN_STATE_APPLIED", undone
    back = int(undone["effectiveStep"])
    wait_for(lambda: server.steps("pair") > back + 5, JOIN_SECONDS)
    job.terminate()
    job.wait(60)
    for rank in ("0", "1"):
        modes = server.series("pair", "attention_mode", "--rank", rank)
        assert {tuple(values) for step, values in modes.items() if step < switched} == {(2.0, 2.0)}
        assert {tuple(values) for step, values in modes.items() if switched <= step < back} == {(2.0, 3.0)}
        assert {tuple(values) for step, values in modes.items() if step >= back} == {(2.0, 2.0)}


def test_a_job_whose_owner_did_not_allow_it_is_not_switched(server, start, tmp_path):
    job = start("own", [sys.executable, GPT, "--steps", 100_000])
    wait_for(lambda: server.steps("own") > 10, JOIN_SECONDS, lambda: (tmp_path / "own.txt").read_text())
    refused = server.cli("switch", "own", "--mode", "stabilized", check=False)
    assert refused.returncode == 1
    assert "--act" in refused.stderr + refused.stdout
    at = server.steps("own")
    wait_for(lambda: server.steps("own") > at + 5, JOIN_SECONDS)
    job.terminate()
    job.wait(60)
    assert {value for values in server.series("own", "attention_mode").values() for value in values} == {2.0}


def test_the_last_steps_of_a_killed_trainer_arrive(server, start, tmp_path):
    job = start("killed", [sys.executable, "-c", KILLED.format(examples=str(EXAMPLES))])
    assert job.wait(JOIN_SECONDS) == 137
    assert sorted(server.series("killed", "loss")) == list(range(1, 31))
    wait_for(lambda: any(event["kind"] == "rank_lost" for event in server.cli("events", "killed", "--json")), 60)


KILLED = """
import os, signal, sys
sys.path.insert(0, {examples!r})
import torch, train_gpt
torch.set_num_threads(1)
model = train_gpt.GPT(2, 32, 4, 16)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    window = torch.randint(256, (2, 17))
    model(window[:, :-1], window[:, 1:]).backward()
    optimizer.step()
    optimizer.zero_grad()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_attach_in_code_under_torchrun(server, shim, tmp_path):
    """No launcher of ours: the ranks share a folder, the first one starts the courier."""
    job = tmp_path / "job.py"
    job.write_text(
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import trimtab, train_gpt\n"
        f"assert trimtab.attach(server={server.address!r}, run='code', sample_every=2)\n"
        "sys.argv = ['train_gpt.py', '--steps', '20']\n"
        "train_gpt.main()\n"
    )
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        "29713",
        str(job),
    ]
    result = subprocess.run(
        launcher,
        env=job_environment(TRIMTAB_COURIER=binary("trimtab-courier")),
        capture_output=True,
        text=True,
        timeout=JOIN_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    for rank in ("0", "1"):
        wait_for(lambda rank=rank: len(server.series("code", "loss", "--rank", rank)) == 20, 60)
