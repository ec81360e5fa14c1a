"""Whatever happens to the agent, training goes on with the right numbers."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

import models


@pytest.mark.parametrize("where", ["forward", "forward_after", "backward", "backward_after"])
@pytest.mark.parametrize("mode", ["observe", "stabilized"])
def test_an_exception_in_a_hook_leaves_training_right(shim, where, mode):
    plain = models.train(models.Model(), 6)
    shim.start(mode=mode)

    def fail(step):
        if step == 2:
            shim.ops.inject_fault(where)

    losses = models.train(models.Model(), 6, shim=shim, before_step=fail)
    if mode == "observe":
        assert losses == plain
    else:
        assert losses == pytest.approx(plain, rel=1e-4)
    (error,) = shim.coverage()["errors"]
    assert "injected fault" in error and "hook disabled" in error
    assert shim.status()["step"] == 7  # loss and steps go on
    assert [step["loss"] for step in shim.steps()] == pytest.approx(losses, rel=1e-6)


def test_unknown_fault_is_refused(shim):
    with pytest.raises(RuntimeError, match="backward_after"):
        shim.ops.inject_fault("sideways")


def test_a_forked_child_does_nothing(shim):
    shim.start(emulate_storage="e5m2")
    model = models.Model()
    models.train(model, 1, shim=shim)
    before = shim.lines()
    torch.set_num_threads(1)
    child = os.fork()
    if child == 0:
        try:
            status = shim.status()
            x = torch.randn(2, 4, 8, 8, requires_grad=True)
            out = torch.nn.functional.scaled_dot_product_attention(x, x, x)
            exact = torch.softmax(x @ x.transpose(-1, -2) / 8**0.5, -1) @ x
            shim.ops.observe_loss(out.sum(), 1.0)
            shim.ops.step_boundary("child")
            shim.ops.set_modes([3])
            good = status == {"running": False} and torch.allclose(out, exact, atol=1e-5)  # not in e5m2
            answer = json.loads(shim.ops.start("{}"))
            shim.ops.stop()
            os._exit(0 if good and not answer["ok"] and "fork" in answer["error"] else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert shim.lines() == before
    models.train(model, 1, shim=shim)
    assert len(shim.steps()) == 2


def test_disabled_by_the_environment(shim, monkeypatch):
    monkeypatch.setenv("TRIMTAB_DISABLE", "1")
    before = torch._C._dispatch_dump("aten::_scaled_dot_product_flash_attention_for_cpu")
    answer = json.loads(shim.ops.start(json.dumps({"run": "x", "ring_dir": str(shim.ring_dir)})))
    assert answer["ok"] is False and "disabled" in answer["error"]
    assert torch._C._dispatch_dump("aten::_scaled_dot_product_flash_attention_for_cpu") == before
    assert list(shim.ring_dir.iterdir()) == []


@pytest.mark.parametrize("options, message", [
    ("{", "byte 1"),
    ("[]", "JSON object"),
    ('{"color": 1}', "unknown option color"),
    ('{"mode": "fast"}', "mode must be"),
    ('{"emulate_storage": "int8"}', "emulate_storage must be"),
    ('{"probe_rows": 0}', "probe_rows must be"),
    ('{"rank": 2, "world_size": 2}', "rank must be"),
    ('{"act": "yes"}', "act must be"),
    ('{"overhead_budget": 0}', "overhead_budget must be"),
    ('{"info": []}', "info must be"),
    ('{"run": "x", "ring_dir": "/proc/nowhere"}', "/proc/nowhere"),
])
def test_bad_options_name_the_cause(shim, options, message):
    answer = json.loads(shim.ops.start(options))
    assert answer["ok"] is False and message in answer["error"], answer
    assert shim.status() == {"running": False}


def test_starting_twice_is_refused(shim):
    shim.start()
    answer = json.loads(shim.ops.start("{}"))
    assert answer == {"ok": False, "error": "already started in this process"}
    assert shim.status()["running"] is True


def test_ops_before_start_do_nothing(shim):
    x = torch.ones(2, 2)
    shim.ops.observe_loss(x.sum(), 1.0)
    shim.ops.observe_activation(x, 0)
    shim.ops.set_projection(0, "q", x, 0, 2, 1)
    shim.ops.set_info("{}")
    shim.ops.set_modes([3])
    shim.ops.stop()
    assert shim.ops.step_boundary("test") is False and shim.ops.sampled() is False
    assert json.loads(shim.ops.open_ring("{}"))["ok"] is False


def test_a_killed_trainer_leaves_its_last_steps(shim, library, tmp_path):
    script = f"""
import json, os, signal, sys, torch
sys.path.insert(0, {os.path.dirname(__file__)!r})
import models
torch.ops.load_library({str(library)!r})
answer = json.loads(torch.ops.trimtab.start(json.dumps(dict(run="x", ring_dir={str(shim.ring_dir)!r}))))
assert answer["ok"], answer
class Shim: ops = torch.ops.trimtab
models.train(models.Model(), 5, shim=Shim)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert [step["step"] for step in shim.steps()] == [1, 2, 3, 4, 5]


def test_exit_without_stop_does_not_hang(shim, library):
    script = f"""
import json, os, sys, torch
sys.path.insert(0, {os.path.dirname(__file__)!r})
import models
torch.ops.load_library({str(library)!r})
assert json.loads(torch.ops.trimtab.start(json.dumps(dict(run="x", ring_dir={str(shim.ring_dir)!r}))))["ok"]
model = models.Model()
for i, block in enumerate(model.blocks):
    torch.ops.trimtab.set_projection(i, "q", block.qkv.weight, 0, 32, 4)
models.train(model, 3)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=600, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(shim.steps()) == 3
