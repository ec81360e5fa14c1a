"""The rank's side of a two-phase switch, over the ring's control area."""

import pytest
import torch

import models
from conftest import ABORT, ABORTED, APPLIED, COMMIT, COMMITTED, PREPARE, PREPARED, REFUSED


class Job:
    def __init__(self, shim, model=None):
        self.shim, self.model = shim, model or models.Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)

    def run(self, steps):
        return models.train(self.model, steps, self.optimizer, shim=self.shim)


@pytest.mark.parametrize("storage", ["", "e5m2"])
def test_switch_at_the_agreed_step(shim, storage):
    shim.start(act=True, emulate_storage=storage)
    job = Job(shim)
    job.run(3)  # steps 1 to 3; step 4 is next
    shim.command(7, PREPARE, "stabilized")
    job.run(2)  # taken at the boundary before step 5 (taken after step 4), compared in step 5
    assert shim.acks() == [(PREPARED, 7, 6, "")]
    shim.command(7, COMMIT, "stabilized", effective=9)
    job.run(1)
    assert shim.acks()[1:] == [(COMMITTED, 7, 7, "")]
    job.run(4)  # steps 7 to 10
    assert shim.acks()[2:] == [(APPLIED, 7, 9, "")]
    modes = {step["step"]: step["attention_mode"].tolist() for step in shim.steps()}
    assert modes == {**{n: [2, 2] for n in range(1, 9)}, **{n: [3, 3] for n in (9, 10)}}
    assert shim.status()["modes"] == ["stabilized"] * 2 and shim.status()["default_mode"] == "stabilized"
    shim.stop()
    assert shim.info()["modes"] == ["KERNEL_MODE_STABILIZED"] * 2


def test_the_switch_changes_exactly_the_agreed_step(shim):
    # Losses are those of a run in observe mode up to the step, and differ from it right after.
    shim.start(act=True, emulate_storage="e5m2")
    plain = Job(shim).run(10)
    shim.stop()
    shim.ring().unlink()
    shim.start(act=True, emulate_storage="e5m2")
    job = Job(shim)
    losses = job.run(2)
    shim.command(1, PREPARE, "stabilized")
    losses += models.train(job.model, 2, job.optimizer, shim=shim, seed=2)
    shim.command(1, COMMIT, "stabilized", effective=7)
    losses += models.train(job.model, 6, job.optimizer, shim=shim, seed=4)
    assert losses[:6] == plain[:6] and losses[6] != plain[6]


def test_switching_some_layers(shim):
    shim.start(act=True, emulate_storage="e5m2")
    job = Job(shim, models.Model(layers=3))
    job.run(2)
    shim.command(1, PREPARE, "stabilized", layers=[1])
    job.run(2)
    shim.command(1, COMMIT, "stabilized", effective=6, layers=[1])
    job.run(3)
    assert shim.steps()[-1]["attention_mode"].tolist() == [2, 3, 2]
    assert shim.status()["default_mode"] == "observe"
    shim.command(2, PREPARE, "observe", layers=[1])  # back, without a comparison
    job.run(1)
    shim.command(2, COMMIT, "observe", effective=10, layers=[1])
    job.run(2)
    assert [ack[:2] for ack in shim.acks()] == [
        (PREPARED, 1), (COMMITTED, 1), (APPLIED, 1), (PREPARED, 2), (COMMITTED, 2), (APPLIED, 2)]
    assert shim.steps()[-1]["attention_mode"].tolist() == [2, 2, 2]


def refusal(shim):
    (ack,) = shim.acks()
    assert ack[0] == REFUSED
    return ack[3]


def test_shadow_comparison_refuses_with_numbers(shim):
    shim.start(act=True, shadow_tolerance=0)
    job = Job(shim)
    job.run(1)
    shim.command(3, PREPARE, "stabilized")
    job.run(2)
    assert "shadow comparison of layer 0 in stabilized mode failed: output error" in refusal(shim)
    assert shim.status()["switch"] == "idle" and shim.status()["modes"] == ["observe"] * 2


@pytest.mark.parametrize("act, layers, mode, text", [
    (False, [], "stabilized", "--act"),
    (True, [5], "stabilized", "layer 5 is not known; 2 layers were seen"),
])
def test_refusals(shim, act, layers, mode, text):
    shim.start(act=act)
    job = Job(shim)
    job.run(1)
    shim.command(1, PREPARE, mode, layers=layers)
    job.run(1)
    assert text in refusal(shim)


def test_nothing_seen_yet_is_refused(shim):
    shim.start(act=True)
    shim.command(1, PREPARE, "stabilized")
    shim.ops.observe_loss(torch.ones(()), 1.0)
    shim.ops.step_boundary("test")
    assert "no attention layer was seen yet" in refusal(shim)


def test_the_deadline_ends_an_unfinished_comparison(shim):
    shim.start(act=True)
    job = Job(shim)
    job.run(1)
    shim.command(1, PREPARE, "stabilized", deadline=1)  # long ago
    job.run(1)
    assert "were not called before the deadline" in refusal(shim)


def test_commit_without_prepare_and_late_commit_are_refused(shim):
    shim.start(act=True)
    job = Job(shim)
    job.run(1)
    shim.command(1, COMMIT, "observe", effective=50)
    job.run(1)
    assert "plan 1 is not prepared" in shim.acks()[-1][3]
    shim.command(2, PREPARE, "native")
    job.run(1)
    shim.command(2, COMMIT, "native", effective=4)
    job.run(1)  # step 5 is next
    assert shim.acks()[-1] == (REFUSED, 2, 5, "late: step 5 is next, after effective step 4")
    assert shim.status()["modes"] == ["observe"] * 2


def test_abort_drops_a_committed_plan(shim):
    shim.start(act=True)
    job = Job(shim)
    job.run(1)
    shim.command(1, PREPARE, "native")
    job.run(1)
    shim.command(1, COMMIT, "native", effective=6)
    job.run(1)
    shim.command(1, ABORT, "native")
    job.run(4)
    assert [ack[0] for ack in shim.acks()] == [PREPARED, COMMITTED, ABORTED]
    assert shim.status()["modes"] == ["observe"] * 2


def test_a_second_plan_waits_for_a_committed_one_and_replaces_a_prepared_one(shim):
    shim.start(act=True)
    job = Job(shim)
    job.run(1)
    for plan, phase, effective in ((1, PREPARE, 0), (2, PREPARE, 0), (2, COMMIT, 20), (3, PREPARE, 0)):
        shim.command(plan, phase, "native", effective=effective)
        job.run(1)
    states = [(ack[0], ack[1]) for ack in shim.acks()]
    assert states == [(PREPARED, 1), (ABORTED, 1), (PREPARED, 2), (COMMITTED, 2), (REFUSED, 3)]
    assert "plan 2 is committed" in shim.acks()[-1][3]


def test_leaving_native_mode(shim):
    # In native mode nothing is looked at, yet the boundary takes commands; layers are those seen before.
    shim.start(act=True)
    job = Job(shim)
    job.run(2)
    shim.ops.set_modes([1])
    job.run(2)
    shim.command(1, PREPARE, "observe")
    job.run(1)
    shim.command(1, COMMIT, "observe", effective=7)
    job.run(3)
    assert [ack[0] for ack in shim.acks()] == [PREPARED, COMMITTED, APPLIED]
    calls = [step["attention_calls"] for step in shim.steps()]
    assert calls == [2, 2, 0, 0, 0, 0, 2, 2]
